"""Bits per byte as a function of how much of a chunk was seen before."""

from dataclasses import dataclass

import numpy as np

from retro.retrieval.neighbours import Neighbours
from retro.retrieval.overlap import longest_common_substring

ALPHAS = (0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0)


def chunk_overlaps(neighbours: Neighbours, num_neighbours: int = 10, batch: int = 512) -> np.ndarray:
    """r(C) of every chunk: the longest run of tokens shared with its nearest neighbours, as a part of its length."""
    table = neighbours.table
    overlaps = np.zeros(len(table))
    for first in range(0, len(table), batch):
        chunks = np.arange(first, min(first + batch, len(table)))
        retrieved, _ = neighbours.values(chunks, min(num_neighbours, neighbours.max_neighbours))
        tokens = table.gather(chunks, table.chunk_len)
        overlaps[chunks] = longest_common_substring(tokens, retrieved, table.store.pad_id) / table.lengths[chunks]
    return overlaps


@dataclass(frozen=True)
class FilteredScore:
    """bpb(α): the score over the chunks with r(C) ≤ α."""

    alpha: float
    bits_per_byte: float
    share_of_bytes: float


def filtered_bits_per_byte(
    bits: np.ndarray, num_bytes: np.ndarray, overlaps: np.ndarray, alphas: tuple[float, ...] = ALPHAS
) -> list[FilteredScore]:
    """bpb(α) for each α from the bits, bytes and overlaps of the chunks; nothing for an α that no chunk meets."""
    scores = []
    for alpha in alphas:
        kept = overlaps <= alpha
        if num_bytes[kept].sum() > 0:
            share = float(num_bytes[kept].sum() / num_bytes.sum())
            scores.append(FilteredScore(alpha, float(bits[kept].sum() / num_bytes[kept].sum()), share))
    return scores
