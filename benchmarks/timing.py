"""Interleaved timing: rounds over all candidates, so that a busy moment of the machine strikes them alike."""

import statistics
import time
from collections.abc import Callable, Mapping


def interleaved_seconds(
    candidates: Mapping[str, Callable[[], object]], rounds: int = 7, warmup: int = 2
) -> dict[str, list[float]]:
    """Seconds of each candidate in each round."""
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for number in range(warmup + rounds):
        for name, call in candidates.items():
            started = time.perf_counter()
            call()
            if number >= warmup:
                seconds[name].append(time.perf_counter() - started)
    return seconds


def interleaved_medians(
    candidates: Mapping[str, Callable[[], object]], rounds: int = 7, warmup: int = 2
) -> dict[str, float]:
    """Median seconds of each candidate over the rounds."""
    seconds = interleaved_seconds(candidates, rounds, warmup)
    return {name: statistics.median(values) for name, values in seconds.items()}
