"""A datastore at one version, searched by an engine: it proposes chunks, and the datastore has the last word.

Proposals are ranked again from the datastore's own keys, and what this version does not hold, or the caller
does not want, is dropped: more is asked for then. Documents that were added since the engine was filled are
looked at here. So an engine that is a little behind, or ahead, changes nothing about what is found.
"""

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from retro.retrieval.datastore.ledger import CompactedError, Ledger
from retro.retrieval.datastore.scanning import nearest
from retro.retrieval.datastore.snapshot import Snapshot
from retro.retrieval.engines import Engine, EngineError, EngineLostError, EngineSetting
from retro.retrieval.index import Entries
from retro.retrieval.index.exact import rank
from retro.stages.hints import quoted
from retro.wording import counted

SLACK = 8
"""How many more than k are asked for, as some may have been deleted."""
WIDER = 4
TOLERANCE = 0.05
"""How far an engine's distance may be from the true one; it rounds in another way."""


class EngineSnapshot(Snapshot):
    """The `Search` over an engine. Tokens and keys are read from the datastore's segments, as ever."""

    is_sendable = False

    def __init__(
        self, engine: Engine, setting: EngineSetting, ledger: Ledger, max_behind: int, *arguments: Any
    ) -> None:
        """At most `max_behind` keys that the engine does not have are looked at here."""
        super().__init__(*arguments)
        self.engine = engine
        self.setting = setting
        self._ledger = ledger
        self._max_behind = max_behind
        self._checking = threading.Lock()
        self._missing: list[int] | None = None
        """Documents of this version that the engine does not have yet, once it was asked."""

    def search(
        self, entries: Entries, k: int, documents: Sequence[int] | None = None, without: Sequence[int] = ()
    ) -> tuple[np.ndarray, np.ndarray]:
        try:
            missing = self._missing_documents()
            found = self._proposed(entries, k, documents, without)
        except EngineLostError as error:
            place = quoted(self._ledger.path.parent)
            raise EngineError(
                f"{error}, or search by this machine's own indexes; run: retro db engine {place} local"
            ) from None
        if missing:
            wanted = missing if documents is None else sorted({*missing} & {*documents})
            here = super().search(entries, k, wanted, without)
            # A chunk may come from both if the engine has been brought up to date meanwhile.
            pairs = zip(here[1], found[1], strict=True)
            repeated = np.array([np.isin(mine, theirs) for mine, theirs in pairs]).reshape(here[1].shape)
            here = np.where(repeated, np.inf, here[0]), np.where(repeated, -1, here[1])
            both = [np.concatenate(pair, axis=1) for pair in zip(found, here, strict=True)]
            found = nearest(both[0], both[1], k)
        return found

    def _proposed(
        self, entries: Entries, k: int, documents: Sequence[int] | None, without: Sequence[int]
    ) -> tuple[np.ndarray, np.ndarray]:
        """The nearest of what the engine has; where it finds too few, of what is here."""
        distances = np.full((len(entries), k), np.inf, dtype=np.float32)
        chunks = np.full((len(entries), k), -1, dtype=np.int64)
        queries = np.asarray(entries.keys, dtype=np.float32)
        todo = np.arange(len(entries))
        enough = min(k, self._num_held(documents, without))
        reach = k + SLACK
        while len(todo) and reach <= self.engine.most:
            # The further a graph is to reach, the more of it must be visited.
            effort = self.setting.effort and max(self.setting.effort, 2 * reach)
            found = self.engine.search(queries[todo], reach, effort, documents, without)
            distances[todo], chunks[todo] = self._ranked(queries[todo], found, k, documents, without)
            todo = todo[(chunks[todo] >= 0).sum(axis=1) < enough]
            reach *= WIDER
        if len(todo):
            distances[todo], chunks[todo] = super().search(entries.select(todo), k, documents, without)
        return distances, chunks

    def _num_held(self, documents: Sequence[int] | None, without: Sequence[int]) -> int:
        """How many chunks the engine has that may be found."""
        left_out = {*without, *self._missing_documents()}
        if documents is not None:
            return self.num_keys_of(sorted({*documents} - left_out))
        return len(self) - self.num_keys_of(sorted(left_out))

    def _ranked(
        self,
        queries: np.ndarray,
        found: tuple[np.ndarray, np.ndarray],
        k: int,
        documents: Sequence[int] | None,
        without: Sequence[int],
    ) -> tuple[np.ndarray, np.ndarray]:
        """Proposals with their true distances, without those that this version, or the caller, leaves out."""
        proposed_distances, proposed = found
        chunks, places = np.unique(proposed, return_inverse=True)
        places = places.reshape(proposed.shape)
        has_key, keys = self.keys(chunks)
        numbers = self.documents(chunks)
        allowed = has_key & ~np.isin(numbers, without)
        if documents is not None:
            allowed &= np.isin(numbers, documents)
        if not len(keys):
            return np.full((len(queries), k), np.inf, dtype=np.float32), np.full((len(queries), k), -1)
        # Keys come in the order of their chunks, so that of equal distances the lower chunk is first.
        row_of = np.cumsum(has_key) - 1
        distances, rows = rank(keys, queries, np.where(has_key, row_of, -1)[places], proposed.shape[1])
        kept_chunks = np.where(rows < 0, -1, chunks[has_key][rows])
        self._expect_own_keys(queries, proposed_distances, distances)
        dropped = ~np.where(rows < 0, False, allowed[has_key][rows])
        return nearest(np.where(dropped, np.inf, distances), np.where(dropped, -1, kept_chunks), k)

    def _expect_own_keys(self, queries: np.ndarray, proposed: np.ndarray, true: np.ndarray) -> None:
        """Refuse an engine whose nearest distances are not those of the datastore's keys."""
        lengths = np.einsum("nd,nd->n", queries, queries)
        # Both are sorted; the true ones lack what was deleted, so each must be among the proposed.
        with np.errstate(invalid="ignore"):  # where nothing was found
            apart = np.abs(proposed - true[:, :1]).min(axis=1)
        limits = TOLERANCE * true[:, 0] + 1e-3 * (lengths + 1.0)
        if (np.isfinite(true[:, 0]) & ~(apart <= limits)).any():
            raise self._refused("has other keys than this datastore")

    def _missing_documents(self) -> list[int]:
        """What the engine does not have of this version; an error if it has something else."""
        with self._checking:
            if self._missing is None:
                self._missing = self._compared()
            return self._missing

    def state(self) -> str:
        """Whether the engine can be searched for this version, in words."""
        try:
            missing = self._missing_documents()
        except EngineError as error:
            return str(error)
        return f"it lacks {counted(len(missing), 'document')}" if missing else "up to date"

    def _compared(self) -> list[int]:
        holding = self.engine.holding()
        versions = self._ledger.versions()
        if holding is None:
            raise self._refused("does not exist")
        if not holding.lineage:
            raise self._refused("was not filled to its end")
        held = max((v.number for v in versions if v.lineage == holding.lineage), default=None)
        if held is None:
            raise self._refused("holds another datastore")
        if held > self.version.number and holding.lineage != self.version.lineage:
            # It has gone on; so has the ledger, whose newest version is asked instead.
            raise CompactedError(self._ledger.path, self.version.number)
        missing = self._ledger.added_since(held, self.version.number)
        if self.num_keys_of(missing) > self._max_behind:
            raise self._refused(f"is at version {held}, and lacks {counted(len(missing), 'document')}")
        return missing

    def _refused(self, fault: str) -> EngineError:
        place = quoted(self._ledger.path.parent)
        return EngineError(
            f"the collection {self.setting.collection} of {self.setting.address} {fault}; expected version "
            f"{self.version.number} of {self._ledger.path.parent}; run: retro db engine {place}"
        )
