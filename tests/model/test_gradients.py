"""Operations that bring their own gradients: the values and gradients that autograd would give."""

import pytest
import torch
from torch.nn import functional as F

from retro.model import gradients
from retro.model.gradients import rms_norm, target_log_probs
from retro.model.relative import Shape, attention_weights, relative_attention

HEADS, HEAD_DIM = 3, 4


@pytest.mark.parametrize("block", [1 << 20, 40])
@pytest.mark.parametrize("pad_id", [0, 7, 99])
def test_log_probs_of_targets_are_those_of_cross_entropy(
    block: int, pad_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole or in blocks, whatever id padding has: within the vocabulary, or behind it."""
    monkeypatch.setattr(gradients, "BLOCK", block)
    torch.manual_seed(0)
    logits = (20 * torch.randn(9, 11, dtype=torch.float64)).requires_grad_()
    targets = torch.randint(0, 11, (9,))
    targets[[2, 5]] = pad_id
    wanted = torch.randn(9, dtype=torch.float64)
    found = target_log_probs(logits, targets, pad_id)
    expected = -F.cross_entropy(logits, targets, ignore_index=pad_id, reduction="none")
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    ours, theirs = (torch.autograd.grad(value, logits, wanted)[0] for value in (found, expected))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    assert (ours[targets == pad_id] == 0).all()


def test_log_probs_of_few_digits_are_summed_in_more() -> None:
    logits = torch.randn(5, 300).to(torch.bfloat16).requires_grad_()
    targets = torch.arange(5)
    found = target_log_probs(logits, targets, 299)
    expected = -F.cross_entropy(logits.float(), targets, reduction="none")
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    found.sum().backward()
    assert logits.grad is not None
    assert logits.grad.dtype == torch.bfloat16


def test_without_gradients_torchs_own_are_taken() -> None:
    x, weight = torch.randn(5, 8), torch.randn(8)
    with torch.no_grad():
        assert torch.equal(rms_norm(x, weight, 1e-6), F.rms_norm(x, (8,), weight, 1e-6))


@pytest.mark.parametrize("is_contiguous", [True, False])
def test_the_norm_has_the_gradients_of_torchs_own(is_contiguous: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 6, 5, dtype=torch.float64)
    x = (x if is_contiguous else x.transpose(0, 1)).requires_grad_()
    weight = torch.randn(5, dtype=torch.float64).requires_grad_()
    torch.testing.assert_close(rms_norm(x, weight, 1e-6), F.rms_norm(x, (5,), weight, 1e-6))
    assert torch.autograd.gradcheck(lambda x, weight: rms_norm(x, weight, 1e-6), (x, weight))


def literal(
    query: torch.Tensor,
    memory: torch.Tensor | None,
    places: torch.Tensor | None,
    content_bias: torch.Tensor,
    position_bias: torch.Tensor | None,
    is_key: torch.Tensor | None,
    shape: Shape,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights and what is read, one pair of query and key after the other."""
    if memory is None:
        query, memory = query.tensor_split([HEADS * HEAD_DIM], -1)
    query, key, value = (
        part.unflatten(-1, (HEADS, HEAD_DIM)) for part in (query, *memory.tensor_split(2, dim=-1))
    )
    batch, num_queries, num_keys = query.shape[0], query.shape[1], key.shape[1]
    rows, columns = num_queries // shape.groups, num_keys // shape.repeats
    logits = query.new_zeros(batch, HEADS, num_queries, num_keys)
    for b in range(batch):
        for head in range(HEADS):
            for i in range(num_queries):
                for j in range(num_keys):
                    q = shape.scale * query[b, i, head]
                    logit = (q + content_bias[head, 0]) @ key[b, j, head]
                    if places is not None and position_bias is not None:
                        # The first place is the last query's distance from the first key.
                        place = places[rows - 1 - i % rows + j % columns].unflatten(-1, (HEADS, HEAD_DIM))
                        logit = logit + (q + position_bias[head, 0]) @ place[head]
                    is_barred = is_key is not None and not is_key[b, j]
                    if is_barred or (shape.block and j > i):
                        logit = logit * 0 - torch.inf
                    logits[b, head, i, j] = logit
    weights = logits.softmax(-1)
    return weights, torch.einsum("bhij,bjhd->bihd", weights, value).flatten(2)


def operands(shape: Shape, num_queries: int, num_keys: int | None, positions: bool, masked: bool) -> list:
    """Random ones, in float64; without a number of keys the queries attend to each other."""
    torch.manual_seed(0)
    inner = HEADS * HEAD_DIM

    def drawn(*sizes: int) -> torch.Tensor:
        return torch.randn(*sizes, dtype=torch.float64).requires_grad_()

    length = num_keys or num_queries
    query = drawn(2, num_queries, 3 * inner if num_keys is None else inner)
    memory = None if num_keys is None else drawn(2, num_keys, 2 * inner)
    places = drawn(num_queries // shape.groups + length // shape.repeats, inner) if positions else None
    is_key = torch.rand(2, length) > 0.3 if masked else None
    if is_key is not None:
        is_key[:, 0] = True
    bias = drawn(HEADS, 1, HEAD_DIM) if positions else None
    return [query, memory, places, drawn(HEADS, 1, HEAD_DIM), bias, is_key]


SHAPES = {
    "within a neighbour": (Shape(HEADS, 0.5), 5, None),
    "causal, in blocks": (Shape(HEADS, 0.5, block=2), 5, None),
    "causal, in one block": (Shape(HEADS, 0.5, block=8), 5, None),
    "neighbours that ask": (Shape(HEADS, 0.5, groups=2), 6, 4),
    "neighbours that are read": (Shape(HEADS, 0.5, repeats=3), 4, 6),
}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("positions", [False, True])
@pytest.mark.parametrize("name", SHAPES)
def test_attention_is_what_it_is_one_by_one(name: str, positions: bool, masked: bool) -> None:
    shape, num_queries, num_keys = SHAPES[name]
    given = operands(shape, num_queries, num_keys, positions, masked)
    weights, expected = literal(*given, shape)
    found = relative_attention(*given, shape)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    if not shape.block:
        torch.testing.assert_close(attention_weights(*given, shape), weights, rtol=0, atol=1e-12)
    wanted = torch.randn_like(expected)
    learned = [one for one in given if one is not None and one.is_floating_point()]
    ours = torch.autograd.grad(found, learned, wanted)
    # The place behind the last has no part in anything.
    theirs = torch.autograd.grad(expected, learned, wanted)
    for ours_one, theirs_one in zip(ours, theirs, strict=True):
        torch.testing.assert_close(ours_one, theirs_one, rtol=0, atol=1e-11)


def test_a_query_without_keys_reads_something_finite() -> None:
    shape = Shape(HEADS, 0.5)
    given = operands(shape, 4, 6, positions=True, masked=True)
    given[-1] = torch.zeros(2, 6, dtype=torch.bool)
    given[0], given[1] = (given[0] * 100).float(), (given[1] * 100).float()
    given[2:5] = [one.detach().float() for one in given[2:5]]
    assert relative_attention(*given, shape).isfinite().all()
