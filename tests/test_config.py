import dataclasses
import json

import pytest

from retro import recipes
from retro.config import (
    EncoderConfig,
    EvaluationConfig,
    ModelConfig,
    RetrievalConfig,
    RunConfig,
    TrainingConfig,
)
from retro.config.as_json import from_dict, to_dict
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
    with pytest.raises(ConfigError, match=r"config.retrieval.encoder has unknown keys"):
        from_dict(ModelConfig, {**values, "retrieval": {"encoder": {"depth": 2}}})


@pytest.mark.parametrize("value", ["8", 8.0, True, None])
def test_a_wrong_type_is_an_error(value: object) -> None:
    with pytest.raises(ConfigError, match=r"num_layers is .*; expected int"):
        from_dict(ModelConfig, {**to_dict(ModelConfig()), "num_layers": value})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: ModelConfig(retrieval=RetrievalConfig(cross_attention_layers=(6, 13))),
            "between 1 and the depth, 12",
        ),
        (lambda: ModelConfig(retrieval=RetrievalConfig(cross_attention_layers=(9, 6))), "rising"),
        (lambda: ModelConfig(d_model=0), "positive"),
        (lambda: ModelConfig(d_model=897), "even"),
        (lambda: ModelConfig(pad_id=128_000), "within the vocabulary"),
        (
            lambda: ModelConfig(d_model=512, retrieval=RetrievalConfig(share_embeddings=True)),
            "equal widths",
        ),
        (lambda: EncoderConfig(cross_attention_layers=(3,)), "between 1 and the depth, 2"),
        (
            lambda: ModelConfig(retrieval=RetrievalConfig(pointer=True, pointer_layer=7)),
            "pointer_layer is 7; expected a layer from 1 to 6, the first with cross-attention",
        ),
        (
            lambda: RetrievalConfig(pointer_layer=2),
            "pointer_layer is 2 and there is no pointer; expected 0, or a pointer",
        ),
        (lambda: RetrievalConfig(pointer=True, quiet_start=True), "quiet_start and pointer are both set"),
        (lambda: TrainingConfig(num_steps=10), "warmup_steps is 750"),
        (lambda: EvaluationConfig(window=64, stride=128), "at most the window"),
        (
            lambda: EvaluationConfig(window=512, stride=512).with_overlap(0.9375, 64),
            "moves a window of 512 by 32 tokens; expected a multiple of 64",
        ),
        (
            lambda: EvaluationConfig(window=512, stride=512).with_overlap(1.0, 64),
            "expected 0 ≤ proportion < 1",
        ),
        (
            lambda: RunConfig(name="x", model=ModelConfig(), training=TrainingConfig(seq_len=100)),
            "seq_len is 100; expected a multiple of chunk_len",
        ),
    ],
)
def test_impossible_settings_are_refused(make, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigError, match=message):
        make()


def test_overlapping_proportions_of_the_paper() -> None:
    window = EvaluationConfig(window=3072, stride=3072)
    assert [window.with_overlap(proportion, 64).stride for proportion in (0.0, 0.75, 0.875)] == [
        3072,
        768,
        384,
    ]
    assert EvaluationConfig(window=640, stride=64).with_overlap(0.9, 64).stride == 64  # not 63.99…


def test_one_decoder_has_one_baseline() -> None:
    model = ModelConfig(retrieval=RetrievalConfig(cross_attention_layers=(6, 9)))
    others = (
        {"encoder": EncoderConfig(num_layers=1)},
        {"cross_attention_positions": False},
        {"retrieved": "neighbour", "copying_start": True},
        {"cross_attention_layers": (1,)},
    )
    for changes in others:
        other = dataclasses.replace(model, retrieval=dataclasses.replace(model.retrieval, **changes))
        assert other.baseline() == model.baseline()
    assert dataclasses.replace(model, d_model=512).baseline() != model.baseline()


@pytest.mark.parametrize(("layers", "matched"), [((1,), 1), ((2, 4), 2), ((6, 9, 12), 4)])
def test_the_states_that_are_matched_are_not_far_up(layers: tuple[int, ...], matched: int) -> None:
    """Below the first cross-attention, and at most in the fourth layer."""
    retrieval = RetrievalConfig(cross_attention_layers=layers, pointer=True)
    config = ModelConfig(retrieval=retrieval)
    assert config.pointer_layer == matched
    assert from_dict(ModelConfig, to_dict(config)) == config
    assert ModelConfig(retrieval=dataclasses.replace(retrieval, pointer=False)).pointer_layer == 0


def test_json_from_before_retrieval_had_a_config_of_its_own_is_read() -> None:
    retro = recipes.get("tiny").model
    new = to_dict(retro)
    old = {key: value for key, value in new.items() if key not in ("retrieval", "end_id")} | new["retrieval"]
    assert from_dict(ModelConfig, old) == retro
    assert from_dict(ModelConfig, {**old, "cross_attention_layers": []}) == retro.baseline()
