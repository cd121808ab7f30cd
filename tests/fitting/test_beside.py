"""Reading from memories beside the text."""

import torch

from retro.fitting.beside import Memory, Weighing, read
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
