"""The seam: what training, scoring, sampling, questions, the harness and a server need of a
model.

A language model promises a *distribution* over the next token, given the tokens before
it and the neighbours of the chunks that are complete. How it comes to that
distribution is its own business: RETRO reads neighbours by cross-attention, another
model may have them in its prompt, and a third mixes in what a memory says. Nothing
above this room depends on a model's class.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn


@dataclass(frozen=True)
class ModelFacts:
    """What is fixed about a model, whatever it is made of."""

    vocab_size: int
    chunk_len: int
    """Tokens of a chunk, m in the paper: after so many tokens the next neighbours may be
    read."""
    pad_id: int
    """The token that stands for nothing: no attention sees it, and it is never predicted."""
    end_id: int | None
    """The token that closes a document, where the model knows it."""
    retrieves: bool
    """Whether neighbours change anything; a baseline refuses them."""
    max_context: int | None = None
    """The longest sequence that can be read; none where any length can."""

    @property
    def retrieved_len(self) -> int:
        """Tokens of a neighbour and its continuation, r in the paper."""
        return 2 * self.chunk_len


@dataclass(frozen=True)
class Scored:
    """What a model gives to given targets."""

    log_probs: Float[Tensor, "batch seq"]
    """In nats; 0 where the target is padding."""
    greedy: Bool[Tensor, "batch seq"] | None = None
    """Where it was asked for: whether no token is more probable than the target;
    true where that is padding."""


@runtime_checkable
class Decoding(Protocol):
    """A batch of sequences that grow token by token, each on its own chunk grid.

    The last token of a chunk already reads the chunk's own neighbours, so
    these must be there when it is fed.
    """

    @property
    def batch(self) -> int:
        """How many sequences there are."""
        ...

    @property
    def completing(self) -> list[int]:
        """The sequences whose next token completes a chunk."""
        ...

    def prefill(
        self,
        prompts: Sequence[Sequence[int]],
        neighbours: Int[Tensor, "batch chunk neighbour retrieved"] | None = None,
        neighbour_mask: Bool[Tensor, "batch chunk neighbour"] | None = None,
    ) -> Float[Tensor, "batch vocab"]:
        """Begin with these prompts, and return the logits of the token after each."""
        ...

    def step(
        self,
        tokens: Sequence[int],
        neighbours: Int[Tensor, "complete neighbour retrieved"] | None = None,
        neighbour_mask: Bool[Tensor, "complete neighbour"] | None = None,
    ) -> Float[Tensor, "batch vocab"]:
        """Feed the next token of every sequence; `neighbours` are those of
        the sequences in `completing`."""
        ...

    def select(self, rows: Sequence[int]) -> None:
        """Go on with these sequences only; one that is named twice goes on twice."""
        ...


@runtime_checkable
class LanguageModel(Protocol):
    """A distribution over the next token.

    `neighbours` holds [N, F] for each complete chunk, padded with the pad
    id; `neighbour_mask` is true where a neighbour is real. Without
    neighbours a RETRO is RETRO[OFF].
    """

    @property
    def facts(self) -> ModelFacts: ...

    @property
    def device(self) -> torch.device: ...

    def __call__(
        self,
        tokens: Int[Tensor, "batch seq"],
        neighbours: Int[Tensor, "batch chunk neighbour retrieved"] | None = None,
        neighbour_mask: Bool[Tensor, "batch chunk neighbour"] | None = None,
    ) -> Float[Tensor, "batch seq vocab"]:
        """Logits of the next token at every position."""
        ...

    def score(
        self,
        tokens: Int[Tensor, "batch seq"],
        targets: Int[Tensor, "batch seq"],
        neighbours: Int[Tensor, "batch chunk neighbour retrieved"] | None = None,
        neighbour_mask: Bool[Tensor, "batch chunk neighbour"] | None = None,
        *,
        greedy: bool = False,
    ) -> Scored:
        """The log-probabilities of the targets that are no padding,
        without ever holding all logits."""
        ...

    def begin(self, window: int = 0) -> Decoding:
        """Start to generate. With a `window` self-attention sees that many
        last tokens only; 0 is all."""
        ...


@runtime_checkable
class KeyedModel(LanguageModel, Protocol):
    """A model that also shows the state each token is predicted from, which kNN-LM
    and the cache take as its key."""

    @property
    def key_width(self) -> int: ...

    def keys(
        self, tokens: Int[Tensor, "batch seq"], targets: Int[Tensor, "batch seq"] | None = None
    ) -> tuple[Float[Tensor, "batch seq width"], Float[Tensor, "batch seq"] | None]:
        """The keys at every position and, where targets are given, their
        log-probabilities; without retrieval."""
        ...


class TrainableModel(nn.Module):
    """A language model whose weights can be trained, saved and sharded:
    what the training loop takes."""

    kind: str
    """The name under which a run's folder says how it is opened."""

    @property
    @abstractmethod
    def facts(self) -> ModelFacts: ...

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @abstractmethod
    def score(
        self,
        tokens: Int[Tensor, "batch seq"],
        targets: Int[Tensor, "batch seq"],
        neighbours: Int[Tensor, "batch chunk neighbour retrieved"] | None = None,
        neighbour_mask: Bool[Tensor, "batch chunk neighbour"] | None = None,
        *,
        greedy: bool = False,
    ) -> Scored:
        """As a `LanguageModel` scores; with gradients where they are enabled."""

    @abstractmethod
    def begin(self, window: int = 0) -> Decoding: ...

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """All that is needed to build the same model anew, as plain JSON."""

    @abstractmethod
    def operators(self) -> Iterator[nn.Module]:
        """The residual parts that a block consists of; each can be
        recomputed, or sharded, by itself."""

    @abstractmethod
    def freeze_all_but_retrieval(self) -> None:
        """Train nothing but what reads neighbours: without neighbours the model
        stays what it is, bit for bit."""

    @abstractmethod
    def set_dropout(self, rate: float) -> None:
        """Another dropout in the decoder; what reads neighbours never has any."""

    @abstractmethod
    def num_parameters(self, embeddings: bool = False) -> int:
        """How many numbers are learned; the paper counts without the embedding matrices."""
