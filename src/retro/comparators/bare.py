"""A pretrained base with nothing of ours in it: what a fitted model without neighbours has to equal."""

from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from retro.errors import ConfigError
from retro.fitting.base import look_at, open_base
from retro.model.protocol import Decoding, ModelFacts, Scored
from retro.model.read_out import score_states


class BareBase:
    """A second copy of the base, opened anew; a language model that only scores."""

    def __init__(self, base: str, facts: ModelFacts, dtype: torch.dtype = torch.float32) -> None:
        """`facts` are those of the fitted model: its ids and its context."""
        model, _ = open_base(base, dtype)
        self.base: Any = model.requires_grad_(False).eval()
        known = look_at(model)
        self.decoder: Any = known.decoder
        self.head = known.head
        self.facts = facts

    @property
    def device(self) -> torch.device:
        return next(self.base.parameters()).device

    def __call__(
        self,
        tokens: Int[Tensor, "batch seq"],
        neighbours: Tensor | None = None,
        neighbour_mask: Tensor | None = None,
    ) -> Tensor:
        _expect_none(neighbours)
        logits: Tensor = self.base(input_ids=tokens, use_cache=False).logits
        return logits

    def score(
        self,
        tokens: Int[Tensor, "batch seq"],
        targets: Int[Tensor, "batch seq"],
        neighbours: Tensor | None = None,
        neighbour_mask: Tensor | None = None,
        *,
        greedy: bool = False,
    ) -> Scored:
        _expect_none(neighbours)
        # Read out in the same parts as the fitted model: a product of other shapes rounds otherwise.
        states = self.decoder(input_ids=tokens, use_cache=False).last_hidden_state
        return score_states(self.head, states, targets, self.facts.vocab_size, self.facts.pad_id, greedy)

    def begin(self, window: int = 0) -> Decoding:
        raise ConfigError("a bare base is only scored here; expected the fitted model without retrieval")


def _expect_none(neighbours: Tensor | None) -> None:
    if neighbours is not None:
        raise ConfigError("a bare base reads no neighbours; expected none")
