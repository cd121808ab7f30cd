"""One index of compressed keys in slices, by its rows: together they find what the whole finds.

Every slice visits the lists that the whole would visit, and proposes as many candidates. Of all of them those
stay that the whole would have ranked again, by the distances that their codes give; distances to their keys
are computed where the keys are.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from retro.retrieval.index.compressed import CompressedIndex, limits_of
from retro.retrieval.index.exact import by_row, distances_of, nearest
from retro.retrieval.index.keys import Allowed
from retro.retrieval.index.protocol import Found


@dataclass(frozen=True)
class Proposed:
    """Candidates of one slice (query, candidate); −1 where there are no more."""

    reach: int
    """How many the whole would have ranked again, and more only if they are equally near."""
    estimates: np.ndarray
    """Their distances as the codes give them."""
    rows: np.ndarray
    distances: np.ndarray
    """To their keys."""


def propose(
    slice_: CompressedIndex, queries: np.ndarray, k: int, allowed: Allowed | None, share: float, wider: int
) -> Proposed:
    """What a slice has to say; `share` is the part of all rows of the whole that is allowed."""
    queries = np.ascontiguousarray(queries, dtype=np.float32)
    estimates, rows = slice_.proposed(queries, k, allowed, share, wider)
    return Proposed(slice_.reach(k), estimates, rows, distances_of(slice_.keys, queries, rows))


def look_at_all(slice_: CompressedIndex, queries: np.ndarray, k: int, allowed: Allowed) -> Proposed:
    """Exactly the nearest of the allowed rows, which are all in the slice."""
    distances = np.full((len(queries), k), np.inf, dtype=np.float32)
    rows = np.full((len(queries), k), -1, dtype=np.int64)
    reach = min(k, allowed.count)
    if reach and len(queries):
        queries = np.ascontiguousarray(queries, dtype=np.float32)
        distances[:, :reach], rows[:, :reach] = nearest(slice_.keys, queries, reach, allowed)
    return Proposed(k, distances, rows, distances)


def put_together(slices: Sequence[Proposed], queries: np.ndarray, k: int) -> Found:
    """The k nearest of the candidates that the whole would have ranked again."""
    estimates = np.concatenate([each.estimates for each in slices], axis=1)
    rows = np.concatenate([each.rows for each in slices], axis=1)
    distances = np.concatenate([each.distances for each in slices], axis=1)
    estimates = np.where(rows < 0, np.inf, estimates)
    dropped = (rows < 0) | (
        estimates > limits_of(estimates, np.asarray(queries, dtype=np.float32), slices[0].reach)
    )
    # Sorted to the end by their distance alone: what is kept has another.
    found, found_rows = by_row(np.where(dropped, np.inf, distances), np.where(dropped, -1, rows))
    return found[:, :k], found_rows[:, :k]
