"""kNN-LM, SPALM's gate and the continuous cache as language models: another distribution is mixed in, token
by token.

`mixtures.py` scores given tokens, and looks at their probabilities alone; to draw a token, those of all are
needed.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from retro.comparators.mixtures import Memory
from retro.errors import ConfigError
from retro.model.protocol import Decoding, KeyedModel, ModelFacts, Scored

Weigh = Callable[[Tensor], Tensor]
"""From keys (row, width) to the weight λ of the other distribution (row)."""


def constant(weight: float) -> Weigh:
    """The same weight for every token."""
    return lambda keys: torch.full((len(keys),), weight, dtype=torch.float64)


@dataclass(frozen=True)
class Past:
    """What a sequence has read: the keys that its tokens were predicted from, and these tokens."""

    keys: Float[Tensor, "past width"]
    tokens: Int[Tensor, " past"]

    def followed(self, key: Tensor, token: int) -> "Past":
        """With the key that a token was predicted from, and the token."""
        return Past(
            torch.cat([self.keys, key[None]]), torch.cat([self.tokens, self.tokens.new_tensor([token])])
        )


class Votes(Protocol):
    """Tokens that are voted for, and how much."""

    @abstractmethod
    def of(self, key: Float[Tensor, " width"], past: Past) -> tuple[Tensor, Tensor]:
        """The tokens and their shares, which add up to one; none if there is nothing to vote."""


@dataclass(frozen=True)
class FromMemory(Votes):
    """kNN-LM: the tokens behind the nearest keys of a memory."""

    memory: Memory
    sharpness: float

    def of(self, key: Float[Tensor, " width"], past: Past) -> tuple[Tensor, Tensor]:
        (nearest,), (rows,) = self.memory.nearest(key[None].float())
        return self.memory.values[rows], torch.softmax(-self.sharpness * nearest.double(), 0)


@dataclass(frozen=True)
class FromPast(Votes):
    """The continuous cache: the tokens of the text itself, by how alike they were predicted."""

    sharpness: float

    def of(self, key: Float[Tensor, " width"], past: Past) -> tuple[Tensor, Tensor]:
        likeness = past.keys.float() @ key.float()
        return past.tokens, torch.softmax(self.sharpness * likeness.double(), 0)


class MixedModel:
    """A model whose distribution is mixed with votes, weighed by a constant or by a gate."""

    def __init__(self, model: KeyedModel, votes: Votes, weigh: Weigh) -> None:
        self.model = model
        self.votes = votes
        self.weigh = weigh

    @property
    def facts(self) -> ModelFacts:
        return replace(self.model.facts, retrieves=False)

    @property
    def device(self) -> torch.device:
        return self.model.device

    def __call__(
        self,
        tokens: Int[Tensor, "batch seq"],
        neighbours: Int[Tensor, "batch chunk neighbour retrieved"] | None = None,
        neighbour_mask: Bool[Tensor, "batch chunk neighbour"] | None = None,
    ) -> Float[Tensor, "batch seq vocab"]:
        """Logarithms of the mixture's probabilities at every position."""
        _expect_none(neighbours)
        with self.model.watching_keys() as seen:
            logits = self.model(tokens)
        keys = seen[-1]
        rows = [
            torch.stack(
                [
                    self.mix(row_logits[place], row_keys[place], Past(row_keys[:place], row[1 : place + 1]))
                    for place in range(len(row))
                ]
            )
            for row, row_logits, row_keys in zip(tokens, logits, keys, strict=True)
        ]
        return torch.stack(rows)

    def score(
        self,
        tokens: Int[Tensor, "batch seq"],
        targets: Int[Tensor, "batch seq"],
        neighbours: Int[Tensor, "batch chunk neighbour retrieved"] | None = None,
        neighbour_mask: Bool[Tensor, "batch chunk neighbour"] | None = None,
        *,
        greedy: bool = False,
    ) -> Scored:
        log_probs = self(tokens, neighbours, neighbour_mask)
        wanted = targets != self.facts.pad_id
        found = log_probs.gather(-1, targets.clamp_max(self.facts.vocab_size - 1)[..., None])[..., 0]
        best = (log_probs.argmax(-1) == targets) | ~wanted if greedy else None
        return Scored(torch.where(wanted, found, torch.zeros_like(found)), best)

    def begin(self, window: int = 0) -> Decoding:
        return MixedDecoding(self, window)

    def mix(
        self, logits: Float[Tensor, " vocab"], key: Float[Tensor, " width"], past: Past
    ) -> Float[Tensor, " vocab"]:
        """Logarithms of the mixture of one token's distributions; the model's own where nothing votes."""
        own = logits.double().log_softmax(-1)
        tokens, shares = self.votes.of(key, past)
        if not len(tokens):
            return own
        weight = self.weigh(key[None])[0].double()
        voted = torch.zeros_like(own).index_add(0, tokens.to(own.device), shares.to(own))
        return torch.logaddexp(torch.log1p(-weight) + own, torch.log(weight) + voted.log())


