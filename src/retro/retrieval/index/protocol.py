"""The index protocol: the nearest chunks of a segment by their keys, by their tokens, or by both."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from retro.retrieval.index.keys import Allowed

DESCRIPTION = "index.json"
REMOVED = "removed.npy"


@dataclass(frozen=True)
class Entries:
    """Chunks to add or to search for: a key and the tokens of each.

    Indexes over keys read the keys alone, BM25 the tokens alone.
    """

    keys: np.ndarray
    tokens: Sequence[np.ndarray] = ()

    def __len__(self) -> int:
        return len(self.keys)

    def select(self, rows: np.ndarray) -> "Entries":
        """Some of the entries, in the given order."""
        tokens = [self.tokens[int(row)] for row in rows] if len(self.tokens) else ()
        return Entries(self.keys[rows], tokens)


Found = tuple[np.ndarray, np.ndarray]
"""Distances (float32) and rows (int64) of each query, nearest first and equals by row.

Where there are fewer than k, the rest is inf and −1.
"""


@runtime_checkable
class Index(Protocol):
    """Rows are numbered in the order of adding.

    Distances between keys are squared L2; those of BM25 are the negative score.
    """

    kind: str

    def add(self, entries: Entries) -> None: ...

    def search(self, entries: Entries, k: int, allowed: np.ndarray | Allowed | None = None) -> Found:
        """The k nearest rows of each entry; never rows that are removed, or False in `allowed`.

        Several threads may search at the same time.
        """
        ...

    def remove(self, rows: np.ndarray) -> None:
        """Never return these rows again; `save` keeps it so."""
        ...

    def save(self, folder: Path) -> None:
        """Write a folder of its own. The keys are not in it: `open_index` is given them again."""
        ...

    def __len__(self) -> int: ...


class Removals:
    """The rows that an index no longer returns."""

    def __init__(self, num_rows: int = 0) -> None:
        self.mask = np.zeros(num_rows, dtype=bool)
        self._others: Allowed | None = None
        """All other rows, if any was removed."""

    def extend(self, num_rows: int) -> None:
        self.mask = np.concatenate([self.mask, np.zeros(num_rows, dtype=bool)])
        self._count()

    def remove(self, rows: np.ndarray) -> None:
        self.mask[rows] = True
        self._count()

    def _count(self) -> None:
        # Here, not in every search: it takes as long as there are rows.
        self._others = Allowed(~self.mask) if self.mask.any() else None

    @property
    def num_left(self) -> int:
        return len(self.mask) if self._others is None else self._others.count

    def within(self, allowed: np.ndarray | Allowed | None) -> Allowed | None:
        """The rows that may be returned; None if all may."""
        allowed = Allowed.of(allowed)
        if allowed is None:
            return self._others
        if self._others is None:
            return None if allowed.count == len(allowed) else allowed
        return allowed.without(self.mask)

    def save(self, folder: Path) -> None:
        np.save(folder / REMOVED, np.flatnonzero(self.mask))

    @staticmethod
    def open(folder: Path, num_rows: int) -> "Removals":
        removals = Removals(num_rows)
        removals.remove(np.load(folder / REMOVED).astype(np.int64, casting="safe"))
        return removals


def save_description(folder: Path, **description: Any) -> None:
    """What `open_index` must know before it can read the rest of the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / DESCRIPTION).write_text(json.dumps(description, indent=1) + "\n")
