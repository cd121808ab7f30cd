"""What a step may be split into, recomputed in or rounded to, and what stops it."""

import dataclasses
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

from retro import machine as precision
from retro.corpus.mixture import Mixture
from retro.errors import ConfigError, DataError, MissingExtraError
from retro.model import read_out as loss_module
from retro.model.retro import Retro
from retro.run import Run
from retro.training.batches import prefetch
from retro.training.distributed import World
from retro.training.metrics import METRICS, MetricsLog, read_metrics
from retro.training.objective import TokenLoss, recompute_activations
from tests.model.models import small_config, small_model
from tests.training.runs import CONFIG, RandomBatches, losses, spawn, start

CPU = torch.device("cpu")


def gradients(module: TokenLoss, batch_number: int = 0) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The loss of a batch and its gradients."""
    module.zero_grad()
    torch.manual_seed(0)
    summed = module(*RandomBatches().rows(batch_number, 0, 4).inputs(CPU))
    summed.backward()
    return summed.detach(), {
        name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None
    }


def assert_same(
    found: tuple[torch.Tensor, dict[str, torch.Tensor]],
    expected: tuple[torch.Tensor, dict[str, torch.Tensor]],
) -> None:
    torch.testing.assert_close(found[0], expected[0], rtol=0, atol=1e-9)
    assert found[1].keys() == expected[1].keys()
    for name, gradient in expected[1].items():
        torch.testing.assert_close(found[1][name], gradient, rtol=0, atol=1e-9, msg=name)


def test_the_loss_counts_predicted_tokens_only() -> None:
    model, batch = small_model(), RandomBatches().rows(0, 0, 4)
    logits = model(batch.tokens, batch.neighbours, batch.neighbour_mask).log_softmax(-1)
    expected = sum(
        -logits[row, i, t]
        for row in range(4)
        for i, t in enumerate(batch.targets[row].tolist())
        if t != model.config.pad_id
    )
    torch.testing.assert_close(TokenLoss(model)(*batch.inputs(CPU)), expected)


@pytest.mark.parametrize("pointer", [False, True])
def test_a_batch_of_padding_teaches_nothing(pointer: bool) -> None:
    """With gradients all the same: another process may have text, and waits for them."""
    model = small_model(pointer=pointer)
    tokens, _, neighbours, mask = RandomBatches().rows(0, 0, 4).inputs(CPU)
    summed = TokenLoss(model)(tokens, torch.full_like(tokens, model.config.pad_id), neighbours, mask)
    summed.backward()
    assert summed.item() == 0.0
    assert all(parameter.grad is not None and not parameter.grad.any() for parameter in model.parameters())
    with torch.no_grad():
        scored = model.score(tokens, torch.zeros_like(tokens), neighbours, mask, greedy=True)
    assert not scored.log_probs.any()
    assert scored.greedy is not None
    assert scored.greedy.all()


@pytest.mark.parametrize("limit", [1, 31 * 4 * 5, 31 * 47])
def test_logits_in_parts_change_nothing(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """48 tokens in parts of 1, 5 and 11 equal the whole, gradients too; and no whole logits are ever made."""
    module = TokenLoss(small_model())
    whole = gradients(module)
    monkeypatch.setattr(loss_module, "WHOLE_LOGITS", limit)
    sizes: list[int] = []
    original = Retro.read_out
    monkeypatch.setattr(
        Retro, "read_out", lambda self, hidden: (sizes.append(len(hidden)), original(self, hidden))[1]
    )
    assert_same(gradients(module), whole)
    assert max(sizes) <= max(1, limit // 4 // 31)


@pytest.mark.parametrize("pointer", [False, True])
def test_recomputed_activations_change_nothing_and_are_not_kept(pointer: bool) -> None:
    model = small_model(dropout=0.2, pointer=pointer).train()
    plain, kept = gradients(TokenLoss(model)), saved_bytes(TokenLoss(model))
    recompute_activations(model)
    assert_same(gradients(TokenLoss(model)), plain)
    assert saved_bytes(TokenLoss(model)) < 0.5 * kept


def saved_bytes(module: nn.Module) -> int:
    """How much the forward pass keeps for the backward pass."""
    sizes: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    parameters = {parameter.data_ptr() for parameter in module.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        held = module(*RandomBatches().rows(0, 0, 4).inputs(CPU))
    del held
    return sum(size for place, size in sizes.items() if place not in parameters)


@pytest.mark.parametrize("pointer", [False, True])
def test_bfloat16_is_near_and_only_in_the_products(pointer: bool) -> None:
    """Emulated or not: the loss is within a hundredth, and the gradients arrive in the weights' float32."""
    model = small_model(dtype=torch.float32, pointer=pointer)
    exact, rounded = gradients(TokenLoss(model)), gradients(TokenLoss(model, torch.bfloat16))
    assert rounded[0].item() == pytest.approx(exact[0].item(), rel=0.01)
    assert rounded[0].item() != exact[0].item()
    assert {gradient.dtype for gradient in rounded[1].values()} == {torch.float32}


@pytest.mark.parametrize("capability", ["avx512_bf16", "amx_bf16"])
def test_bfloat16_is_chosen_where_the_hardware_has_it(
    capability: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True, capability: True})
    assert precision.product_dtype("auto", CPU) == precision.product_dtype("bfloat16", CPU) == torch.bfloat16
    assert precision.product_dtype("float32", CPU) == torch.float32


def test_bfloat16_is_never_chosen_where_it_is_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True, "avx512_bf16": False})
    assert precision.product_dtype("auto", CPU) == torch.float32
    with pytest.raises(ConfigError, match=r"only emulates; expected a GPU.*use float32"):
        precision.product_dtype("bfloat16", CPU)


