"""The pointer: a vote of the neighbours' tokens for the next one."""

import torch
from torch.nn import functional as F

from retro.model.pointer import Pointer


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
