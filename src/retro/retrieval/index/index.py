"""The index protocol: nearest chunks of a segment by their keys, by their tokens, or by both."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from retro.errors import ArtifactError

EXACT_BELOW = 50_000
HNSW_UP_TO = 2_000_000
DESCRIPTION = "index.json"
REMOVED = "removed.npy"


@dataclass(frozen=True)
class Entries:
    """Chunks to be added or searched for: a key and the tokens of each. Dense indexes read only keys, BM25 only tokens."""

    keys: np.ndarray
    tokens: Sequence[np.ndarray] = ()


Found = tuple[np.ndarray, np.ndarray]
"""Distances (float32) and rows (int64) of each query, nearest first, equals by row; inf and −1 where there are fewer than k."""


@runtime_checkable
class Index(Protocol):
    """Rows are numbered in the order of adding. Dense distances are squared L2, those of BM25 the negative score."""

    kind: str

    def add(self, entries: Entries) -> None: ...

    def search(self, entries: Entries, k: int, allowed: np.ndarray | None = None) -> Found:
        """The k nearest rows of each entry; rows that are removed, or False in `allowed`, are never returned."""
        ...

    def remove(self, rows: np.ndarray) -> None:
        """Never return these rows again; `save` keeps it so."""
        ...

    def save(self, folder: Path) -> None:
        """Write a folder of its own. The keys are not in it: `open_index` is given them again."""
        ...

    def __len__(self) -> int: ...


def make_index(kind: str, width: int, num_keys: int, exact_below: int = EXACT_BELOW) -> Index:
    """An empty index: `auto` (by the number of keys), `exact`, `scann`, `bm25`, `hybrid`, or a FAISS factory string such as `HNSW24`."""
    from retro.retrieval.index.dense import DenseIndex
    from retro.retrieval.index.factory import FactoryIndex
    from retro.retrieval.index.hnsw import HNSW, HnswIndex

    if kind == "auto":
        kind = kind_for_size(width, num_keys, exact_below)
    if kind == "exact":
        return DenseIndex(width)
    if kind == "scann":
        from retro.retrieval.index.scann import ScannIndex

        return ScannIndex(width)
    if kind == "bm25":
        from retro.retrieval.index.bm25 import Bm25Index

        return Bm25Index()
    if kind == "hybrid":
        from retro.retrieval.index.hybrid import HybridIndex

        return HybridIndex(
            make_index("auto", width, num_keys, exact_below), make_index("bm25", width, num_keys)
        )
    return HnswIndex(width, kind) if HNSW.fullmatch(kind) else FactoryIndex(width, kind)


def kind_for_size(width: int, num_keys: int, exact_below: int = EXACT_BELOW) -> str:
    """Exact for few keys, a graph for many, compressed keys for very many."""
    if num_keys < exact_below:
        return "exact"
    if num_keys <= HNSW_UP_TO:
        return "HNSW24"
    num_lists = 2 ** round(np.log2(4 * num_keys**0.5))
    num_bytes = next((size for size in (32, 16, 8) if size <= width // 2), 1)
    return f"OPQ{num_bytes}_{num_bytes * min(4, width // num_bytes)},IVF{num_lists}_HNSW32,PQ{num_bytes}"


def open_index(folder: Path, keys: np.ndarray) -> Index:
    """Open a saved index over the keys it was built from, which may be a memory map."""
    with reading(folder):
        description = json.loads((folder / DESCRIPTION).read_text())
        if description["num_keys"] != len(keys):
            raise ArtifactError(
                f"{folder} indexes {description['num_keys']} keys but {len(keys)} are stored; expected as many; remove it and run: retro build"
            )
        index: Any = make_index(description["kind"], keys.shape[1], len(keys))
        index.restore(folder, keys, description)
        return index


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Whatever a broken file makes the libraries say becomes one line."""
    try:
        yield
    except (RuntimeError, ValueError, OSError, EOFError, KeyError, TypeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ArtifactError(
            f"{folder} is not a readable index ({reason}); expected the files that were saved; remove it and run: retro build"
        ) from None


class Removals:
    """The rows that an index returns no more."""

    def __init__(self, num_rows: int = 0) -> None:
        self.mask = np.zeros(num_rows, dtype=bool)

    def extend(self, num_rows: int) -> None:
        self.mask = np.concatenate([self.mask, np.zeros(num_rows, dtype=bool)])

    def within(self, allowed: np.ndarray | None) -> np.ndarray | None:
        """The rows that may be returned, None if all may."""
        if not self.mask.any():
            return None if allowed is None or allowed.all() else allowed
        return ~self.mask if allowed is None else allowed & ~self.mask

    def save(self, folder: Path) -> None:
        np.save(folder / REMOVED, np.flatnonzero(self.mask))

    @staticmethod
    def open(folder: Path, num_rows: int) -> "Removals":
        removals = Removals(num_rows)
        removals.mask[np.load(folder / REMOVED)] = True
        return removals


def save_description(folder: Path, **description: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / DESCRIPTION).write_text(json.dumps(description, indent=1) + "\n")
