"""Neighbours that are read in another precision than the text."""

import pytest
import torch

from retro.fitting.fitted import FittedModel
from retro.machine import has_bfloat16
from tests.fitting.test_fitted import READINGS, M, fitted_with, llama, neighbours_of, text


def quick(reading: str) -> FittedModel:
    model = fitted_with(reading, base=llama().float())
    model.quicken(torch.bfloat16)
    return model


@pytest.mark.parametrize("reading", READINGS)
@torch.no_grad()
def test_only_what_neighbours_change_is_rounded(reading: str) -> None:
    model = quick(reading)
    tokens = text(2, 29)
    neighbours, mask = neighbours_of(tokens)
    found = model(tokens, neighbours, mask)
    assert torch.equal(model(tokens), llama().float()(tokens).logits)
    exact = fitted_with(reading, base=llama().float())(tokens, neighbours, mask)
    off = (found - exact).abs().max()
    # Weights by chance, as large as these are, blow rounding up.
    assert 0 < off < 0.2 * (exact - model(tokens)).abs().max()


@torch.no_grad()
def test_token_by_token_is_nearly_the_whole() -> None:
    model = quick("attention")
    tokens = text(1, 3 * M)
    neighbours, _ = neighbours_of(tokens)
    whole = model(tokens, neighbours).log_softmax(-1)
    decoding = model.begin()
    decoding.prefill([tokens[0, : M + 2].tolist()], neighbours[:, :1])
    for place in range(M + 2, 3 * M):
        given = neighbours[:, place // M] if decoding.completing else None
        logits = decoding.step([int(tokens[0, place])], given)
        torch.testing.assert_close(logits.log_softmax(-1), whole[:, place], rtol=0.02, atol=0.02)


@torch.no_grad()
def test_the_copy_turns_positions_as_the_base_does() -> None:
    # In bfloat16 the frequencies of rotations would be off, and far positions by whole turns.
    model = quick("attention")
    kept = dict(model.base.named_buffers())
    for name, buffer in model.reader.decoder.named_buffers():
        assert torch.equal(buffer, kept[f"model.{name}"])
    assert {parameter.dtype for parameter in model.reader.decoder.parameters()} == {torch.bfloat16}


def test_a_model_that_is_changed_reads_by_itself_again() -> None:
    model = quick("attention")
    assert model.is_quick
    model.double()
    assert not model.is_quick
    assert all(parameter.dtype == torch.float64 for parameter in model.base.parameters())


def test_it_is_quick_by_itself_only_where_that_is_quicker() -> None:
    model = fitted_with("attention", base=llama().float())
    model.quicken()
    assert model.is_quick == has_bfloat16(torch.device("cpu"))
    exact = fitted_with("attention")
    exact.quicken()
    assert not exact.is_quick
