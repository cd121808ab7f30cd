"""What a search engine must do to serve a datastore, wherever it runs.

An engine holds the key of every chunk by its number, and the number of its document; neither is ever given
again, so merges and compactions of files change nothing for it. It proposes chunks. What a version holds is
the ledger's to say, and distances are computed from the datastore's own keys (`datastore/elsewhere.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np

from retro.errors import ArtifactError
from retro.retrieval.index.protocol import Found

RAY = "ray"
"""The kind that is no `Engine`: processes that hold the datastore's own files (`actors.py`)."""


class EngineError(ArtifactError):
    """An engine that cannot be reached, was lost, or holds something else than the datastore."""


class EngineLostError(EngineError):
    """An engine that did not answer; whoever asked adds what to do about it."""


@dataclass(frozen=True, kw_only=True)
class EngineSetting:
    """Which engine a datastore is searched by, as its ledger keeps it."""

    address: str
    """`milvus:` and a file, or the address of a cluster; `ray`, with `:` and an address or without."""
    collection: str
    effort: int = 0
    """How hard it searches, as it was tuned; 0 where it searches exactly."""
    recall_at_10: float = 0.0
    """Part of the true ten nearest that it found when it was filled."""
    latency_ms: float = 0.0
    """Of one query then."""
    parts: int = 0
    """Into how many parts processes of a Ray cluster divide it; 0 for other engines."""
    replicas: int = 0
    """How many of them hold each part."""

    @property
    def holds_files(self) -> bool:
        """Whether it holds the datastore's own segments and indexes, and no keys that it was sent."""
        return self.address.partition(":")[0] == RAY

    def is_like(self, other: "EngineSetting") -> bool:
        """Whether it is about the same processes."""
        return replace(self, recall_at_10=0.0, latency_ms=0.0) == replace(
            other, recall_at_10=0.0, latency_ms=0.0
        )

    def __str__(self) -> str:
        return f"{self.address} ({self.collection})"


@dataclass(frozen=True)
class Holding:
    """What an engine says that it holds."""

    first: str
    """The lineage of the datastore's first version: which datastore it is."""
    lineage: str
    """The lineage of the version whose chunks it holds; empty while it is filled for the first time."""


@runtime_checkable
class Engine(Protocol):
    """A collection of keys. Several threads may search it at the same time.

    Whatever goes wrong with it is an `EngineLostError` of one line.
    """

    most: int
    """The most neighbours of one query."""

    def holding(self) -> Holding | None:
        """None if there is no such collection."""
        ...

    def begin(self, width: int, num_keys: int, holding: Holding) -> None:
        """Make the collection anew and empty, for about so many keys."""
        ...

    def fits(self, num_keys: int) -> bool:
        """Whether the collection that is there was made for so many keys, and need not be made anew."""
        ...

    def put(self, chunks: np.ndarray, documents: np.ndarray, keys: np.ndarray) -> None:
        """Hold these chunks; those that it has already are replaced."""
        ...

    def remove(self, documents: Sequence[int]) -> None:
        """Hold no chunk of these documents."""
        ...

    def finish(self, holding: Holding) -> None:
        """Have all of it on disk, ready to be searched, and say from now on that it holds this."""
        ...

    def efforts(self) -> list[int]:
        """How hard it may search, cheapest first; 0 alone where it searches exactly."""
        ...

    def search(
        self,
        queries: np.ndarray,
        k: int,
        effort: int,
        documents: Sequence[int] | None = None,
        without: Sequence[int] = (),
    ) -> Found:
        """Squared distances and numbers of the nearest chunks; inf and −1 where it finds no more.

        Filters may be left aside if they are too long for it.
        """
        ...

    def close(self) -> None: ...
