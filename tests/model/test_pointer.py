"""The pointer: a vote of the neighbours' tokens for the next one."""

import json
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from retro.config import ModelConfig
from retro.config.as_json import from_dict
from retro.model import read_out
from retro.model.pointer import Pointer
from retro.model.retro import Retro
from retro.run import load
from tests.model.models import random_inputs, small_config, small_model


def test_rounding_does_not_decide_between_equal_votes() -> None:
    torch.manual_seed(0)
    pointer = Pointer(4, 4).double()
    for parameter in pointer.parameters():
        parameter.data = torch.randn_like(parameter)
    logits, states = torch.randn(1, 1, 9).double(), torch.randn(1, 1, 4).double()
    query = F.normalize(torch.randn(1, 1, 1, 4).double(), dim=-1)
    # Two neighbours begin alike, and go on with the tokens 3 and 7.
    tokens, is_voter = torch.tensor([[[3, 7]]]), torch.ones(1, 1, 2, dtype=torch.bool)
    found = []
    for nudge in (-1e-13, 1e-13):
        keys = query.repeat(1, 1, 2, 1) * torch.tensor([1.0, 1.0 + nudge], dtype=torch.float64)[:, None]
        vote = pointer.vote(query, keys, tokens, is_voter)
        found.append(pointer.mix_logits(vote.at((slice(None), 0)), states, logits))
    assert vote.mass[0, 0, 0, 0] != vote.mass[0, 0, 0, 1]
    torch.testing.assert_close(found[0], found[1], rtol=1e-10, atol=1e-10)


def without_pointer(model: Retro) -> Retro:
    """The same model without its pointer."""
    weights = {name: value for name, value in model.state_dict().items() if not name.startswith("pointer.")}
    plain = Retro(small_config()).to(next(iter(weights.values())).dtype).eval()
    plain.load_state_dict(weights)
    return plain


def without_cross_attention(model: Retro) -> Retro:
    """The model whose neighbours do nothing but vote."""
    with torch.no_grad():
        for layer in model.layers:
            if layer.cross_attention is not None:
                layer.cross_attention.attention.out.weight.zero_()
    return model


def test_all_other_weights_are_drawn_as_without_a_pointer() -> None:
    torch.manual_seed(0)
    plain = Retro(small_config()).state_dict()
    torch.manual_seed(0)
    drawn = Retro(small_config(pointer=True)).state_dict()
    assert {name for name in drawn if name not in plain} == {
        "pointer.log_sharpness",
        "pointer.norm.weight",
        "pointer.features.weight",
        "pointer.features.bias",
        "pointer.state.weight",
        "pointer.gate.weight",
        "pointer.gate.bias",
    }
    assert all(torch.equal(weight, drawn[name]) for name, weight in plain.items())


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_without_neighbours_the_pointer_does_nothing(dtype: torch.dtype) -> None:
    model = small_model(dtype=dtype, pointer=True)
    plain = without_pointer(model)
    tokens, neighbours, mask = random_inputs(model.config, 2, 11, 2)
    targets = tokens.roll(-1, 1)
    assert torch.equal(model(tokens), plain(tokens))
    assert torch.equal(model.score(tokens, targets).log_probs, plain.score(tokens, targets).log_probs)
    for absent in (torch.zeros_like(mask), mask[:, :, :0]):
        given = neighbours[:, :, : absent.shape[2]]
        assert torch.equal(model(tokens, given, absent), plain(tokens))
    prompts = [tokens[0].tolist(), tokens[1, :5].tolist()]
    assert torch.equal(model.begin().prefill(prompts), plain.begin().prefill(prompts))
    assert not torch.allclose(model(tokens, neighbours, mask), plain(tokens, neighbours, mask))


@torch.no_grad()
@pytest.mark.parametrize("position", range(11))
def test_only_the_last_complete_chunk_s_neighbours_vote(position: int) -> None:
    """Later tokens and the neighbours of all other chunks change nothing, bit for bit."""
    model = without_cross_attention(small_model(pointer=True))
    tokens, neighbours, _ = random_inputs(model.config, 1, 11, 2)
    num_complete = (position + 1) // model.config.chunk_len
    logits = model(tokens, neighbours)[0, position]
    others = torch.randint_like(neighbours, 1, 31)
    later = tokens.clone()
    later[:, position + 1 :] = others.flatten()[: 10 - position]
    if num_complete:
        others[:, num_complete - 1] = neighbours[:, num_complete - 1]
    assert torch.equal(model(later, others)[0, position], logits)
    others = neighbours.clone()
    if num_complete:
        others[:, num_complete - 1] = torch.randint_like(others[:, 0], 1, 31)
    assert torch.equal(model(tokens, others)[0, position], logits) == (num_complete == 0)


@torch.no_grad()
def test_sequences_of_a_batch_vote_for_themselves() -> None:
    model = small_model(pointer=True)
    tokens, neighbours, mask = random_inputs(model.config, 3, 10, 2)
    together = model(tokens, neighbours, mask)
    for row in range(3):
        alone = model(tokens[row : row + 1], neighbours[row : row + 1], mask[row : row + 1])
        torch.testing.assert_close(together[row : row + 1], alone, rtol=0, atol=1e-12)


