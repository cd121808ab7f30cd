"""Confidence intervals by bootstrap over documents."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

DRAWS = 100
"""Draws that are summed together; this bounds the memory."""


@dataclass(frozen=True)
class Interval:
    """An estimate with the bounds that hold 95 % of its resampled values."""

    estimate: float
    low: float
    high: float


Statistics = Callable[[np.ndarray], np.ndarray]
"""From sums over documents (…, columns) to the values of interest (…, statistics)."""


def bootstrap(
    columns: np.ndarray, statistics: Statistics, num_resamples: int = 2000, seed: int = 0
) -> list[Interval]:
    """Statistics of the sums of columns (documents, columns) over documents drawn with replacement.

    All statistics are computed from the same draws, so that differences between them have
    honest intervals. A draw that leaves a statistic undefined, because nothing it divides by
    was drawn, is ignored for that statistic. If all documents together leave it undefined, its
    estimate is NaN.
    """
    # The first row sums all documents once each; the estimates come from it.
    sums = np.concatenate([columns.sum(axis=0, keepdims=True), *_resampled(columns, num_resamples, seed)])
    with np.errstate(invalid="ignore", divide="ignore"):
        values = statistics(sums)
    # A division by zero gave an infinity or NaN; as NaN it is ignored by the quantiles.
    return [_interval(column) for column in np.where(np.isfinite(values), values, np.nan).T]


def _resampled(columns: np.ndarray, num_resamples: int, seed: int) -> Iterator[np.ndarray]:
    """Sums over draws, a block of draws at a time: the counts of all draws could fill the memory."""
    rng = np.random.default_rng(seed)
    size = len(columns)
    for first in range(0, num_resamples, DRAWS):
        draws = [rng.integers(0, size, size=size) for _ in range(first, min(first + DRAWS, num_resamples))]
        # counts[draw, document] is how often a draw holds a document, so the product sums over
        # each draw.
        counts = np.stack([np.bincount(draw, minlength=size) for draw in draws])
        yield counts @ columns


def _interval(values: np.ndarray) -> Interval:
    """The interval of one statistic: its estimate comes first, the resampled values after it."""
    if np.isnan(values[0]):
        return Interval(np.nan, np.nan, np.nan)
    # 95 % of the resampled values lie between these two.
    low, high = np.nanquantile(values[1:], [0.025, 0.975])
    return Interval(float(values[0]), float(low), float(high))


def bootstrap_ratio(numerators: np.ndarray, denominators: np.ndarray) -> Interval:
    """Σ numerators / Σ denominators, with an interval over documents."""
    columns = np.stack([numerators, denominators], axis=1)
    (interval,) = bootstrap(columns, lambda sums: sums[:, :1] / sums[:, 1:])
    return interval


def relative_gain(better: np.ndarray, worse: np.ndarray) -> Interval:
    """The part of the bits of `worse` that `better` saves, with an interval over documents."""
    return bootstrap_ratio(worse - better, worse)
