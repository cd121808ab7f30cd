import json

import pytest

from retro import recipes
from retro.config import EncoderConfig, EvaluationConfig, ModelConfig, RunConfig, TrainingConfig, from_dict, to_dict
from retro.errors import ConfigError


@pytest.mark.parametrize("name", recipes.RECIPES)
def test_every_recipe_survives_json(name: str) -> None:
    run = recipes.get(name)
    assert from_dict(RunConfig, json.loads(json.dumps(to_dict(run)))) == run
    assert run.name == name


def test_an_unknown_recipe_names_the_known() -> None:
    with pytest.raises(ConfigError, match=r"expected one of tiny"):
        recipes.get("huge")


def test_an_unknown_key_is_an_error() -> None:
    values = to_dict(ModelConfig())
    with pytest.raises(ConfigError, match=r"unknown keys \['hedas'\]"):
        from_dict(ModelConfig, {**values, "hedas": 3})
    with pytest.raises(ConfigError, match=r"config.encoder has unknown keys"):
        from_dict(ModelConfig, {**values, "encoder": {"depth": 2}})


@pytest.mark.parametrize("value", ["8", 8.0, True, None])
def test_a_wrong_type_is_an_error(value: object) -> None:
    with pytest.raises(ConfigError, match=r"num_layers is .*; expected int"):
        from_dict(ModelConfig, {**to_dict(ModelConfig()), "num_layers": value})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ModelConfig(cross_attention_layers=(6, 13)), "between 1 and the depth, 12"),
        (lambda: ModelConfig(cross_attention_layers=(9, 6)), "rising"),
        (lambda: ModelConfig(d_model=0), "positive"),
        (lambda: ModelConfig(d_model=897), "even"),
        (lambda: ModelConfig(pad_id=128_000), "within the vocabulary"),
        (lambda: ModelConfig(d_model=512, share_embeddings=True, cross_attention_layers=(6,)), "equal widths"),
        (lambda: EncoderConfig(cross_attention_layers=(3,)), "between 1 and the depth, 2"),
        (lambda: TrainingConfig(num_steps=10), "warmup_steps is 750"),
        (lambda: EvaluationConfig(window=64, stride=128), "at most the window"),
        (
            lambda: RunConfig(name="x", model=ModelConfig(), training=TrainingConfig(seq_len=100)),
            "seq_len is 100; expected a multiple of chunk_len",
        ),
    ],
)
def test_impossible_settings_are_refused(make, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigError, match=message):
        make()
