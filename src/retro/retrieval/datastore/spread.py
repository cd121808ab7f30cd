"""A datastore at one version, searched by processes of a Ray cluster, each of which holds a part of it.

They search the same files as this machine would, by the same arithmetic, and what they find is put together
as the parts of a local search are: the neighbours are the same. Which documents are there goes with every
version to those that search it, so they can be neither behind the ledger nor ahead of it.
"""

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from retro.errors import ArtifactError, ConfigError
from retro.retrieval.datastore.holding import EVERY, Answer, Holder, JointQuestion, PartFiles, Question
from retro.retrieval.datastore.ledger import CompactedError, Ledger
from retro.retrieval.datastore.scanning import nearest
from retro.retrieval.datastore.snapshot import Snapshot
from retro.retrieval.engines import EngineError, EngineLostError, EngineSetting
from retro.retrieval.engines.actors import Actors, Request
from retro.retrieval.index import Entries, Found
from retro.retrieval.index.compressed import WIDER
from retro.retrieval.index.exact import FEW_ALLOWED
from retro.retrieval.index.sliced import put_together
from retro.stages.hints import quoted
from retro.stages.worker import WorkerError
from retro.wording import counted

AT_ONCE = 1024
"""Queries that are sent together."""


REPLICAS = 2
"""Processes of each part, if no number is given."""


def actors_for(setting: EngineSetting) -> Actors:
    return Actors(setting, Holder)


def sized(setting: EngineSetting) -> EngineSetting:
    """With a part for each node and two replicas, where no number is given."""
    if setting.parts < 0 or setting.replicas < 0:
        raise ConfigError(
            f"found {setting.parts} parts and {setting.replicas} replicas; expected 1 or more of each"
        )
    parts = setting.parts or actors_for(setting).num_nodes()
    return replace(setting, parts=parts, replicas=setting.replicas or REPLICAS)


