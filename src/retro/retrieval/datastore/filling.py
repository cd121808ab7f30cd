"""Filling a search engine from a datastore, keeping it in step with the ledger, measuring what it finds."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from retro.retrieval.datastore.ledger import COMPACT, Ledger
from retro.retrieval.datastore.snapshot import Snapshot
from retro.retrieval.engines import Engine, EngineError, EngineSetting, Holding
from retro.retrieval.index import Found
from retro.retrieval.index.exact import nearest
from retro.retrieval.index.keys import Allowed, KeyParts
from retro.retrieval.index.tuning import MARGIN, NUM_LATENCIES, K
from retro.stages.progress import Progress, no_progress

BLOCK = 16_384
"""Keys that are read at once."""
NUM_QUERIES = 256
SearchKeys = Callable[[np.ndarray, int], Found]
"""Distances and chunks of the k nearest of each key."""


def bring_up_to_date(
    engine: Engine,
    setting: EngineSetting,
    ledger: Ledger,
    snapshot: Snapshot,
    progress: Progress = no_progress,
) -> bool:
    """Have an engine hold what a version holds; whether it had to be filled from the beginning.

    A collection of another datastore is left alone. What was begun and cut off is done again; what is there
    already is replaced by the same.
    """
    versions = ledger.versions()
    goal = Holding(versions[0].lineage, snapshot.version.lineage)
    holding = engine.holding()
    held = max((v.number for v in versions if holding and v.lineage == holding.lineage), default=None)
    # A copy of the datastore that has gone on by itself began in the same way.
    is_foreign = holding is not None and (holding.first != goal.first or (holding.lineage and held is None))
    if is_foreign:
        raise EngineError(
            f"the collection {setting.collection} of {setting.address} holds another datastore; expected "
            f"none, or that of {ledger.path.parent}; name another collection, or remove it there"
        )
    # After a compaction nobody knows any more what was deleted before it.
    forgotten = held is not None and any(v.number > held and v.action == COMPACT for v in versions)
    if held is None or (forgotten and holding != goal) or not engine.fits(len(snapshot)):
        engine.begin(snapshot.width, len(snapshot), Holding(goal.first, ""))
        _put(engine, snapshot, None, progress)
        engine.finish(goal)
        return True
    if holding != goal:
        engine.remove(ledger.deleted_since(held, snapshot.version.number))
        _put(engine, snapshot, ledger.added_since(held, snapshot.version.number), progress)
        engine.finish(goal)
    return False


def _put(engine: Engine, snapshot: Snapshot, documents: Sequence[int] | None, progress: Progress) -> None:
    """Send the keys of some documents that are there, or of all."""
    total = len(snapshot) if documents is None else snapshot.num_keys_of(documents)
    done = 0
    for segment, live in zip(snapshot.segments, snapshot.live, strict=True):
        wanted = live if documents is None else live & np.isin(segment.documents["number"], documents)
        rows = np.flatnonzero(wanted[segment.places])
        for start in range(0, len(rows), BLOCK):
            part = rows[start : start + BLOCK]
            numbers = segment.documents["number"][segment.places[part]]
            engine.put(segment.chunks[part], numbers, segment.keys[part])
            done += len(part)
            progress(done, total)


def tuned(engine: Engine, setting: EngineSetting, snapshot: Snapshot, target: float) -> EngineSetting:
    """With the least effort that reaches the recall, and what was measured then.

    The queries that choose are not those that are reported.
    """
    sample = _Sample(snapshot)

    def searching(effort: int) -> SearchKeys:
        return lambda queries, k: engine.search(queries, k, effort)

    effort = engine.efforts()[-1]
    for candidate in engine.efforts():
        if sample.recall(searching(candidate), sample.choosing) >= min(target + MARGIN, 1.0):
            effort = candidate
            break
    recall, latency = sample.measured(searching(effort))
    return replace(setting, effort=effort, recall_at_10=recall, latency_ms=latency)


def measured(search: SearchKeys, snapshot: Snapshot) -> tuple[float, float]:
    """The recall of a search that has nothing to tune, and the milliseconds of one query."""
    return _Sample(snapshot).measured(search)


class _Sample:
    """Keys of documents that are there: each is searched for and must not count itself."""

    def __init__(self, snapshot: Snapshot) -> None:
        every = zip(snapshot.segments, snapshot.live, strict=True)
        parts = [(segment, live) for segment, live in every if len(segment.keys)]
        self._keys = KeyParts([segment.keys for segment, _ in parts])
        self._allowed = Allowed(np.concatenate([live[segment.places] for segment, live in parts]))
        self._chunks = np.concatenate([segment.chunks for segment, _ in parts])
        rows = np.random.default_rng(0).permutation(np.flatnonzero(self._allowed.mask))
        self._k = min(K + 1, len(rows))
        self.choosing = rows[:NUM_QUERIES]
        self._reporting = rows[NUM_QUERIES : 2 * NUM_QUERIES] if len(rows) > NUM_QUERIES else rows

    def measured(self, search: SearchKeys) -> tuple[float, float]:
        seconds = []
        for row in self._reporting[:NUM_LATENCIES]:
            started = time.perf_counter()
            search(self._keys[np.array([row])].astype(np.float32), K)
            seconds.append(time.perf_counter() - started)
        return self.recall(search, self._reporting), 1000 * statistics.median(seconds)

    def recall(self, search: SearchKeys, rows: np.ndarray) -> float:
        """The part of the true neighbours that is found; one as near as the last counts as found."""
        k = self._k
        queries = self._keys[rows].astype(np.float32)
        limits = nearest(self._keys, queries, k, self._allowed)[0][:, -1]
        distances, found = search(queries, k)
        others = found != self._chunks[rows][:, None]
        # Rounded in another way than ours: a little more is allowed.
        within = distances <= limits[:, None] * (1 + 1e-3) + 1e-3
        true = np.minimum((within & others).sum(axis=1), k - 1)
        return float(true.sum() / (len(rows) * (k - 1))) if k > 1 else 1.0
