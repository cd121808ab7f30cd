"""Reading from memories beside the text."""

import torch

from retro.fitting.beside import Memory, read


def test_sums_are_not_rounded_to_half_precision() -> None:
    generator = torch.Generator().manual_seed(0)
    query, keys, values = (
        (scale * torch.randn(*shape, generator=generator)).bfloat16()
        for scale, shape in ((2, (1, 2, 3, 8, 16)), (2, (1, 3, 2, 32, 16)), (1, (1, 3, 2, 32, 16)))
    )
    is_token = torch.ones(1, 3, 32, dtype=torch.bool)
    exact, total = read(query.double(), Memory(keys.double(), values.double(), is_token), 0.25)
    found, found_total = read(query, Memory(keys, values, is_token), 0.25)
    assert (found.dtype, found_total.dtype) == (torch.bfloat16, torch.float32)
    # The same in half precision throughout.
    logits = query.transpose(1, 2) @ keys.transpose(-1, -2) * 0.25
    rounded = logits.logsumexp(-1, keepdim=True)
    naive = ((logits - rounded).exp() @ values).transpose(1, 2)
    assert (found.double() - exact).abs().max() < 0.5 * (naive.double() - exact).abs().max()
    off_by = (rounded[..., 0].transpose(1, 2).double() - total).abs().mean()
    assert (found_total.double() - total).abs().mean() < 0.75 * off_by
