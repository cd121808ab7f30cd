"""What decoding remembers of a pointer: the tokens that vote now."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from retro.model.pointer import Pointer, Vote, Voters


class VoterCache:
    """The neighbours' tokens that vote in each sequence now, and the states that they are matched by."""

    def __init__(self, pointer: Pointer, batch: int, like: Tensor) -> None:
        self.pointer = pointer
        self.keys = like.new_zeros(batch, 0, like.shape[-1])
        self.tokens = torch.zeros(batch, 0, dtype=torch.long, device=like.device)
        self.is_voter = torch.zeros(batch, 0, dtype=torch.bool, device=like.device)

    def store(self, rows: Sequence[int], voters: Voters) -> None:
        """Keep the voters (rows, voter) that these sequences have from now on."""
        index = torch.tensor(rows, dtype=torch.long, device=self.keys.device)
        count = voters.tokens.shape[-1]
        self._widen(count)
        self.keys[index, :count] = voters.keys
        self.tokens[index, :count] = voters.tokens
        # A sequence with fewer neighbours than last time must not hear the old ones behind them.
        self.is_voter[index] = False
        self.is_voter[index, :count] = voters.is_voter

    def clear(self, rows: Sequence[int]) -> None:
        """Nobody votes in these sequences from now on."""
        self.is_voter[list(rows)] = False

    def select(self, rows: Sequence[int]) -> None:
        """Keep only these sequences; one that is named twice is duplicated."""
        index = torch.tensor(rows, dtype=torch.long, device=self.keys.device)
        self.keys, self.tokens, self.is_voter = self.keys[index], self.tokens[index], self.is_voter[index]

    def join(self, other: "VoterCache") -> None:
        """Append the sequences of another cache."""
        count = max(self.tokens.shape[1], other.tokens.shape[1])
        self._widen(count)
        other._widen(count)
        self.keys = torch.cat([self.keys, other.keys])
        self.tokens = torch.cat([self.tokens, other.tokens])
        self.is_voter = torch.cat([self.is_voter, other.is_voter])

    def _widen(self, count: int) -> None:
        """Make room for so many voters in each sequence; the new places are empty."""
        missing = count - self.tokens.shape[1]
        if missing > 0:
            pad = torch.nn.functional.pad
            self.keys = pad(self.keys, (0, 0, 0, missing))
            self.tokens = pad(self.tokens, (0, missing))
            self.is_voter = pad(self.is_voter, (0, missing))

    def vote(self, states: Float[Tensor, "batch width"]) -> Vote | None:
        """The vote at the newest token of each sequence; None if there is none in any."""
        if not self.is_voter.any():
            return None
        queries = self.pointer.standardise(states)[:, None, None]
        vote = self.pointer.vote(queries, self.keys[:, None], self.tokens[:, None], self.is_voter[:, None])
        return vote.at((slice(None), 0, 0))
