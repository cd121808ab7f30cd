"""Search by key: exact search over float16 keys, and what all indexes over keys have in common."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from retro.errors import ArtifactError
from retro.retrieval.index.keys import Allowed, KeyParts, Keys
from retro.retrieval.index.protocol import Entries, Found, Removals, save_description

BLOCK = 16_384
"""Keys that are float32 at one time."""
SCRATCH = 1 << 20
"""Numbers held at a time while distances are computed."""
SLACK = 16
"""How many more than k a quick estimate must find, so that its rounding cannot push out a true one."""
FEW_QUERIES = 20
"""Below so many queries, each is better compared with the float16 keys by itself."""
FEW_ALLOWED = 0.1
"""Below this part of the rows, looking at the allowed ones is surer and cheaper than an approximate index."""


class DenseIndex:
    """Exact search by squared L2 distance. Approximate indexes derive from it and only propose candidates.

    Distances are always computed from the float16 keys by the same float32 arithmetic, so those of different
    indexes and segments are equal where the keys are, and can be compared and merged.
    """

    kind = "exact"
    effort = 0
    """How hard an approximate index searches; `tuning.tune` chooses it."""

    def __init__(self, width: int) -> None:
        self.keys: Keys = np.zeros((0, width), dtype=np.float16)
        self.removals = Removals()
        self.report: dict[str, Any] | None = None

    def __len__(self) -> int:
        return len(self.keys)

    def add(self, entries: Entries) -> None:
        """The first keys are kept as they come, so that a memory map stays one."""
        added = np.ascontiguousarray(entries.keys, dtype=np.float16)
        self.keys = np.concatenate([self.keys[:], added]) if len(self) else added
        self.removals.extend(len(added))

    def remove(self, rows: np.ndarray) -> None:
        self.removals.remove(rows)

    def efforts(self) -> list[int]:
        """What `effort` may be, cheapest first; nothing where search is exact."""
        return []

    def settings(self) -> list[dict[str, int]]:
        """What may be tuned, by the names of attributes, cheapest first."""
        return [{"effort": effort} for effort in self.efforts()]

    def query_rows(self, num_queries: int) -> np.ndarray:
        """Rows whose keys may be asked with to measure a search, of which so many are wanted."""
        return np.flatnonzero(~self.removals.mask)

    def search(self, entries: Entries, k: int, allowed: np.ndarray | Allowed | None = None) -> Found:
        queries = np.ascontiguousarray(entries.keys, dtype=np.float32)
        within = self.removals.within(allowed)
        num_allowed = len(self) if within is None else within.count
        distances = np.full((len(queries), k), np.inf, dtype=np.float32)
        rows = np.full((len(queries), k), -1, dtype=np.int64)
        reach = min(k, num_allowed)
        if reach and len(queries):
            distances[:, :reach], rows[:, :reach] = self._search(
                queries, reach, within, num_allowed / len(self)
            )
        return distances, rows

    def _search(self, queries: np.ndarray, k: int, allowed: Allowed | None, share: float) -> Found:
        # An index without efforts searches exactly by itself.
        if not self.efforts() or share < FEW_ALLOWED:
            return nearest(self.keys, queries, k, allowed)
        distances, rows = self._found(queries, k, allowed, share)
        # A mask can leave a graph or a list with fewer than k although there are k: look at all keys then.
        short = np.flatnonzero(rows[:, -1] < 0)
        if len(short):
            distances[short], rows[short] = nearest(self.keys, queries[short], k, allowed)
        return distances, rows

    def _found(self, queries: np.ndarray, k: int, allowed: Allowed | None, share: float) -> Found:
        """What the approximate index finds, with true distances, equals by row."""
        rows = self._candidates(queries, k, allowed, share)
        if rows.size and not -1 <= rows.min() <= rows.max() < len(self.keys):
            raise ArtifactError(
                f"the index {self.kind} names rows that are not among its {len(self.keys):,} keys; "
                "expected the one that was built; restore its file, or build the datastore again"
            )
        return rank(self.keys, queries, rows, k)

    def _candidates(self, queries: np.ndarray, k: int, allowed: Allowed | None, share: float) -> np.ndarray:
        """At least k allowed rows for each query, in any order; −1 where none was found.

        `share` is the part of all rows that is allowed.
        """
        raise NotImplementedError

    def save(self, folder: Path) -> None:
        save_description(folder, **self.description())
        self.removals.save(folder)

    def description(self) -> dict[str, Any]:
        """What `restore` is given, beside the files that `save` writes."""
        return {
            "kind": self.kind,
            "num_keys": len(self),
            "effort": self.effort,
            "report": self.report,
            "approximate": bool(self.efforts()),
        }

    def restore(self, folder: Path, keys: Keys, description: dict[str, Any]) -> None:
        self.keys = keys if isinstance(keys, KeyParts) else np.ascontiguousarray(keys, dtype=np.float16)
        self.removals = Removals.open(folder, len(keys))
        self.effort = int(description["effort"])
        if not 0 <= self.effort < 1 << 31:
            raise ValueError(f"an effort of {self.effort}")
        self.report = dict(description["report"] or {}) or None


def distances_of(keys: Keys, queries: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Of each query to its own candidate rows; inf where there is none (−1)."""
    distances = np.empty(rows.shape, dtype=np.float32)
    # So many queries at a time that the differences to all their candidates fit into the scratch space.
    step = max(1, SCRATCH // (rows.shape[1] * keys.shape[1]))
    for start in range(0, len(queries), step):
        part = slice(start, start + step)
        difference = keys[rows[part]].astype(np.float32)
        difference -= queries[part, None]
        np.einsum("nkd,nkd->nk", difference, difference, out=distances[part])
    distances[rows < 0] = np.inf
    return distances


def rank(keys: Keys, queries: np.ndarray, rows: np.ndarray, k: int) -> Found:
    """The k nearest of each query's own candidate rows, equals by row."""
    distances, rows = by_row(distances_of(keys, queries, rows), rows)
    return distances[:, :k], rows[:, :k]


def by_row(distances: np.ndarray, rows: np.ndarray) -> Found:
    """The same, sorted by distance and, among equals, by row."""
    # The last key of lexsort is the first that counts.
    order = np.lexsort((rows, distances), axis=-1)
    return np.take_along_axis(distances, order, axis=1), np.take_along_axis(rows, order, axis=1)


def nearest(keys: Keys, queries: np.ndarray, k: int, allowed: Allowed | None) -> Found:
    """Exactly the k nearest allowed rows, of which there are at least k.

    A quick estimate proposes a few more than k. Where a row that it left out could be as near as the k-th, as
    among many equal keys, it is asked for more.
    """
    if isinstance(keys, KeyParts):
        return _nearest_in_parts(keys, queries, k, allowed)
    total = len(keys) if allowed is None else allowed.count
    distances = np.empty((len(queries), k), dtype=np.float32)
    rows = np.empty((len(queries), k), dtype=np.int64)
    open_queries, reach = np.arange(len(queries)), min(k + SLACK, total)
    estimate: Callable[..., Found] = (
        estimate_in_blocks if len(queries) >= FEW_QUERIES else estimate_one_by_one
    )
    while len(open_queries):
        asked = queries[open_queries]
        estimates, candidates = estimate(keys, asked, reach, allowed)
        distances[open_queries], rows[open_queries] = rank(keys, asked, candidates, k)
        # The worst estimate bounds what was left out. If the true k-th is nearer by more than the estimate's
        # rounding, which grows with the length of the query, nothing better can be missing.
        last = estimates[:, -1]
        rounding = 1e-5 * (last + np.einsum("nd,nd->n", asked, asked))
        doubtful = (distances[open_queries, -1] >= last - rounding) & (reach < total)
        open_queries, reach = open_queries[doubtful], min(8 * reach, total)
    return distances, rows


def _nearest_in_parts(keys: KeyParts, queries: np.ndarray, k: int, allowed: Allowed | None) -> Found:
    """The same over several arrays of keys: the best of what each of them has."""
    distances = [np.zeros((len(queries), 0), dtype=np.float32)]
    rows = [np.zeros((len(queries), 0), dtype=np.int64)]
    for start, part in keys:
        within = None if allowed is None else allowed.part(start, start + len(part))
        reach = min(k, len(part) if within is None else within.count)
        if reach:
            found_distances, found = nearest(part, queries, reach, within)
            distances.append(found_distances)
            rows.append(found + start)
    best = by_row(np.concatenate(distances, axis=1), np.concatenate(rows, axis=1))
    return best[0][:, :k], best[1][:, :k]


def estimate_in_blocks(keys: np.ndarray, queries: np.ndarray, k: int, allowed: Allowed | None) -> Found:
    """Matrix products of the queries with one block of keys after another."""
    allowed_rows = np.arange(len(keys)) if allowed is None else np.flatnonzero(allowed.mask)
    best = (np.zeros((len(queries), 0), dtype=np.float32), np.zeros((len(queries), 0), dtype=np.int64))
    for start in range(0, len(allowed_rows), BLOCK):
        block = allowed_rows[start : start + BLOCK]
        # Without a mask a block is a slice, which copies nothing.
        part = keys[start : start + BLOCK] if allowed is None else keys[block]
        distances, found = faiss.knn(queries, part.astype(np.float32), min(k, len(block)))
        distances, rows = np.hstack([best[0], distances]), np.hstack([best[1], block[found]])
        # The best of the blocks before stand first, so a stable sort keeps the lower row first among equals.
        order = np.argsort(distances, axis=1, kind="stable")[:, :k]
        best = np.take_along_axis(distances, order, axis=1), np.take_along_axis(rows, order, axis=1)
    return best


def estimate_one_by_one(keys: np.ndarray, queries: np.ndarray, k: int, allowed: Allowed | None) -> Found:
    """Every distance by itself, straight from the float16 keys.

    Better than blocks where only few queries would share the conversion to float32.
    """
    parameters = faiss.SearchParameters(sel=selector(allowed)) if allowed is not None else None
    return float16_storage(keys).search(queries, k, params=parameters)


def selector(allowed: Allowed) -> faiss.IDSelectorBitmap:
    return faiss.IDSelectorBitmap(allowed.bits)


def float16_storage(keys: np.ndarray) -> faiss.IndexScalarQuantizer:
    """A FAISS index of float16 vectors that are our keys themselves, not a copy; the keys must outlive it."""
    storage = faiss.IndexScalarQuantizer(keys.shape[1], faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_L2)
    codes = storage.codes
    pointer = faiss.swig_ptr(keys.reshape(-1).view(np.uint8))
    # FAISS keeps its codes in a vector that can also be a view of foreign memory; this makes it one.
    codes.is_owned = False
    codes.view_data = pointer
    codes.c_ptr = pointer
    codes.view_size = codes.c_size = keys.nbytes
    storage.ntotal = len(keys)
    return storage