class MixedDecoding:
    """A batch of sequences in progress, each with its own past."""

    def __init__(self, model: MixedModel, window: int = 0) -> None:
        self.model = model
        self.inner = model.model.begin(window)
        self.pasts: list[Past] = []
        self.keys: list[Tensor] = []
        """What the next token of each sequence is predicted from."""

    @property
    def batch(self) -> int:
        return self.inner.batch

    @property
    def completing(self) -> list[int]:
        return self.inner.completing

    @torch.inference_mode()
    def prefill(
        self,
        prompts: Sequence[Sequence[int]],
        neighbours: Int[Tensor, "batch chunk neighbour retrieved"] | None = None,
        neighbour_mask: Bool[Tensor, "batch chunk neighbour"] | None = None,
    ) -> Float[Tensor, "batch vocab"]:
        """Begin with these prompts, and return the logits of the token after each."""
        _expect_none(neighbours)
        logits = self.inner.prefill(prompts)
        self.pasts, self.keys = [], []
        for prompt in prompts:
            # Each by itself: how a model pads a batch of prompts is its own business.
            tokens = torch.tensor([prompt], device=self.model.device)
            keys = self.model.model.keys(tokens)[0][0]
            self.pasts.append(Past(keys[:-1], tokens[0, 1:]))
            self.keys.append(keys[-1])
        return self._mixed(logits)

    @torch.inference_mode()
    def step(
        self,
        tokens: Sequence[int],
        neighbours: Int[Tensor, "complete neighbour retrieved"] | None = None,
        neighbour_mask: Bool[Tensor, "complete neighbour"] | None = None,
    ) -> Float[Tensor, "batch vocab"]:
        """Feed the next token of every sequence, and return the logits of the one after."""
        _expect_none(neighbours)
        known = zip(self.pasts, self.keys, tokens, strict=True)
        self.pasts = [past.followed(key, token) for past, key, token in known]
        with self.model.model.watching_keys() as seen:
            logits = self.inner.step(tokens)
        # One token a sequence, with an axis for time or without.
        self.keys = list(seen[-1].reshape(len(tokens), -1, seen[-1].shape[-1])[:, -1])
        return self._mixed(logits)

    def select(self, rows: Sequence[int]) -> None:
        """Keep only these sequences; one that is named twice is duplicated."""
        self.inner.select(rows)
        self.pasts = [self.pasts[row] for row in rows]
        self.keys = [self.keys[row] for row in rows]

    def join(self, other: Decoding) -> None:
        """Take the sequences of another decoding of this model in, behind one's own."""
        if not isinstance(other, MixedDecoding) or other.model is not self.model:
            raise ConfigError("a decoding of another model was to join; expected one of the same")
        self.inner.join(other.inner)
        self.pasts += other.pasts
        self.keys += other.keys

    def _mixed(self, logits: Tensor) -> Tensor:
        rows = zip(logits, self.keys, self.pasts, strict=True)
        return torch.stack([self.model.mix(own, key, past) for own, key, past in rows]).to(logits.dtype)


def _expect_none(neighbours: Tensor | None) -> None:
    if neighbours is not None:
        raise ConfigError("a mixture of distributions reads no neighbours here; expected none")
