"""One version of a datastore as something that can be asked, wherever its chunks are.

The segments of this machine are one such thing (`datastore/snapshot.py`); an engine on other machines can be
another. The datastore's ledger stays the authority on what a version holds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from retro.retrieval.index.protocol import Entries


@dataclass(frozen=True)
class Version:
    """A committed state of a datastore."""

    number: int
    action: str
    documents: int
    """How many documents the action added or deleted."""
    lineage: str
    """A hash over everything added and deleted so far, in that order: what the datastore holds."""


@dataclass(frozen=True)
class Place:
    """Where a chunk lies in its document."""

    chunk: int
    """Its number among the document's chunks, from 0."""
    num_chunks: int
    start: int
    """Its first token, counted from the document's beginning."""
    end: int
    """The token after its last."""


@dataclass(frozen=True)
class Neighbour:
    """A retrieved chunk with its continuation, and where it comes from."""

    chunk: int
    """Its number in the datastore."""
    distance: float
    tokens: np.ndarray
    """[N, F], padded."""
    text: str
    document: str
    title: str
    source: str
    place: Place | None = None
    """Where in its document it lies; none for a text that was given instead of retrieved."""
    content_hash: str = ""
    """Of its document; equal for equal texts. Empty for a text that was given."""


@runtime_checkable
class Search(Protocol):
    """One version of a datastore. It never changes, and several threads may ask it at the same time.

    Chunks and documents are meant by their numbers, which are theirs for good. A number that this version
    does not hold is no error: the answer is padding, −1 or 0, as each method says.
    """

    @property
    def version(self) -> Version: ...

    def __len__(self) -> int:
        """How many chunks can be found; those without text cannot."""
        ...

    def search(
        self, entries: Entries, k: int, documents: Sequence[int] | None = None, without: Sequence[int] = ()
    ) -> tuple[np.ndarray, np.ndarray]:
        """Distances and numbers of the k nearest chunks of each entry (query, rank), nearest first.

        Of equally near chunks the lower number comes first; inf and −1 where there are no more. Only chunks
        of `documents` are found, if they are given, and none of the documents `without`.
        """
        ...

    def values(self, chunks: np.ndarray, length: int = 0) -> np.ndarray:
        """[N, F] of each chunk, or `length` tokens from its start on; padding for one that is not there."""
        ...

    def documents(self, chunks: np.ndarray) -> np.ndarray:
        """The number of each chunk's document; −1 for a chunk that is not there."""
        ...

    def content_hashes(self, chunks: np.ndarray) -> np.ndarray:
        """The short content hash of each chunk's document; 0 for a chunk that is not there."""
        ...

    def copies(self, content_hash: int) -> list[int]:
        """The numbers of all documents with this short content hash."""
        ...

    def find(self, content_hashes: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """The numbers of chunks by their document's content hash and their place in it; −1 if not there."""
        ...

    def keys(self, chunks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which of the chunks have a stored key, and the keys of those: they need not be embedded again."""
        ...
