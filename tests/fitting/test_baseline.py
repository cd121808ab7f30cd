"""RETROfitting leaves the baseline as it is, and spares the work that freezing makes needless."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from retro.config import ModelConfig, RetrievalConfig, cross_attention_places
from retro.errors import ConfigError
from retro.fitting.baseline import retrofit
from retro.model.retro import Retro
from retro.run import load
from retro.training.metrics import METRICS, read_metrics
from retro.training.objective import make_optimizer
from tests.model.models import random_inputs, small_config, small_model
from tests.training.runs import CONFIG, RandomBatches, start

FIT = RetrievalConfig(cross_attention_layers=(2, 3), encoder=small_config().retrieval.encoder)


def fitted(**changes: object) -> tuple[Retro, Retro]:
    """A baseline and its RETROfit."""
    baseline = small_model(dtype=torch.float32, cross_attention_layers=())
    return baseline, retrofit(
        baseline, RetrievalConfig(**{"cross_attention_layers": (2, 3), "encoder": FIT.encoder, **changes})
    )  # type: ignore[arg-type]


def test_retrieval_off_is_the_baseline_before_during_and_after(tmp_path: Path) -> None:
    baseline, model = fitted()
    tokens, neighbours, mask = random_inputs(model.config, 2, 11, 2)
    expected, seen = baseline(tokens), []

    def told(done: int, total: int, step: str = "", note: str = "") -> None:
        model.eval()
        seen.append(torch.equal(model(tokens), expected))
        model.train()

    before = model.eval()(tokens, neighbours, mask)
    start(tmp_path / "run", model, told)
    assert seen == [True] * CONFIG.num_steps
    assert torch.equal(model.eval()(tokens), expected)
    assert not torch.equal(model(tokens, neighbours, mask), before)
    rows = [row for row in read_metrics(tmp_path / "run" / METRICS) if "valid_off" in row]
    assert len({row["valid_off"] for row in rows}) == 1
    assert len({row["valid_on"] for row in rows}) == len(rows)


def test_a_pointer_is_fitted_to_a_frozen_decoder(tmp_path: Path) -> None:
    baseline, model = fitted(pointer=True)
    tokens, neighbours, mask = random_inputs(model.config, 2, 11, 2)
    assert model.pointer is not None
    before = {name: weight.clone() for name, weight in model.pointer.named_parameters()}
    assert torch.equal(model.eval()(tokens), baseline(tokens))
    start(tmp_path / "run", model)
    assert torch.equal(model.eval()(tokens), baseline(tokens))
    assert all(
        torch.equal(weight, model.state_dict()[name]) for name, weight in baseline.state_dict().items()
    )
    moved = {
        name for name, weight in model.pointer.named_parameters() if not torch.equal(weight, before[name])
    }
    assert moved == set(before)
    assert torch.equal(load(tmp_path / "run")(tokens, neighbours, mask), model(tokens, neighbours, mask))


@pytest.mark.parametrize("copying", [False, True])
def test_a_quiet_start_is_the_baseline_with_retrieval_too(copying: bool) -> None:
    baseline, model = fitted(quiet_start=True, copying_start=copying)
    tokens, neighbours, mask = random_inputs(model.config, 2, 11, 2)
    assert torch.equal(model(tokens, neighbours, mask), baseline(tokens))
    loud = fitted(copying_start=copying)[1]
    assert not torch.equal(loud(tokens, neighbours, mask), baseline(tokens))


def test_a_quiet_start_still_learns(tmp_path: Path) -> None:
    _, model = fitted(quiet_start=True)
    start(tmp_path / "run", model)
    assert all(
        layer.cross_attention.attention.out.weight.abs().sum() > 0
        for layer in model.layers
        if layer.cross_attention
    )


def test_the_copying_start_follows_the_trained_embedding() -> None:
    """The encoder's vectors are a projection of the baseline's own, not of the random ones that a new model
    is made with."""
    baseline, model = fitted(copying_start=True)
    assert model.encoder_embedding is not None
    projected = torch.linalg.lstsq(baseline.embedding.weight, model.encoder_embedding.weight)
    residual = baseline.embedding.weight @ projected.solution - model.encoder_embedding.weight
    assert residual.abs().max() < 1e-4


def test_the_optimizer_holds_the_new_weights_only() -> None:
    baseline, model = fitted()
    optimizer = make_optimizer(model, CONFIG)
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    new = {name for name, parameter in model.named_parameters() if id(parameter) in held}
    assert new == set(model.state_dict()) - set(baseline.state_dict())
    assert all(".cross_attention." in name or name.startswith("encoder") for name in new)


def test_no_gradient_is_computed_below_the_first_cross_attention() -> None:
    """Below it nothing is even recorded; above it activations have gradients, and frozen weights none."""
    _, model = fitted()
    recorded: dict[str, bool] = {}

    def record(name: str):  # type: ignore[no-untyped-def]
        return lambda _module, _inputs, output: recorded.__setitem__(name, output.requires_grad)

    for number, layer in enumerate(model.layers, start=1):
        layer.self_attention.register_forward_hook(record(f"{number} self"))
        layer.feed_forward.register_forward_hook(record(f"{number} feed"))
    batch = RandomBatches().rows(0, 0, 2)
    model(batch.tokens, batch.neighbours, batch.neighbour_mask).square().sum().backward()
    assert recorded == {
        "1 self": False,
        "1 feed": False,
        "2 self": False,
        "2 feed": True,
        "3 self": True,
        "3 feed": True,
    }
    assert all((parameter.grad is None) == (not parameter.requires_grad) for parameter in model.parameters())


def test_only_what_is_trained_is_in_a_checkpoint(tmp_path: Path) -> None:
    from retro.training.checkpoints import training_tensors

    baseline, model = fitted()
    names = {name.partition("/")[2] for name in training_tensors(model, make_optimizer(model, CONFIG))}
    assert not names & set(baseline.state_dict())


@pytest.mark.parametrize(
    ("depth", "places"),
    [
        (1, (1,)),
        (2, (1, 2)),
        (4, (2, 4)),
        (6, (3, 6)),
        (12, (6, 9, 12)),
        (24, (6, 9, 12, 15, 18, 21, 24)),
        (32, tuple(range(6, 31, 3))),
    ],
)
def test_where_cross_attention_goes_by_itself(depth: int, places: tuple[int, ...]) -> None:
    assert cross_attention_places(depth) == places
    config = ModelConfig(num_layers=depth, retrieval=RetrievalConfig())
    assert config.cross_attention_layers == places


def test_what_cannot_be_fitted_is_refused() -> None:
    with pytest.raises(ConfigError, match="has cross-attention already; expected a baseline"):
        retrofit(small_model(), FIT)
    with pytest.raises(ConfigError, match="between 1 and the depth, 3"):
        retrofit(small_model(cross_attention_layers=()), RetrievalConfig(cross_attention_layers=(6,)))


def test_the_weights_of_the_baseline_are_copied_not_shared() -> None:
    baseline, model = fitted()
    shared = {tensor.data_ptr() for tensor in baseline.state_dict().values()}
    copied: list[Tensor] = list(model.state_dict().values())
    assert not shared & {tensor.data_ptr() for tensor in copied}
