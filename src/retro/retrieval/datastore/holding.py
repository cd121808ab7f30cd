"""What a process elsewhere holds of a datastore: segments with their indexes, or rows of the joint index.

It opens the files of the datastore and no ledger. Which documents are there is sent with the names of the
segments, for every version. What is open is kept from version to version, as far as it is the same.
"""

import hashlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import faiss
import numpy as np

from retro.errors import ArtifactError
from retro.retrieval.datastore.joint import INDEXES
from retro.retrieval.datastore.ledger import CompactedError
from retro.retrieval.datastore.segment import DOCUMENTS, KEYS, Segment
from retro.retrieval.datastore.snapshot import Snapshot
from retro.retrieval.index import Entries, Found
from retro.retrieval.index.compressed import FILE, CompressedIndex
from retro.retrieval.index.keys import Allowed, KeyParts
from retro.retrieval.index.opening import open_slice
from retro.retrieval.index.protocol import DESCRIPTION
from retro.retrieval.index.sliced import Proposed, look_at_all, propose
from retro.retrieval.search import Version
from retro.stages.worker import Terms, terms_for

KEPT = 2
"""Versions that are open at a time: a new one, and that of searches that are under way."""
EVERY = 0
"""In place of a number of lists: every key is looked at."""


@dataclass(frozen=True)
class PartFiles:
    """A part of one version. It can be sent to a process, which opens it."""

    datastore: Path
    version: Version
    segments: tuple[tuple[str, tuple[int, ...]], ...]
    """The folders of its segments, each with the numbers of its documents that are deleted."""
    joint: str
    """The name of the joint index; empty if there is none."""
    joined: tuple[str, ...]
    """The folders of all segments of the joint index, in the order of its rows."""
    chunk_len: int
    token_dtype: str
    pad_id: int
    terms: Terms | None = None

    @cached_property
    def name(self) -> str:
        """Another one for everything else that is opened, or opened by other code."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:24]

    @property
    def index(self) -> Path:
        return self.datastore / INDEXES / self.joint

    def with_terms(self) -> "PartFiles":
        """With what a process must see to be sure that it opens the same."""
        paths = [Path(folder) / file for folder, _ in self.segments for file in (DOCUMENTS, KEYS)]
        if self.joint:
            paths += [self.index / DESCRIPTION, self.index / FILE]
        with terms_for((), paths) as terms:
            if len(terms.paths) < len(paths):
                raise CompactedError(self.datastore, self.version.number)
            return replace(self, terms=terms)


@dataclass(frozen=True)
class JointQuestion:
    """What is asked of the joint index."""

    k: int
    share: float
    """The part of all its rows that may be found."""
    lists: int = 1
    """How many times as many lists as usual are visited, or `EVERY`."""


@dataclass(frozen=True)
class Question:
    entries: Entries
    k: int
    documents: np.ndarray | None
    """The numbers of those that may be found, if not all."""
    without: np.ndarray
    joint: JointQuestion | None
    has_own: bool = True
    """Whether segments with an index of their own are asked as well."""


@dataclass(frozen=True)
class Answer:
    own: Found | None
    """Distances and chunks of segments with an index of their own."""
    joint: Proposed | None


class Holder:
    """The parts that a process holds."""

    def __init__(self) -> None:
        self._parts: dict[str, HeldPart] = {}
        self._opening = threading.Lock()

    def hold(self, files: PartFiles) -> None:
        """Open a part, if it is not open, and forget the oldest."""
        with self._opening:
            if files.name not in self._parts:
                self._parts[files.name] = HeldPart(files, list(self._parts.values()))
            self._parts[files.name] = self._parts.pop(files.name)
            for name in [*self._parts][:-KEPT]:
                del self._parts[name]

    def answer(self, name: str, question: Question | None) -> Answer | None:
        """None if there is no such part, which is to be opened first. Without a question there is no more."""
        part = self._parts.get(name)
        if part is None:
            return None
        if question is None:
            return Answer(None, None)
        faiss.omp_set_num_threads(1)  # many questions are answered at once
        return part.answer(question)


class HeldPart:
    """An open part."""

    def __init__(self, files: PartFiles, known: "Sequence[HeldPart]" = ()) -> None:
        """What is open in others is taken from there, if it is of the same files."""
        assert files.terms is not None
        self.files = files
        self._facts = dict(files.terms.paths)
        try:
            files.terms.check()
            self._open(known)
        except (FileNotFoundError, ArtifactError):
            # Whoever sent it knows whether the version is still there.
            raise CompactedError(files.datastore, files.version.number) from None

    def _open(self, known: "Sequence[HeldPart]") -> None:
        files = self.files
        self.segments = {folder: self._segment(folder, known) for folder, _ in files.segments}
        deleted = dict(files.segments)
        own = [folder for folder in self.segments if folder not in files.joined]
        self._own = self._snapshot(own, deleted)
        joined = [folder for folder in files.joined if folder in self.segments]
        self._joined = self._snapshot(joined, deleted)
        self.slice = self._slice(joined, known) if joined else None

    def _snapshot(self, folders: Sequence[str], deleted: dict[str, tuple[int, ...]]) -> Snapshot:
        files = self.files
        segments = [self.segments[folder] for folder in folders]
        gone = [deleted[folder] for folder in folders]
        return Snapshot(files.version, segments, gone, files.chunk_len, files.pad_id)

    def _is_same(self, other: "HeldPart", *paths: Path) -> bool:
        return all(self._facts[str(path)] == other._facts.get(str(path)) for path in paths)

    def _segment(self, folder: str, known: "Sequence[HeldPart]") -> Segment:
        path, files = Path(folder), self.files
        is_joined = folder in files.joined
        for other in known:
            is_alike = folder in other.segments and is_joined == (folder in other.files.joined)
            if is_alike and self._is_same(other, path / DOCUMENTS, path / KEYS):
                return other.segments[folder]
        return Segment(path, files.chunk_len, np.dtype(files.token_dtype), files.pad_id, is_joined)

    def _slice(self, joined: Sequence[str], known: "Sequence[HeldPart]") -> "Slice":
        for other in known:
            has_same = other.slice is not None and other.slice.folders == tuple(joined)
            if has_same and self._is_same(other, self.files.index / DESCRIPTION, self.files.index / FILE):
                assert other.slice is not None
                return other.slice
        return Slice(self.files, joined)

    def answer(self, question: Question) -> Answer:
        without = question.without.tolist()
        documents = None if question.documents is None else question.documents.tolist()
        own = None
        if question.has_own and self._own.segments:
            own = self._own.search(question.entries, question.k, documents, without)
        if question.joint is None or self.slice is None:
            return Answer(own, None)
        masks = self._joined.wanted(documents, without)
        return Answer(own, self.slice.search(question.entries.keys, question.joint, masks, self._joined))


class Slice:
    """Rows of the joint index."""

    def __init__(self, files: PartFiles, folders: Sequence[str]) -> None:
        self.folders = tuple(folders)
        # Of all rows, so that they are numbered as in the whole. What is not looked at is not read.
        keys = KeyParts([np.load(Path(folder) / KEYS, mmap_mode="r") for folder in files.joined])
        ends = dict(zip(files.joined, zip(keys.starts[:-1], keys.starts[1:], strict=True), strict=True))
        self._ranges = [(int(begin), int(end)) for begin, end in (ends[folder] for folder in folders)]
        self.index: CompressedIndex = open_slice(files.index, keys, self._ranges)

    def search(
        self, queries: np.ndarray, question: JointQuestion, masks: Sequence[np.ndarray], joined: Snapshot
    ) -> Proposed:
        """`masks` are the documents of each segment that may be found."""
        if question.lists == EVERY:
            return look_at_all(self.index, queries, question.k, self._allowed(masks, joined))
        has_all = all(mask.all() for mask in masks)
        allowed = None if has_all else self._allowed(masks, joined)
        return propose(self.index, queries, question.k, allowed, question.share, question.lists)

    def _allowed(self, masks: Sequence[np.ndarray], joined: Snapshot) -> Allowed:
        """As a mask over the rows of the whole."""
        mask = np.zeros(len(self.index), dtype=bool)
        for (begin, end), wanted, segment in zip(self._ranges, masks, joined.segments, strict=True):
            mask[begin:end] = wanted[segment.places]
        return Allowed(mask)
