"""Reading from memories beside the text."""

from typing import Any

import pytest
import torch
from torch import nn

from retro.fitting.beside import PREFIX, Memory, Weighing, fold, read, read_together
from retro.fitting.interface import Asked
from retro.fitting.neighbours import likeness


def test_sums_are_not_rounded_to_half_precision() -> None:
    generator = torch.Generator().manual_seed(0)
    query, keys, values = (
        (scale * torch.randn(*shape, generator=generator)).bfloat16()
        for scale, shape in ((2, (1, 2, 3, 8, 16)), (2, (1, 3, 2, 32, 16)), (1, (1, 3, 2, 32, 16)))
    )
    is_token = torch.ones(1, 3, 32, dtype=torch.bool)
    unlike = torch.zeros(1, 3, 32, 3)
    plain = Weighing(torch.zeros(2), torch.ones(2), None)
    exact, total = read(query.double(), Memory(keys.double(), values.double(), is_token, unlike), plain, 0.25)
    plain = Weighing(torch.zeros(2).bfloat16(), torch.ones(2).bfloat16(), None)
    found, found_total = read(query, Memory(keys, values, is_token, unlike), plain, 0.25)
    assert (found.dtype, found_total.dtype) == (torch.bfloat16, torch.float32)
    # The same in half precision throughout.
    logits = query.transpose(1, 2) @ keys.transpose(-1, -2) * 0.25
    rounded = logits.logsumexp(-1, keepdim=True)
    naive = ((logits - rounded).exp() @ values).transpose(1, 2)
    assert (found.double() - exact).abs().max() < 0.5 * (naive.double() - exact).abs().max()
    off_by = (rounded[..., 0].transpose(1, 2).double() - total).abs().mean()
    assert (found_total.double() - total).abs().mean() < 0.75 * off_by


def test_likeness_is_the_part_of_the_runs_that_stand_in_a_neighbour() -> None:
    pad = 9
    chunks = torch.tensor([[[1, 2, 3, 4, 5, 6]]])
    neighbours = torch.tensor([[[[0, 1, 2, 3, 4, 0], [6, 5, 4, 3, 2, 1], [5, 6, pad, pad, pad, pad]]]])
    shares = likeness(chunks, neighbours, neighbours != pad, pad)
    expected = [[4 / 6, 3 / 5, 1 / 3], [1.0, 0.0, 0.0], [2 / 6, 1 / 5, 0.0]]
    torch.testing.assert_close(shares[0, 0], torch.tensor(expected, dtype=torch.float64))
    # A chunk that ends early has fewer runs, and its padding is like nothing.
    chunks[0, 0, 4:] = pad
    shares = likeness(chunks, neighbours, neighbours != pad, pad)
    torch.testing.assert_close(shares[0, 0, 0], torch.tensor([1.0, 1.0, 1.0], dtype=torch.float64))
    torch.testing.assert_close(shares[0, 0, 2], torch.tensor([0.0, 0.0, 0.0], dtype=torch.float64))
    # Too short for the longest runs.
    short = likeness(chunks[..., :2], neighbours[..., :4], neighbours[..., :4] != pad, pad)
    torch.testing.assert_close(short[0, 0, 0], torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64))


@pytest.mark.parametrize("options", [{}, {"softcap": 2.0}, {"s_aux": torch.tensor([0.3, -0.4, 1.0, 0.2])}])
@pytest.mark.parametrize("masked", [False, True])
def test_past_and_neighbours_are_read_in_one_softmax(options: dict[str, Any], masked: bool) -> None:
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    query, key, value = random(2, 4, 1, 8), random(2, 2, 5, 8), random(2, 2, 5, 6)
    seen = torch.ones(2, 1, 1, 5, dtype=torch.bool)
    if masked:
        seen[1, ..., :2] = False
    is_token = torch.rand(2, 1, 7, generator=generator) < 0.7
    memory = Memory(random(2, 1, 2, 7, 8), random(2, 1, 2, 7, 6), is_token, random(2, 1, 7, 3))
    weighing = Weighing(random(4), random(4).exp(), random(4, 3))
    asked = Asked(nn.Identity(), query, key, value, seen if masked else None, options, PREFIX)
    folded = fold(memory, weighing, asked.scaling)
    assert folded.is_whole
    found = read_together(asked, folded)
    assert asked.weights is None  # nor was the base's own attention asked
    for row in range(2):
        for head in range(4):
            q, kv = query[row, head, 0], head // 2
            to_past = key[row, kv] @ q * asked.scaling
            to_memory = memory.keys[row, 0, kv] @ q * asked.scaling * weighing.scale[head]
            if asked.softcap is not None:
                to_past, to_memory = (
                    (logits / asked.softcap).tanh() * asked.softcap for logits in (to_past, to_memory)
                )
            assert weighing.trust is not None
            to_memory = to_memory + weighing.bias[head] + memory.likeness[row, 0] @ weighing.trust[head]
            kept = torch.cat([to_past[seen[row, 0, 0]], to_memory[is_token[row, 0]]]).exp()
            values = torch.cat([value[row, kv][seen[row, 0, 0]], memory.values[row, 0, kv][is_token[row, 0]]])
            sink = 0.0 if asked.sinks is None else asked.sinks[head].exp()
            torch.testing.assert_close(found[row, 0, head], kept @ values / (kept.sum() + sink))
    memory.is_token[0] = False
    assert not fold(memory, weighing, asked.scaling).is_whole
