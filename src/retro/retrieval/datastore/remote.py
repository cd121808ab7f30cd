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
        return VersionFiles(
            datastore.path.absolute(),
            snapshot.version,
            tuple(segments),
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
            segments = [self._segment(name) for name, _ in files.segments]
        except (FileNotFoundError, ArtifactError):
            # Whoever sent the files knows whether the version is still there.
            raise CompactedError(files.path, files.version.number) from None
        deleted = [numbers for _, numbers in files.segments]
        self.snapshot = Snapshot(files.version, segments, deleted, files.chunk_len, self.tokenizer.pad_id)

    def _segment(self, name: str) -> Segment:
        folder = self._files.path / SEGMENTS / name
        return Segment(folder, self._files.chunk_len, self.tokenizer.dtype, self.tokenizer.pad_id)

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
