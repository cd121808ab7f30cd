"""Bits per byte as a function of how much of a chunk was seen before."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from retro.retrieval.neighbours import Neighbours
from retro.retrieval.overlap import longest_common_substring
from retro.scoring.intervals import Interval, bootstrap

STEPS = 64
"""Number of steps of α: one for each token of a chunk in the paper, 64."""
NEW = 0.125
"""Chunks up to this overlap count as new: at most 8 contiguous tokens of 64 are in a
neighbour."""


def chunk_overlaps(neighbours: Neighbours, num_neighbours: int = 10, batch: int = 512) -> np.ndarray:
    """r(C) of every chunk: the longest run of tokens shared with a neighbour, as a part of its length."""
    table = neighbours.table
    overlaps = np.zeros(len(table))
    for first in range(0, len(table), batch):
        chunks = np.arange(first, min(first + batch, len(table)))
        retrieved, _ = neighbours.values(chunks, min(num_neighbours, neighbours.max_neighbours))
        # Padding after a document's last chunk must not count as shared, so its id is passed
        # along.
        tokens = table.gather(chunks, table.chunk_len)
        overlaps[chunks] = (
            longest_common_substring(tokens, retrieved, table.store.pad_id) / table.lengths[chunks]
        )
    return overlaps


def read_overlaps(neighbours: Neighbours, own: np.ndarray, batch: int = 512) -> np.ndarray:
    """r(C) by the neighbours of the chunk itself, `own`, or of the chunk before, if those share more.

    A chunk's tokens read the neighbours of the chunk before. Where those go on with the chunk's own text, it
    is a copy even if its own search fails.
    """
    table = neighbours.table
    before = np.zeros(len(table))
    for first in range(1, len(table), batch):
        chunks = np.arange(first, min(first + batch, len(table)))
        retrieved, _ = neighbours.values(chunks - 1, neighbours.max_neighbours)
        tokens = table.gather(chunks, table.chunk_len)
        shared = longest_common_substring(tokens, retrieved, table.store.pad_id)
        before[chunks] = shared / table.lengths[chunks]
    # The first chunk of a document follows none.
    before[table.first[:-1]] = 0.0
    return np.maximum(own, before)


@dataclass(frozen=True)
class FilteredScore:
    """bpb(α): bits per byte of the chunks with r(C) ≤ α, and their share of the text."""

    alpha: float
    bits_per_byte: Interval
    share_of_bytes: float

    @property
    def is_eighth(self) -> bool:
        """Whether α is one of 12.5 %, 25 %, …, 100 %."""
        # Exact in floating point, since α is a multiple of 1/64.
        return self.alpha > 0 and 8 * self.alpha % 1 == 0

    @staticmethod
    def read(values: dict[str, Any]) -> "FilteredScore":
        """Read a score back from JSON."""
        return FilteredScore(**{**values, "bits_per_byte": Interval(**values["bits_per_byte"])})


def filtered_bits_per_byte(
    bits: np.ndarray, num_bytes: np.ndarray, overlaps: np.ndarray, documents: np.ndarray
) -> list[FilteredScore]:
    """bpb(α) for α from 0 to 1 by 1/64, from the bits, bytes, overlaps and documents of the chunks.

    An α below every overlap is left out. Intervals are over documents.
    """
    # One row per document and one column per α: bits in the first half, bytes in the second.
    sums = np.concatenate(
        [kept_by_alpha(values, overlaps, documents) for values in (bits, num_bytes)], axis=1
    )
    intervals = bootstrap(sums, lambda sums: sums[:, : STEPS + 1] / sums[:, STEPS + 1 :])
    shares = sums[:, STEPS + 1 :].sum(axis=0) / max(1, num_bytes.sum())
    return [
        FilteredScore(step / STEPS, interval, float(share))
        for step, (interval, share) in enumerate(zip(intervals, shares, strict=True))
        if share > 0
    ]


def kept_by_alpha(values: np.ndarray, overlaps: np.ndarray, documents: np.ndarray) -> np.ndarray:
    """For each document (row) and α (column), the sum of the values of its chunks with r(C) ≤ α."""
    num_documents = int(documents.max(initial=-1)) + 1
    # A chunk counts from the first α that reaches its overlap. Its value goes into that cell,
    # and the cumulative sum below carries it to every larger α.
    first = np.ceil(overlaps * STEPS).astype(np.int64)
    size = num_documents * (STEPS + 1)
    cells = np.bincount(documents * (STEPS + 1) + first, weights=values, minlength=size)
    kept: np.ndarray = cells.reshape(num_documents, STEPS + 1).cumsum(axis=1)
    return kept


@dataclass(frozen=True)
class OverlapBin:
    """What part of the chunks with text, and of their bytes, has an overlap in (low, high]."""

    low: float
    high: float
    share_of_chunks: float
    share_of_bytes: float


def overlap_histogram(overlaps: np.ndarray, num_bytes: np.ndarray, num_bins: int = 8) -> list[OverlapBin]:
    """The distribution of r(C)."""
    # The overlap of a chunk that holds only an end token means nothing.
    with_text = num_bytes > 0
    # Bins are closed above, so an overlap on an edge goes into the lower bin. `maximum` keeps 0
    # in the first one.
    places = np.maximum(np.ceil(overlaps[with_text] * num_bins).astype(np.int64) - 1, 0)
    chunks = np.bincount(places, minlength=num_bins)
    size = np.bincount(places, num_bytes[with_text], num_bins)
    edges = pairwise(step / num_bins for step in range(num_bins + 1))
    shares = zip(chunks / max(1, chunks.sum()), size / max(1, size.sum()), strict=True)
    return [OverlapBin(*edge, *map(float, share)) for edge, share in zip(edges, shares, strict=True)]
