"""The least effort with which an approximate index finds what exact search finds."""

import statistics
import time
from dataclasses import asdict, dataclass

import numpy as np

from retro.retrieval.index.exact import DenseIndex, nearest
from retro.retrieval.index.protocol import Entries

K = 10
MARGIN = 0.01
"""How much above the target the sample must be, as it is only a sample."""
NUM_LATENCIES = 20


@dataclass(frozen=True, kw_only=True)
class SearchReport:
    """What was measured over sampled keys as queries, each without itself.

    None of these was asked with while the setting was chosen.
    """

    kind: str
    effort: int
    """How many nodes of a graph, or lists, a search visits."""
    recall_at_10: float
    """Part of the ten nearest that is found; a key as near as the tenth counts as found."""
    target: float
    reached: bool
    num_queries: int
    queries_per_second: float
    latency_ms: float
    """Median of one query alone."""


def tune(index: DenseIndex, target: float = 0.95, num_queries: int = 512, seed: int = 0) -> SearchReport:
    """Choose the least effort that reaches the target recall@10, or else the highest there is.

    The report is kept with the index.
    """
    shuffled = np.random.default_rng(seed).permutation(index.query_rows(2 * num_queries))
    rows = shuffled[:num_queries]
    queries = Entries(np.asarray(index.keys[rows], dtype=np.float32))
    recall = 1.0
    if index.efforts():
        choose(index, queries, rows, min(target + MARGIN, 1.0))
        # Measured with others than were asked with to choose; where there are none, with the same.
        rows = shuffled[num_queries : 2 * num_queries] if len(shuffled) > num_queries else rows
        queries = Entries(np.asarray(index.keys[rows], dtype=np.float32))
        recall = measure_recall(index, queries, rows, true_limits(index, queries.keys, rows))
    seconds, latency = time_searches(index, queries)
    report = SearchReport(
        kind=index.kind,
        effort=index.effort,
        recall_at_10=recall,
        target=target,
        reached=recall >= target,
        num_queries=len(rows),
        queries_per_second=len(rows) / seconds if len(rows) else 0.0,
        latency_ms=1000 * latency,
    )
    index.report = asdict(report)
    return report


def choose(index: DenseIndex, queries: Entries, rows: np.ndarray, wanted: float) -> None:
    """Set the cheapest setting that reaches the recall, or else the dearest."""
    limits = true_limits(index, queries.keys, rows)
    settings = index.settings()
    most = {name: max(setting[name] for setting in settings) for name in settings[-1]}
    hopeless = -1
    """The highest effort that does not suffice, whatever else is set."""
    for setting in settings:
        if setting["effort"] <= hopeless:
            continue
        if _reaches(index, setting, queries, rows, limits, wanted):
            return
        # Far from enough, most often: then its dearest companion says so at once.
        dearest = {**most, "effort": setting["effort"]}
        if dearest != setting and not _reaches(index, dearest, queries, rows, limits, wanted):
            hopeless = setting["effort"]
    _set(index, most)


def _set(index: DenseIndex, setting: dict[str, int]) -> None:
    for name, value in setting.items():
        setattr(index, name, value)


def _reaches(
    index: DenseIndex,
    setting: dict[str, int],
    queries: Entries,
    rows: np.ndarray,
    limits: np.ndarray,
    wanted: float,
) -> bool:
    _set(index, setting)
    return measure_recall(index, queries, rows, limits) >= wanted


def true_limits(index: DenseIndex, queries: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The distance of each key's tenth neighbour, or of its last if there are fewer; never of itself."""
    allowed = index.removals.within(None)
    k = min(K + 1, index.removals.num_left)
    if k <= 1:
        return np.zeros(0)
    return without_self(nearest(index.keys, queries, k, allowed), rows)[:, -1]


def measure_recall(index: DenseIndex, queries: Entries, rows: np.ndarray, limits: np.ndarray) -> float:
    """The part of what is found that lies within the limits.

    Every index computes distances in the same way, so a row within the limit is a true neighbour.
    """
    k = min(K + 1, index.removals.num_left)
    if k <= 1:
        return 1.0
    within = without_self(index.search(queries, k), rows) <= limits[:, None]
    return float(within.mean())


def without_self(found: tuple[np.ndarray, np.ndarray], rows: np.ndarray) -> np.ndarray:
    """The distances of all but the query's own row, or of all but the last if it was not found."""
    distances, found_rows = found
    # The own row becomes infinitely far and sorts to the end, where one column is cut off for every query.
    return np.sort(np.where(found_rows == rows[:, None], np.inf, distances), axis=1)[:, :-1]


def time_searches(index: DenseIndex, queries: Entries) -> tuple[float, float]:
    """Seconds of all queries in one batch, and the median of single ones."""
    started = time.perf_counter()
    index.search(queries, K)
    batch = time.perf_counter() - started
    latencies = []
    for number in range(min(NUM_LATENCIES, len(queries.keys))):
        started = time.perf_counter()
        index.search(Entries(queries.keys[number : number + 1]), K)
        latencies.append(time.perf_counter() - started)
    return batch, statistics.median(latencies) if latencies else 0.0
