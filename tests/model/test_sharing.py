"""Several numbers of neighbours at once are what each is alone, and what they share is computed once."""

from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn

from retro.config import EncoderConfig
from retro.model.protocol import SharingModel, score_each
from retro.model.retro import Retro
from tests.model.models import random_inputs, small_model

KS = (0, 1, 2, 4)


def encoder_with(*layers: int) -> EncoderConfig:
    return EncoderConfig(
        d_model=6, num_layers=2, num_heads=2, head_dim=5, ffw_dim=12, cross_attention_layers=layers
    )


def inputs_of(model: Retro, seq_len: int = 15) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """With a text that is shorter, neighbours that stand in several places, and targets here and there."""
    tokens, neighbours, mask = random_inputs(model.config, 3, seq_len, 4)
    tokens[1, 9:] = model.config.pad_id
    mask[1, 2:] = False
    neighbours[2] = neighbours[0]
    neighbours[0, 1, 3] = neighbours[0, 0, 0]
    targets = torch.where(torch.arange(seq_len) % 3 > 0, tokens.roll(-1, 1), model.config.pad_id)
    return tokens, targets, neighbours, mask


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"encoder": encoder_with()},
        {"encoder": encoder_with(2)},
        {"encoder": encoder_with(1, 2)},
        {"cross_attention_layers": (1,)},
        {"retrieved": "continuation"},
        {"pointer": True, "pointer_layer": 1},
        {"pointer": True, "pointer_layer": 2},
    ],
)
@torch.no_grad()
def test_each_is_what_it_is_alone(changes: dict[str, Any]) -> None:
    model = small_model(**changes)
    tokens, targets, neighbours, mask = inputs_of(model)
    together = score_each(model, tokens, targets, KS, neighbours, mask, greedy=True)
    for k, found in zip(KS, together, strict=True):
        retrieved = (neighbours[:, :, :k], mask[:, :, :k]) if k else ()
        alone = model.score(tokens, targets, *retrieved, greedy=True)
        torch.testing.assert_close(found.log_probs, alone.log_probs, rtol=1e-10, atol=1e-10)
        assert torch.equal(found.greedy, alone.greedy)
    off = model.score(tokens, targets).log_probs
    assert torch.equal(together[0].log_probs, off)
    assert not torch.allclose(together[3].log_probs, together[2].log_probs)
    # Without a mask all are real.
    (whole,) = score_each(model, tokens[:1], targets[:1], (4,), neighbours[:1])
    alone = model.score(tokens[:1], targets[:1], neighbours[:1])
    torch.testing.assert_close(whole.log_probs, alone.log_probs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("changes", [{}, {"pointer": True}])
def test_others_that_are_asked_for_change_no_bit(changes: dict[str, Any]) -> None:
    model = small_model(dtype=torch.float32, d_model=64, head_dim=32, **changes)
    inputs = inputs_of(model, 40)
    both = score_each(model, *inputs[:2], (2, 4), *inputs[2:])
    for k, found in zip((2, 4), both, strict=True):
        (alone,) = score_each(model, *inputs[:2], (k,), *inputs[2:])
        assert torch.equal(found.log_probs, alone.log_probs)


def test_what_is_shared_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model()
    assert isinstance(model, SharingModel)
    assert model.encoder is not None
    tokens, targets, neighbours, mask = inputs_of(model)
    neighbours[:], mask[:, :, 3] = neighbours[:1, :1], False  # four of them, everywhere
    rows: dict[nn.Module, list[int]] = {}

    def count(module: nn.Module, given: tuple[Tensor, ...]) -> None:
        rows.setdefault(module, []).append(given[0].shape[:-2].numel())

    layers = [*model.layers[:2], *model.encoder.layers]
    counted = [layer.self_attention for layer in layers]
    for module in counted:
        module.register_forward_pre_hook(count)
    reads = [layer.cross_attention.attention for layer in model.layers if layer.cross_attention is not None]
    projected = Mock(wraps=reads[0].keys_and_values)
    monkeypatch.setattr(reads[0], "keys_and_values", projected)
    score_each(model, tokens, targets, KS, neighbours, mask)
    assert projected.call_count == max(KS)  # once for each neighbour, however many k read it
    below, first, alone, conditioned = (rows[module] for module in counted)
    assert below == first == [3]
    assert alone == [1, 1, 1]  # the fourth is never real
    assert conditioned == mask.sum((0, 1))[:3].tolist()


@torch.no_grad()
def test_nothing_to_read_is_off() -> None:
    model = small_model()
    tokens, targets, neighbours, mask = inputs_of(model)
    off = model.score(tokens[:, :3], targets[:, :3]).log_probs
    found = score_each(model, tokens[:, :3], targets[:, :3], (0, 2), neighbours[:, :0], mask[:, :0])
    assert all(torch.equal(short.log_probs, off) for short in found)
    found = score_each(model, tokens, targets, (0, 2), neighbours, torch.zeros_like(mask))
    torch.testing.assert_close(found[1].log_probs, model.score(tokens, targets).log_probs)
    baseline = small_model(cross_attention_layers=())
    (alone,) = score_each(baseline, tokens, targets, (0,))
    assert torch.equal(alone.log_probs, baseline.score(tokens, targets).log_probs)