@pytest.mark.parametrize("parts", [2, 4])
def test_a_batch_in_parts_is_the_same_step(parts: int, tmp_path: Path) -> None:
    """Rows have unequal numbers of predicted tokens, so a mean of means would differ."""
    start(tmp_path / "whole")
    start(tmp_path / "parts", accumulate=parts)
    assert [row[2] for row in losses(tmp_path / "parts")] == pytest.approx(
        [row[2] for row in losses(tmp_path / "whole")], abs=1e-5
    )


def test_shares_of_processes_cover_the_batch() -> None:
    shares = [World(rank, 2, CPU).share(CONFIG) for rank in range(2)]
    assert shares == [(0, 2), (2, 4)]
    with pytest.raises(
        ConfigError, match=r"batch_size is 4; expected a multiple of processes times accumulate, 3 · 1"
    ):
        World(0, 3, CPU).share(CONFIG)


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_what_is_not_finite_stops_with_step_documents_and_checkpoint(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model = Retro(small_config())
    original, calls = TokenLoss.forward, []

    def explode(self: TokenLoss, *inputs: torch.Tensor | None) -> torch.Tensor:
        summed = original(self, *inputs)
        calls.extend([1] if self.model.training else [])
        bad = (
            summed * float("inf")
            if where == "loss"
            else (self.model.norm.weight - self.model.norm.weight.detach()).sqrt().sum()
        )
        return summed + bad if len(calls) == 5 and self.model.training else summed

    monkeypatch.setattr(TokenLoss, "forward", explode)
    wanted = (
        r"at step 5; .* documents document-4-0, .*document-4-3; "
        r"the last good checkpoint is .*step-000000003; lower learning_rate"
    )
    with pytest.raises(DataError, match=wanted):
        start(tmp_path / "run", model)


def test_batches_come_in_order_made_ahead_by_another_thread() -> None:
    made: list[int] = []
    second = threading.Event()

    def make(number: int) -> tuple[int, str]:
        made.append(number)
        if number == 1:
            second.set()
        return number, threading.current_thread().name

    batches = prefetch(make, range(6), depth=2)
    first = next(batches)
    assert second.wait(timeout=10)  # the next one is made though nobody has asked for it
    assert [first[0], *(number for number, _ in batches)] == list(range(6)) == made
    assert "batches" in first[1]


def test_an_error_in_making_a_batch_comes_through() -> None:
    def make(number: int) -> int:
        if number == 2:
            raise DataError("broken chunk")
        return number

    batches = prefetch(make, range(9))
    assert [next(batches), next(batches)] == [0, 1]
    with pytest.raises(DataError, match="broken chunk"):
        next(batches)


def test_the_mixture_s_shares_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mixture = Mixture({"web": 3.0, "books": 1.0}, {"web": 5, "books": 7}, seed=0)
    monkeypatch.setattr(RandomBatches, "mixture", mixture)
    start(tmp_path / "run")
    shares = mixture.observed(0, CONFIG.num_steps * CONFIG.batch_size)
    assert read_metrics(tmp_path / "run" / METRICS)[-1]["mixture"] == shares
    import json

    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["counts"]["mixture"] == shares


def test_tensorboard_has_the_metrics(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path, 0, tensorboard=True)
    log.add(1, loss=2.5, mixture={"web": 0.75}, sample="The end")
    log.close()
    (events,) = (tmp_path / "tensorboard").iterdir()
    written = events.read_bytes()
    assert all(name in written for name in (b"loss", b"mixture/web", b"The end"))


def test_tensorboard_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "tensorboardX", None)
    with pytest.raises(MissingExtraError, match=r"tensorboardX is not installed.*retro-lm\[tensorboard\]"):
        MetricsLog(tmp_path, 0, tensorboard=True)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"pointer": True}])
def test_compiled_training_has_the_same_losses(changes: dict[str, bool], tmp_path: Path) -> None:
    start(tmp_path / "plain", num_steps=4, model_changes=changes)
    process = spawn(
        start, tmp_path / "compiled", num_steps=4, compile=True, model_changes=changes
    )  # torch's compiler warns of itself
    process.join()
    assert process.exitcode == 0
    assert [row[2] for row in losses(tmp_path / "compiled")] == pytest.approx(
        [row[2] for row in losses(tmp_path / "plain")], abs=1e-4
    )


def test_settings_that_cannot_be_are_refused() -> None:
    for change, message in (
        ({"accumulate": 3}, "accumulate is 3; expected a divisor of batch_size, 4"),
        ({"precision": "float16"}, "precision is 'float16'; expected auto or float32 or bfloat16"),
        ({"final": "first"}, "final is 'first'; expected last or best"),
        ({"keep_checkpoints": 0}, "keep_checkpoints is 0"),
    ):
        with pytest.raises(ConfigError, match=message):
            dataclasses.replace(CONFIG, **change)


def test_a_run_that_is_validated_first_is_the_same_run(tmp_path: Path) -> None:
    start(tmp_path / "plain", num_steps=4)
    start(tmp_path / "first", num_steps=4, validate_first=True)
    rows = read_metrics(tmp_path / "first" / METRICS)
    assert rows[0]["step"] == 0
    assert rows[0].keys() >= {"valid_on", "valid_off"}
    plain, first = (tmp_path / name / "model.safetensors" for name in ("plain", "first"))
    assert plain.read_bytes() == first.read_bytes()
    assert Run(tmp_path / "plain").fingerprint == Run(tmp_path / "first").fingerprint