@torch.no_grad()
def test_a_copied_neighbour_is_followed() -> None:
    """The neighbours are the text itself, so they must vote for what really comes next, before training."""
    torch.manual_seed(0)
    model = without_cross_attention(Retro(small_config(pointer=True)).double().eval())
    m = model.config.chunk_len
    tokens, _, _ = random_inputs(model.config, 1, 3 * m, 1)
    neighbours = torch.stack([tokens[0, : 2 * m], tokens[0, m : 3 * m], tokens[0, m : 3 * m]])[None, :, None]
    targets = F.pad(tokens[:, 1:], (0, 1))
    off = model.score(tokens, targets).log_probs
    on = model.score(tokens, targets, neighbours).log_probs
    torch.testing.assert_close(on[:, : m - 1], off[:, : m - 1], rtol=0, atol=1e-12)
    # λ starts at 0.18, so a token that all vote for has at least nearly that.
    assert (on[:, m - 1 : 2 * m - 1] - off[:, m - 1 : 2 * m - 1]).mean() > 1


def in_parts(limits: tuple[int, int, int] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let logits be computed a few at a time."""
    if limits is not None:
        for name, limit in zip(("WHOLE_LOGITS", "FEW_LOGITS", "FEW_ROWS"), limits, strict=True):
            monkeypatch.setattr(read_out, name, limit)


PARTS = [None, (1, 1, 3), (4 * 31 * 99, 1, 3)]
"""All at once, few with gradients, and few without alone."""


@pytest.mark.parametrize("limits", PARTS)
def test_scores_are_those_of_the_logits(
    limits: tuple[int, int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_parts(limits, monkeypatch)
    model = small_model(pointer=True)
    tokens, neighbours, mask = random_inputs(model.config, 2, 11, 2)
    best = model(tokens, neighbours, mask).argmax(-1)
    targets = tokens.roll(-1, 1)
    targets[0, ::2] = best[0, ::2]
    targets[:, -2:] = model.config.pad_id
    wanted = targets != model.config.pad_id
    expected = model(tokens, neighbours, mask).log_softmax(-1).gather(-1, targets[..., None])[..., 0]
    for needs_gradient in (True, False):
        with torch.set_grad_enabled(needs_gradient):
            scored = model.score(tokens, targets, neighbours, mask, greedy=True)
        torch.testing.assert_close(scored.log_probs, expected * wanted, rtol=0, atol=1e-12)
        assert scored.greedy is not None
        assert torch.equal(scored.greedy, (targets == best) | ~wanted)


@pytest.mark.parametrize("limits", PARTS)
def test_the_model_learns_its_own_distribution_and_the_pointer_the_mixture(
    limits: tuple[int, int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_parts(limits, monkeypatch)
    model = small_model(pointer=True)
    plain = without_pointer(model)
    tokens, neighbours, mask = random_inputs(model.config, 2, 11, 2)
    targets = tokens.roll(-1, 1)

    def gradients(each: Retro, log_probs: torch.Tensor) -> dict[str, torch.Tensor]:
        names = [name for name, _ in each.named_parameters()]
        return dict(zip(names, torch.autograd.grad(-log_probs.sum(), list(each.parameters())), strict=True))

    logits = model(tokens, neighbours, mask)
    mixture = gradients(model, logits.log_softmax(-1).gather(-1, targets[..., None]))
    own = gradients(plain, plain.score(tokens, targets, neighbours, mask).log_probs)
    found = gradients(model, model.score(tokens, targets, neighbours, mask).log_probs)
    for name, gradient in found.items():
        if name.startswith("pointer."):
            torch.testing.assert_close(gradient, mixture[name], rtol=0, atol=1e-10, msg=name)
        # Up to the pointer's layer, states also learn to be matched.
        elif not name.startswith(("embedding.", "layers.0.", "layers.1.self_attention.")):
            torch.testing.assert_close(gradient, own[name], rtol=0, atol=1e-10, msg=name)
        else:
            assert not torch.allclose(gradient, own[name]), name


def test_a_model_with_a_pointer_is_saved_and_read(tmp_path: Path) -> None:
    model = small_model(dtype=torch.float32, pointer=True)
    model.save(tmp_path)
    inputs = random_inputs(model.config, 2, 11, 2)
    again = load(tmp_path)
    assert again.config == model.config
    assert torch.equal(again(*inputs), model(*inputs))


def test_a_record_without_a_pointer_is_what_it_was_before_there_were_any(tmp_path: Path) -> None:
    """So that the runs from then are read, and go on."""
    model = small_model(dtype=torch.float32)
    model.save(tmp_path)
    record = json.loads((tmp_path / "run.json").read_text())["model"]
    assert set(record["retrieval"]) == {
        "cross_attention_layers",
        "encoder",
        "share_embeddings",
        "cross_attention_positions",
        "copying_start",
        "quiet_start",
        "retrieved",
    }
    assert from_dict(ModelConfig, record) == model.config
    assert small_model(cross_attention_layers=()).settings()["retrieval"] is None
