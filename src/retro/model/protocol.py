"""The interface of a model: what training, scoring, sampling, questions and serving need.

A language model promises a *distribution* over the next token, given the tokens before it and
the neighbours of the complete chunks. How it computes that is its own business: RETRO reads
neighbours by cross-attention, another model may put them into its prompt, and a third may mix
in the distribution of a memory. Nothing above this package depends on a model's class.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from retro.errors import ConfigError, DataError


@dataclass(frozen=True)
class ModelFacts:
    """The fixed facts about a model, whatever its architecture."""

    vocab_size: int
    chunk_len: int
    """Tokens in a chunk, m in the paper; new neighbours can be read after every chunk."""
    pad_id: int
    """The padding token: nothing attends to it, and it is never predicted."""
    end_id: int | None
    """The token that closes a document, if the model knows it."""
    retrieves: bool
    """Whether the model reads neighbours; a baseline refuses them."""
    max_context: int | None = None
    """The longest sequence that the model can read; None if there is no limit."""
    has_spare_ids: bool = False
    """Whether the vocabulary may be larger than the tokenizer's, as that of many pretrained models is."""
    slides: bool = False
    """Whether a text may outgrow `max_context` behind a window, as only distances between tokens count."""

    @property
    def retrieved_len(self) -> int:
        """Tokens of a neighbour and its continuation, r in the paper."""
        return 2 * self.chunk_len

    @property
    def num_ids(self) -> int:
        """Ids that a sequence may hold: the vocabulary, and a pad id that lies behind it."""
        return max(self.vocab_size, self.pad_id + 1)

    def fits(self, num_ids: int) -> bool:
        """Whether this is the model of a tokenizer with so many ids."""
        return num_ids == self.num_ids or (self.has_spare_ids and num_ids < self.num_ids)

    def expect_context(self, length: int, what: str, way_out: str) -> None:
        """Refuse a text that is longer than the model can read; `what` needs it, `way_out` shortens it."""
        if self.max_context is not None and length > self.max_context:
            raise ConfigError(
                f"{what} {length:,} tokens; expected at most {self.max_context:,}, the longest text that "
                f"the model reads; {way_out}"
            )

    def expect_neighbours(self, tokens: Tensor, neighbours: Tensor) -> None:
        """Refuse neighbours that are not one set for each complete chunk."""
        # By hand: neighbours of batch 1 would silently broadcast over batch 2.
        expected = (tokens.shape[0], tokens.shape[1] // self.chunk_len, self.retrieved_len)
        found = (neighbours.shape[0], neighbours.shape[1], neighbours.shape[3])
        if found != expected:
            raise DataError(
                f"neighbours have (batch, complete chunks, retrieved length) {found}; expected {expected}"
            )


@dataclass(frozen=True)
class Scored:
    """How probable a model finds given targets."""

    log_probs: Float[Tensor, "batch seq"]
    """In nats; 0 where the target is padding."""
    greedy: Bool[Tensor, "batch seq"] | None = None
    """Whether no token is more probable than the target, if that was asked for;
    true at padding."""


@runtime_checkable
class Decoding(Protocol):
    """A batch of sequences that grow token by token, each on its own chunk grid.

    The last token of a chunk already reads that chunk's neighbours, so they are fed with it.
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
        """Feed the next token of every sequence; `neighbours` belong to the sequences
        in `completing`."""
        ...

    def select(self, rows: Sequence[int]) -> None:
        """Keep only these sequences; one that is named twice is duplicated."""
        ...

    def join(self, other: "Decoding") -> None:
        """Take the sequences of another decoding of the same model in, behind one's own.

        Each goes on as it would alone. The other decoding is of no use then.
        """
        ...


@runtime_checkable
class LanguageModel(Protocol):
    """A distribution over the next token.

    `neighbours` holds [N, F] for each complete chunk, padded with the pad id;
    `neighbour_mask` is true where a neighbour is real. Without neighbours a
    RETRO is RETRO[OFF].
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
        """The log-probabilities of the targets, without ever holding all logits at once."""
        ...

    def begin(self, window: int = 0) -> Decoding:
        """Start to generate; self-attention sees only the last `window` tokens, or
        all if it is 0."""
        ...


@runtime_checkable
class SharingModel(LanguageModel, Protocol):
    """A model that scores a text with several numbers of neighbours, and computes once what they share."""

    def score_each(
        self,
        tokens: Int[Tensor, "batch seq"],
        targets: Int[Tensor, "batch seq"],
        ks: Sequence[int],
        neighbours: Int[Tensor, "batch chunk neighbour retrieved"] | None = None,
        neighbour_mask: Bool[Tensor, "batch chunk neighbour"] | None = None,
        *,
        greedy: bool = False,
    ) -> list[Scored]:
        """As `score` with the first k neighbours of each chunk, for each k; 0 is no retrieval.

        There are no more neighbours than the largest k asks for.
        """
        ...


def score_each(
    model: LanguageModel,
    tokens: Int[Tensor, "batch seq"],
    targets: Int[Tensor, "batch seq"],
    ks: Sequence[int],
    neighbours: Int[Tensor, "batch chunk neighbour retrieved"] | None = None,
    neighbour_mask: Bool[Tensor, "batch chunk neighbour"] | None = None,
    *,
    greedy: bool = False,
) -> list[Scored]:
    """Score a text with each number of neighbours: together if the model can, and else one by one."""
    most = max(ks)
    retrieved = [found[:, :, :most] for found in (neighbours, neighbour_mask) if most and found is not None]
    if isinstance(model, SharingModel):
        return model.score_each(tokens, targets, ks, *retrieved, greedy=greedy)
    return [
        model.score(tokens, targets, *(found[:, :, :k] for found in retrieved if k), greedy=greedy)
        for k in ks
    ]


@runtime_checkable
class AttentiveModel(LanguageModel, Protocol):
    """A model that also tells how much it attends to each neighbour."""

    def neighbour_attention(
        self,
        tokens: Int[Tensor, "batch seq"],
        neighbours: Int[Tensor, "batch chunk neighbour retrieved"],
        neighbour_mask: Bool[Tensor, "batch chunk neighbour"] | None = None,
    ) -> Float[Tensor, "batch seq neighbour"]:
        """At each position, the part of the attention that goes to each of the neighbours read there.

        The mean over heads and layers; zero where none are read. Where a layer attends to nothing but
        neighbours the parts add up to one; where it attends to the text as well, to less.
        """
        ...


@runtime_checkable
class KeyedModel(LanguageModel, Protocol):
    """A model that also shows the state that predicts each token: the key of
    kNN-LM and the cache."""

    @property
    def key_width(self) -> int: ...

    def keys(
        self, tokens: Int[Tensor, "batch seq"], targets: Int[Tensor, "batch seq"] | None = None
    ) -> tuple[Float[Tensor, "batch seq width"], Float[Tensor, "batch seq"] | None]:
        """The keys at every position and, if targets are given, their log-probabilities.

        Both are computed without retrieval.
        """
        ...

    def watching_keys(self) -> AbstractContextManager[list[Tensor]]:
        """Within this block, collect the keys of all that the model reads, as (batch, …, width)."""
        ...


# A class rather than a protocol: training needs the parameters of an nn.Module.
class TrainableModel(nn.Module):
    """A language model that can be trained, saved and sharded: what the training loop takes."""

    kind: str
    """The name in a run's record that says how to open it."""

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
        """As `LanguageModel.score`; with gradients where they are enabled."""

    @abstractmethod
    def begin(self, window: int = 0) -> Decoding: ...

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Everything needed to build the same model again, as plain JSON."""

    @abstractmethod
    def operators(self) -> Iterator[nn.Module]:
        """The residual parts of the blocks; each can be recomputed or sharded on its own."""

    @abstractmethod
    def freeze_all_but_retrieval(self) -> None:
        """Train only what reads neighbours: without them the model stays as it
        is, bit for bit."""

    def quicken(self) -> None:
        """Get ready to generate fast, at the cost of memory and of a little precision where neighbours are
        read; a model that has nothing to gain stays as it is."""

    @abstractmethod
    def set_dropout(self, rate: float) -> None:
        """Change the decoder's dropout rate; the encoder of neighbours has none."""

    @abstractmethod
    def num_parameters(self, embeddings: bool = False) -> int:
        """The number of parameters; like the paper, it leaves out embedding
        matrices by default."""
