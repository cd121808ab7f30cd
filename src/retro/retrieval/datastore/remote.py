"""A version of a datastore as a worker opens it, on this machine or another.

A worker gets a list of segments and of deleted documents, and reads their files. It never opens the ledger:
SQLite is not safe on storage that several machines share, and the ledger may have moved on meanwhile.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import faiss
import numpy as np
import torch

from retro.corpus.tokenizers.tokenizer import Tokenizer
from retro.errors import ArtifactError
from retro.retrieval.datastore.joint import INDEXES, JointIndex
from retro.retrieval.datastore.ledger import CompactedError
from retro.retrieval.datastore.reader import SEGMENTS, TOKENIZER, DatastoreReader
from retro.retrieval.datastore.segment import DOCUMENTS, Segment
from retro.retrieval.datastore.snapshot import Snapshot
from retro.retrieval.embedder import Embedder, open_in_worker
from retro.retrieval.index import Entries
from retro.retrieval.queries import make_queries
from retro.retrieval.search import Version


@dataclass(frozen=True)
class VersionFiles:
    """What makes up a version: it can be sent to a worker, which opens it."""

    path: Path
    version: Version
    segments: tuple[tuple[str, tuple[int, ...]], ...]
    """The names of the segments, each with the numbers of its documents that are deleted."""
    joint: tuple[str, tuple[str, ...]]
    """The name of the index over many segments, and those that it finds; empty if there is none."""
    chunk_len: int
    embedder: str
    precision: str
    embedder_fingerprint: str

    @staticmethod
    def of(datastore: DatastoreReader, snapshot: Snapshot) -> "VersionFiles":
        segments = []
        for segment, live in zip(snapshot.segments, snapshot.live, strict=True):
            gone = segment.documents["number"][~live].tolist()
            segments.append((segment.name, tuple(gone)))
        joint = snapshot.joint
        return VersionFiles(
            datastore.path.absolute(),
            snapshot.version,
            tuple(segments),
            ("", ()) if joint is None else (joint.name, tuple(segment.name for segment in joint.segments)),
            datastore.chunk_len,
            datastore.config.embedder,
            datastore.query_precision,
            datastore.ledger.fact("encoder"),
        )

    def paths(self) -> list[Path]:
        """A file of every segment, by which a worker sees whether it has the same."""
        return [self.path / SEGMENTS / name / DOCUMENTS for name, _ in self.segments]


class RemoteVersion:
    """An open version with all that a search needs: its segments, its tokenizer and its embedder."""

    def __init__(self, files: VersionFiles) -> None:
        self._files = files
        self.tokenizer = Tokenizer.open(files.path / TOKENIZER)
        try:
            segments = {name: self._segment(name) for name, _ in files.segments}
            joint = self._joint(segments)
        except (FileNotFoundError, ArtifactError):
            # Whoever sent the files knows whether the version is still there.
            raise CompactedError(files.path, files.version.number) from None
        deleted = [numbers for _, numbers in files.segments]
        self.snapshot = Snapshot(
            files.version, list(segments.values()), deleted, files.chunk_len, self.tokenizer.pad_id, joint
        )

    def _segment(self, name: str) -> Segment:
        files = self._files
        folder = files.path / SEGMENTS / name
        is_joined = name in files.joint[1]
        return Segment(folder, files.chunk_len, self.tokenizer.dtype, self.tokenizer.pad_id, is_joined)

    def _joint(self, segments: dict[str, Segment]) -> JointIndex | None:
        name, joined = self._files.joint
        return (
            JointIndex(self._files.path / INDEXES / name, [segments[one] for one in joined]) if name else None
        )

    @cached_property
    def embedder(self) -> Embedder:
        """Loaded when it is first needed: chunks of the datastore itself have their keys there."""
        files = self._files
        return open_in_worker(files.embedder, files.precision, files.embedder_fingerprint)

    def queries(self, chunks: Sequence[str | np.ndarray]) -> tuple[np.ndarray, Entries]:
        return make_queries(chunks, self.tokenizer, lambda: self.embedder)


# One for each worker process, kept from shard to shard.
@lru_cache(maxsize=1)
def open_version(files: VersionFiles) -> RemoteVersion:
    """The version in this worker, which searches with one thread, as there is a worker a core."""
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    return RemoteVersion(files)
