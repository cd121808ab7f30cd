"""Where neighbours come from while sampling, and when they are looked for."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from retro.corpus.tokenizers.tokenizer import Tokenizer
from retro.errors import ConfigError
from retro.retrieval.datastore.datastore import Neighbour


@runtime_checkable
class Searcher(Protocol):
    """Finds neighbours of chunks, as a datastore's `Retriever` and `Passages` do."""

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def chunk_len(self) -> int: ...

    @property
    def num_neighbours(self) -> int:
        """How many are found where a request does not say."""
        ...

    def search(
        self, chunks: Sequence[np.ndarray], k: int, sources: Sequence[str] = (), exclude: Sequence[str] = ()
    ) -> list[list[Neighbour]]:
        """At most k neighbours of each chunk, nearest first; none for a blank one."""
        ...


@dataclass(frozen=True, kw_only=True)
class Retrieval:
    """What is retrieved for one request."""

    num_neighbours: int | None = None
    """Neighbours of each chunk; the retriever's own number if none is given. Where fewer are found, the rest is masked."""
    every: int = 1
    """Only every so many chunks retrieve; those between have no neighbours, and the model goes on as RETRO[OFF] behind them."""
    sources: tuple[str, ...] = ()
    """Only documents of these sources; empty: all."""
    exclude: tuple[str, ...] = ()
    """Documents, by id or content hash, that must not be retrieved."""

    def __post_init__(self) -> None:
        if self.num_neighbours is not None and self.num_neighbours < 1:
            raise ConfigError(
                f"num_neighbours is {self.num_neighbours}; expected at least 1; switch retrieval off instead"
            )
        if self.every < 1:
            raise ConfigError(f"every is {self.every}; expected at least 1, which retrieves at each chunk")

    def find(self, searcher: Searcher, chunks: Sequence[tuple[int, Sequence[int]]]) -> list[list[Neighbour]]:
        """Neighbours of numbered chunks, in one search; the first chunk of a sequence has number 0."""
        due = [place for place, (number, _) in enumerate(chunks) if (number + 1) % self.every == 0]
        found: list[list[Neighbour]] = [[] for _ in chunks]
        if due:
            k = self.num_neighbours or searcher.num_neighbours
            wanted = [np.array(chunks[place][1]) for place in due]
            for place, neighbours in zip(
                due, searcher.search(wanted, k, self.sources, self.exclude), strict=True
            ):
                found[place] = neighbours
        return found


@dataclass(frozen=True)
class Passage:
    """A text that is given instead of retrieved."""

    text: str
    title: str = ""
    score: float | None = None
    """How well it fits, the higher the better, where something has scored it."""


class Passages:
    """A retriever that finds the same given passages for every chunk, cut or padded to the length of [N, F]."""

    def __init__(self, passages: Sequence[Passage | str], tokenizer: Tokenizer, chunk_len: int) -> None:
        self.tokenizer, self.chunk_len = tokenizer, chunk_len
        given = [Passage(passage) if isinstance(passage, str) else passage for passage in passages]
        if not any(passage.text.strip() for passage in given):
            raise ConfigError("no passage holds text; expected at least one; switch retrieval off instead")
        self.neighbours = [
            self._neighbour(row, passage) for row, passage in enumerate(given) if passage.text.strip()
        ]
        self.num_neighbours = len(self.neighbours)

    def _neighbour(self, row: int, passage: Passage) -> Neighbour:
        tokens = np.full(2 * self.chunk_len, self.tokenizer.pad_id, dtype=np.int64)
        kept = self.tokenizer.encode(passage.text)[: len(tokens)]
        tokens[: len(kept)] = kept
        name = passage.title or f"passage {row + 1}"
        return Neighbour(row, 0.0, tokens, self.tokenizer.decode(kept), name, name, "given")

    def search(
        self, chunks: Sequence[np.ndarray], k: int, sources: Sequence[str] = (), exclude: Sequence[str] = ()
    ) -> list[list[Neighbour]]:
        allowed = [
            n for n in self.neighbours if n.document not in exclude and (not sources or n.source in sources)
        ]
        return [allowed[:k] for _ in chunks]


def stack_neighbours(
    neighbours: Sequence[Sequence[Neighbour]], retrieved_len: int, pad_id: int
) -> tuple[np.ndarray, np.ndarray]:
    """Arrays (chunk, neighbour, retrieved) and (chunk, neighbour) from lists of unequal length; what is missing is masked."""
    k = max((len(row) for row in neighbours), default=0)
    values = np.full((len(neighbours), k, retrieved_len), pad_id, dtype=np.int64)
    mask = np.zeros((len(neighbours), k), dtype=bool)
    for row, found in enumerate(neighbours):
        for column, neighbour in enumerate(found):
            values[row, column], mask[row, column] = neighbour.tokens, True
    return values, mask
