"""Searching the indexes of a snapshot side by side, and putting together what they find."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from retro.retrieval.datastore.segment import Segment
from retro.retrieval.index import Entries, Index
from retro.retrieval.index.keys import Allowed

SMALL = 1 << 16
"""Keys times queries that are sooner searched here than handed to another thread."""


class Part:
    """An index, and the segments whose rows it holds, one after another."""

    def __init__(self, index: Index, segments: Sequence[Segment], live: Sequence[np.ndarray]) -> None:
        """`live` are the documents of each segment that are there."""
        self.index = index
        self.segments = tuple(segments)
        self.starts = np.cumsum([0, *(len(segment.chunks) for segment in segments)])
        # None where nothing was deleted, which indexes search faster.
        self.allowed = None if all(mask.all() for mask in live) else self.rows_of(live)

    def __len__(self) -> int:
        return int(self.starts[-1])

    def rows_of(self, documents: Sequence[np.ndarray]) -> Allowed:
        """The rows of some documents, which are given for each segment as a mask over its documents."""
        masks = [mask[segment.places] for segment, mask in zip(self.segments, documents, strict=True)]
        return Allowed(np.concatenate(masks))

    def search(self, entries: Entries, k: int, allowed: Allowed | None) -> tuple[np.ndarray, np.ndarray]:
        """Distances and numbers of the nearest chunks."""
        distances, rows = self.index.search(entries, k, allowed)
        chunks = np.full(rows.shape, -1, dtype=np.int64)
        part_of = np.searchsorted(self.starts, rows, side="right") - 1
        for number in np.unique(part_of[rows >= 0]):
            here = (part_of == number) & (rows >= 0)
            chunks[here] = self.segments[number].chunks[rows[here] - self.starts[number]]
        return distances, chunks


def search_parts(
    parts: Sequence[tuple[Part, Allowed | None]], entries: Entries, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """The k nearest of all parts, which are searched at the same time where that is worth it.

    What is found does not depend on which is done first: results are taken in the order of the parts.
    """
    found = [(np.full((len(entries), k), np.inf, dtype=np.float32), np.full((len(entries), k), -1))]
    large = [number for number, (part, _) in enumerate(parts) if len(part) * len(entries) >= SMALL]
    # One of the large ones is searched by this thread.
    elsewhere = {
        number: _threads().submit(parts[number][0].search, entries, k, parts[number][1])
        for number in large[1:]
    }
    here = {
        number: part.search(entries, k, allowed)
        for number, (part, allowed) in enumerate(parts)
        if number not in elsewhere
    }
    for number in range(len(parts)):
        found.append(here[number] if number in here else elsewhere[number].result())
    distances, chunks = (np.concatenate(arrays, axis=1) for arrays in zip(*found, strict=True))
    return nearest(distances, chunks, k)


def nearest(distances: np.ndarray, chunks: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The k smallest distances of each row with their chunks.

    Of equal ones the lower chunk comes first, and what is missing (−1) comes last.
    """
    missing = chunks < 0
    last = np.where(missing, np.iinfo(np.int64).max, chunks)
    order = np.lexsort((last, np.where(missing, np.inf, distances)), axis=-1)[:, :k]
    return np.take_along_axis(distances, order, axis=1), np.take_along_axis(chunks, order, axis=1)


_pool: ThreadPoolExecutor | None = None


def _threads() -> ThreadPoolExecutor:
    """Threads that stay: FAISS computes without holding Python's lock."""
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="search")
    return _pool


def _forget_threads() -> None:
    global _pool
    _pool = None


# A process that is forked has none of its parent's threads.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)