class SpreadSnapshot(Snapshot):
    """The `Search` over processes elsewhere. Tokens are read from the datastore's segments, as ever."""

    is_sendable = False

    def __init__(self, actors: Actors, ledger: Ledger, token_dtype: np.dtype, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.actors = actors
        self.setting = actors.setting
        self._ledger = ledger
        self._token_dtype = token_dtype
        self._dividing = threading.Lock()
        self._files: dict[int, PartFiles] = {}
        names = {segment.name for segment in self.joint.segments} if self.joint is not None else set()
        self._joined = [number for number, segment in enumerate(self.segments) if segment.name in names]

    def divided(self) -> dict[int, PartFiles]:
        """What the processes of each part open: segments in turn go to the part that has the fewest keys."""
        with self._dividing:
            if not self._files:
                sizes = [0] * self.setting.parts
                members: list[list[int]] = [[] for _ in sizes]
                for number, segment in enumerate(self.segments):
                    part = sizes.index(min(sizes))
                    sizes[part] += len(segment.keys)
                    members[part].append(number)
                files = {part: self._part(numbers) for part, numbers in enumerate(members) if numbers}
                self._files = {part: each.with_terms() for part, each in files.items()}
            return self._files

    def _part(self, numbers: Sequence[int]) -> PartFiles:
        parts = [(self.segments[number], self.live[number]) for number in numbers]
        gone = [tuple(segment.documents["number"][~live].tolist()) for segment, live in parts]
        folders = [_folder(segment.path) for segment, _ in parts]
        joined = self.joint.segments if self.joint is not None else ()
        return PartFiles(
            datastore=self._ledger.path.parent.absolute(),
            version=self.version,
            segments=tuple(zip(folders, gone, strict=True)),
            joint=self.joint.name if self.joint is not None else "",
            joined=tuple(_folder(segment.path) for segment in joined),
            chunk_len=self.chunk_len,
            token_dtype=self._token_dtype.str,
            pad_id=self.pad_id,
        )

    def hold(self) -> None:
        """Have every process open this version, so that no search has to wait for it."""
        requests = {part: Request(files.name, files) for part, files in self.divided().items()}
        try:
            self.actors.hold(requests)
        except (WorkerError, CompactedError) as error:
            raise EngineError(str(error)) from None

    def search(
        self, entries: Entries, k: int, documents: Sequence[int] | None = None, without: Sequence[int] = ()
    ) -> tuple[np.ndarray, np.ndarray]:
        search = _Search(self, k, documents, without)
        found = [(np.full((0, k), np.inf, dtype=np.float32), np.full((0, k), -1, dtype=np.int64))]
        for start in range(0, len(entries), AT_ONCE):
            block = entries.select(np.arange(start, min(start + AT_ONCE, len(entries))))
            found.append(self._told(lambda block=block: search.of(block)))
        distances, chunks = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
        if not self.is_live(chunks[chunks >= 0]).all():
            raise self._refused("they found chunks that are not there")
        return distances, chunks

    def ask(self, question: Question) -> list[Answer]:
        """The answers of all parts."""
        requests = {part: Request(files.name, files, question) for part, files in self.divided().items()}
        return [*self.actors.ask(requests).values()]

    def _told(self, call: Any) -> Any:
        """What a call returns; whatever goes wrong with the processes says what to do about it."""
        place = quoted(self._ledger.path.parent)
        try:
            return call()
        except CompactedError:
            if self._ledger.version() != self.version:
                raise
            raise self._refused("a file is missing where they run") from None
        except EngineLostError as error:
            raise EngineError(
                f"{error}, or search by this machine's own indexes; run: retro db engine {place} local"
            ) from None
        except WorkerError as error:
            if self._ledger.version() != self.version:
                # They may not see it because it is gone; the newest version is asked instead.
                raise CompactedError(self._ledger.path, self.version.number) from None
            raise EngineError(f"{error}; then run: retro db engine {place}") from None

    def _refused(self, fault: str) -> EngineError:
        place = quoted(self._ledger.path.parent)
        return EngineError(
            f"the processes {self.setting} are of no use: {fault}; expected version {self.version.number} of "
            f"{self._ledger.path.parent}; run: retro db engine {place}"
        )

    def num_joined(self, documents: Sequence[int] | None, without: Sequence[int]) -> tuple[int, int]:
        """How many keys of the joint index may be found, and how many it has."""
        masks = self.wanted(documents, without)
        segments = [(self.segments[number], masks[number]) for number in self._joined]
        total = sum(len(segment.keys) for segment, _ in segments)
        allowed = (
            len(segment.keys) if mask.all() else int(segment.num_keys[mask].sum())
            for segment, mask in segments
        )
        return sum(allowed), total

    def joint_chunks(self, rows: np.ndarray) -> np.ndarray:
        """The chunks of rows of the joint index; −1 for −1."""
        assert self.joint is not None
        starts = np.cumsum([0, *(len(segment.chunks) for segment in self.joint.segments)])
        chunks = np.full(rows.shape, -1, dtype=np.int64)
        part_of = np.searchsorted(starts, rows, side="right") - 1
        for number in np.unique(part_of[rows >= 0]):
            here = (part_of == number) & (rows >= 0)
            chunks[here] = self.joint.segments[number].chunks[rows[here] - starts[number]]
        return chunks

    def state(self) -> str:
        """Which nodes hold the parts, in words."""
        try:
            seen = self.actors.seen()
        except (EngineError, ArtifactError) as error:
            return str(error)
        setting = self.setting
        parts = [
            f"part {number} on {', '.join(nodes) or 'none'}" for number, nodes in enumerate(seen, start=1)
        ]
        processes = counted(setting.replicas, "process", "processes")
        held = f"{counted(setting.parts, 'part')}, each held by {processes}"
        missing = sum(setting.replicas - len(nodes) for nodes in seen)
        lacks = f"; {missing} to be started by the next search" if missing else ""
        return f"{held}: {', '.join(parts)}{lacks}"


def _folder(path: Path) -> str:
    return str(path.absolute())


class _Search:
    """One search: what is asked of the parts, and how their answers are put together."""

    def __init__(
        self, snapshot: SpreadSnapshot, k: int, documents: Sequence[int] | None, without: Sequence[int]
    ) -> None:
        self._snapshot = snapshot
        self._k = k
        self._documents = None if documents is None else np.asarray(documents, dtype=np.int64)
        self._without = np.asarray(without, dtype=np.int64)
        self._allowed, self._total = snapshot.num_joined(documents, without)

    def of(self, entries: Entries) -> Found:
        """The k nearest of each entry."""
        k = min(self._k, self._allowed)
        joint = None
        if k:
            share = self._allowed / self._total
            # As an index does for itself: few rows are sooner looked at one by one.
            joint = JointQuestion(k, share, EVERY if share < FEW_ALLOWED else 1)
        found = [
            (np.full((len(entries), self._k), np.inf, dtype=np.float32), np.full((len(entries), self._k), -1))
        ]
        answers = self._asked(entries, joint)
        found += [answer.own for answer in answers if answer.own is not None]
        if joint is not None:
            distances, rows = self._joined(entries, joint, answers)
            found.append((distances, self._snapshot.joint_chunks(rows)))
        distances, chunks = (np.concatenate(arrays, axis=1) for arrays in zip(*found, strict=True))
        return nearest(distances, chunks, self._k)

    def _asked(self, entries: Entries, joint: JointQuestion | None, has_own: bool = True) -> list[Answer]:
        return self._snapshot.ask(Question(entries, self._k, self._documents, self._without, joint, has_own))

    def _joined(self, entries: Entries, asked: JointQuestion, answers: Sequence[Answer]) -> Found:
        """What the joint index finds; where lists hold too few, more are visited, and then every key."""
        distances, rows = _together(entries, asked, answers)
        for lists in (WIDER, EVERY) if asked.lists != EVERY else ():
            short = np.flatnonzero(rows[:, -1] < 0)
            if not len(short):
                break
            wider = JointQuestion(asked.k, asked.share, lists)
            part = entries.select(short)
            answers = self._asked(part, wider, has_own=False)
            distances[short], rows[short] = _together(part, wider, answers)
        return distances, rows


def _together(entries: Entries, asked: JointQuestion, answers: Sequence[Answer]) -> Found:
    proposed = [answer.joint for answer in answers if answer.joint is not None]
    return put_together(proposed, entries.keys, asked.k)
