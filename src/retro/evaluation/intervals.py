"""Confidence intervals by bootstrap over documents."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Interval:
    """An estimate with the bounds that hold 95 % of its resampled values."""

    estimate: float
    low: float
    high: float


def bootstrap_ratio(numerators: np.ndarray, denominators: np.ndarray, num_resamples: int = 2000, seed: int = 0) -> Interval:
    """Σ numerators / Σ denominators over documents drawn with replacement, both of the same documents each time."""
    draws = np.random.default_rng(seed).integers(0, len(numerators), size=(num_resamples, len(numerators)))
    ratios = numerators[draws].sum(axis=1) / denominators[draws].sum(axis=1)
    low, high = np.quantile(ratios, [0.025, 0.975])
    return Interval(float(numerators.sum() / denominators.sum()), float(low), float(high))


def relative_gain(better: np.ndarray, worse: np.ndarray) -> Interval:
    """By which part of `worse` the bits of `better` are fewer, with an interval over documents."""
    return bootstrap_ratio(worse - better, worse)
