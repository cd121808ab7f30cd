"""What finds neighbours of chunks while a model works: a live datastore, or passages that are given."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from retro.corpus.tokenizers.tokenizer import Tokenizer
from retro.errors import ConfigError
from retro.retrieval.datastore import Datastore
from retro.retrieval.search import Neighbour


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


class Retriever:
    """Searches a datastore for chunks of tokens, or for texts."""

    def __init__(self, datastore: Datastore, num_neighbours: int = 2) -> None:
        if num_neighbours < 1:
            raise ConfigError(
                f"num_neighbours is {num_neighbours}; expected at least 1; switch retrieval off instead"
            )
        self.datastore = datastore
        self.num_neighbours = num_neighbours

    @property
    def tokenizer(self) -> Tokenizer:
        return self.datastore.tokenizer

    @property
    def chunk_len(self) -> int:
        return self.datastore.chunk_len

    def search(
        self,
        chunks: Sequence[np.ndarray | str],
        k: int | None = None,
        sources: Sequence[str] = (),
        exclude: Sequence[str] = (),
    ) -> list[list[Neighbour]]:
        """The k nearest neighbours of each chunk, given as tokens or as text; none for a blank one.

        Fewer if there are no more. Where no k is given it is the retriever's own. Only documents of the given
        sources are found, if any are given, and none whose id or content hash is excluded.
        """
        return self.datastore.search(chunks, self.num_neighbours if k is None else k, sources, exclude)

    def values(self, chunks: Sequence[np.ndarray], k: int) -> tuple[np.ndarray, np.ndarray]:
        """[N, F] of the k nearest neighbours of each chunk, and the mask of the real ones.

        Where there is no neighbour it is all padding.
        """
        asked, entries = self.datastore.queries(chunks)
        # One snapshot for search and values: what was found is there, whatever is deleted meanwhile.
        snapshot = self.datastore.snapshot()
        found = np.full((len(chunks), k), -1, dtype=np.int64)
        if len(asked):
            _, found[asked] = snapshot.search(entries, k)
        return snapshot.values(found), found >= 0


@dataclass(frozen=True)
class Passage:
    """A text that is given instead of retrieved."""

    text: str
    title: str = ""
    score: float | None = None
    """How well it fits, the higher the better, where something has scored it."""


class Passages:
    """Finds the same given passages for every chunk, cut or padded to the length of [N, F]."""

    def __init__(self, passages: Sequence[Passage | str], tokenizer: Tokenizer, chunk_len: int) -> None:
        self.tokenizer = tokenizer
        self.chunk_len = chunk_len
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
            neighbour
            for neighbour in self.neighbours
            if neighbour.document not in exclude and (not sources or neighbour.source in sources)
        ]
        return [allowed[:k] for _ in chunks]


def stack_neighbours(
    neighbours: Sequence[Sequence[Neighbour]], retrieved_len: int, pad_id: int
) -> tuple[np.ndarray, np.ndarray]:
    """Arrays (chunk, neighbour, retrieved) and (chunk, neighbour) from lists of unequal length.

    The second is the mask of the real neighbours; the others are all padding.
    """
    k = max((len(row) for row in neighbours), default=0)
    values = np.full((len(neighbours), k, retrieved_len), pad_id, dtype=np.int64)
    mask = np.zeros((len(neighbours), k), dtype=bool)
    for row, found in enumerate(neighbours):
        for column, neighbour in enumerate(found):
            values[row, column] = neighbour.tokens
            mask[row, column] = True
    return values, mask
