"""Confidence intervals by bootstrap over documents."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

DRAWS = 100
"""Draws that are summed together."""


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

    All statistics are computed from the same draws, so that differences between them have honest intervals.
    A draw in which a statistic is not defined, as nothing that it divides by was drawn, says nothing about
    it. Where all documents together leave it undefined its estimate is NaN.
    """
    # The first row holds the sums over all documents, each once: the estimates come from it.
    sums = np.concatenate([columns.sum(axis=0, keepdims=True), *_resampled(columns, num_resamples, seed)])
    with np.errstate(invalid="ignore", divide="ignore"):
        values = statistics(sums)
    # Whatever was divided by nothing is infinite or NaN, and is left out of the quantiles.
    return [_interval(column) for column in np.where(np.isfinite(values), values, np.nan).T]


def _resampled(columns: np.ndarray, num_resamples: int, seed: int) -> Iterator[np.ndarray]:
    """Sums over draws, some draws at a time: with many documents, the counts of all would fill the memory."""
    rng = np.random.default_rng(seed)
    size = len(columns)
    for first in range(0, num_resamples, DRAWS):
        draws = [rng.integers(0, size, size=size) for _ in range(first, min(first + DRAWS, num_resamples))]
        # How often each draw holds each document, times the documents' values: the sums over the draws.
        counts = np.stack([np.bincount(draw, minlength=size) for draw in draws])
        yield counts @ columns


def _interval(values: np.ndarray) -> Interval:
    """Of the estimate and the resampled values after it."""
    if np.isnan(values[0]):
        return Interval(np.nan, np.nan, np.nan)
    low, high = np.nanquantile(values[1:], [0.025, 0.975])
    return Interval(float(values[0]), float(low), float(high))


def bootstrap_ratio(numerators: np.ndarray, denominators: np.ndarray) -> Interval:
    """Σ numerators / Σ denominators."""
    columns = np.stack([numerators, denominators], axis=1)
    (interval,) = bootstrap(columns, lambda sums: sums[:, :1] / sums[:, 1:])
    return interval


def relative_gain(better: np.ndarray, worse: np.ndarray) -> Interval:
    """The part of the bits of `worse` that `better` saves, with an interval over documents."""
    return bootstrap_ratio(worse - better, worse)
