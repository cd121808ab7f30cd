"""Precomputed neighbours, keyed to the chunks of a token store.

So another seed, sequence length or batch size costs nothing. They belong to one version of the datastore.
Later deletions are masked when they are opened. `finding.py` finds them.
"""

import copy
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from retro.config import FILE_BYTES
from retro.corpus.tokens import TokenStore
from retro.errors import ArtifactError
from retro.retrieval.chunks import ChunkTable, content_hashes
from retro.retrieval.datastore import Datastore
from retro.retrieval.search import Neighbour
from retro.stages.arrays import reserve
from retro.stages.files import atomic_path, make_fingerprint
from retro.stages.hints import with_paths
from retro.stages.shards import (
    Rows,
    ShardedArray,
    drop_shards,
    file_names,
    files_of,
    load_shards,
    rows_per_file,
)
from retro.stages.stage import Artifact, Stage, open_artifact
from retro.wording import counted

COMMAND = "retro neighbours WORK"
NEIGHBOURS, DISTANCES, DOCUMENTS = "neighbours", "distances", "documents.npy"
"""What is found is one file each, or several; the documents' table is one."""


class Neighbours:
    """The K nearest chunks of the datastore for every chunk of a token store, nearest first.

    Where there are no more it is −1. Chunks without text have none. Incomplete chunks have theirs for the
    measurement of overlap; a model never reads them.
    """

    def __init__(self, artifact: Artifact, store: TokenStore, datastore: Datastore) -> None:
        if artifact.inputs["tokens"] != store.fingerprint:
            raise ArtifactError(
                f"{artifact.path} was made for other tokens than these; remove it and "
                f"run: {with_paths(COMMAND, artifact.path)}"
            )
        if recorded_version(artifact, datastore) is None:
            raise ArtifactError(
                f"{artifact.path} was made for another datastore than {datastore.path}; remove it and "
                f"run: {with_paths(COMMAND, artifact.path)}"
            )
        # The snapshot is taken after the version was found, so it is that version or a later one.
        self.artifact = artifact
        self.store = store
        self.datastore = datastore
        self.snapshot = datastore.snapshot()
        self.table = ChunkTable(store, datastore.chunk_len)
        self.chunks, self.distances = load_found(artifact)
        if len(self.chunks) != len(self.table):
            raise ArtifactError(
                f"{artifact.path} has neighbours of {counted(len(self.chunks), 'chunk')}; expected the "
                f"{len(self.table):,} of {store.artifact.path}; remove it and run: {COMMAND}"
            )

    @staticmethod
    def open(path: str | Path, store: TokenStore, datastore: Datastore) -> "Neighbours":
        return Neighbours(open_artifact(Path(path), "neighbours", COMMAND), store, datastore)

    @property
    def fingerprint(self) -> str:
        """Changes with the neighbours and with deletions since."""
        return make_fingerprint(self.artifact.fingerprint, self.snapshot.version.lineage)

    @property
    def version(self) -> int:
        """The datastore's version that they are used with."""
        return self.snapshot.version.number

    @property
    def max_neighbours(self) -> int:
        return int(self.chunks.shape[1])

    def values(self, chunks: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """[N, F] of the first k neighbours of each chunk, and the mask of the real ones.

        Where there is no neighbour, or it was deleted since, it is all padding.
        """
        found = np.asarray(self.chunks[chunks][..., :k], dtype=np.int64)
        return self.snapshot.values(found), self.snapshot.is_live(found)

    def documents(self, chunks: np.ndarray, k: int) -> np.ndarray:
        """Short content hashes of the neighbours' documents; 0 where the mask of `values` is false."""
        return self.snapshot.content_hashes(np.asarray(self.chunks[chunks][..., :k], dtype=np.int64))

    def describe(self, chunks: np.ndarray, k: int) -> list[list[Neighbour]]:
        """The first k neighbours of each chunk with their texts and documents, but none deleted since."""
        found = np.asarray(self.chunks[chunks][:, :k], dtype=np.int64)
        live = np.where(self.snapshot.is_live(found), found, -1)
        return self.datastore.describe(self.snapshot, self.distances[chunks][:, :k], live)

    def select(self, documents: Sequence[int]) -> "Neighbours":
        """Those of some documents of the store, beside `TokenStore.select`."""
        rows = np.concatenate(
            [np.arange(self.table.first[index], self.table.first[index + 1]) for index in documents]
        )
        chosen = copy.copy(self)
        chosen.store = self.store.select(documents)
        chosen.table = ChunkTable(chosen.store, self.table.chunk_len)
        chosen.chunks = self.chunks[rows]
        chosen.distances = self.distances[rows]
        return chosen

    def replaced(self, chunks: Rows, distances: Rows) -> "Neighbours":
        """Others of the same chunks, found in the same datastore."""
        other = copy.copy(self)
        other.chunks = chunks
        other.distances = distances
        return other


def recorded_version(artifact: Artifact, datastore: Datastore) -> int | None:
    """The version of this datastore that neighbours were found in; none if they were found in another."""
    lineage = artifact.inputs["datastore"]
    return next((v.number for v in datastore.ledger.versions() if v.lineage == lineage), None)


def load_found(artifact: Artifact) -> tuple[Rows, Rows]:
    """The chunks and the distances that were found, mapped into memory."""
    remedy = f"remove {artifact.path} and run: {COMMAND}"
    chunks = load_shards(files_of(artifact, NEIGHBOURS), remedy)
    distances = load_shards(files_of(artifact, DISTANCES), remedy)
    kinds = chunks.dtype.kind + distances.dtype.kind
    if chunks.ndim != 2 or chunks.shape != distances.shape or kinds != "if":
        raise ArtifactError(
            f"{artifact.path} holds {chunks.dtype} of shape {chunks.shape} and distances {distances.dtype}, "
            f"{distances.shape}; expected chunks by rank, each with its distance; {remedy}"
        )
    return chunks, distances


class FoundFiles:
    """The files of neighbours, filled in any order and not in memory; they are whole when the block ends."""

    def __init__(
        self, stage: Stage, table: ChunkTable, k: int, highest: int, file_bytes: int = FILE_BYTES
    ) -> None:
        """`highest` is the largest number of a chunk that can be found; `file_bytes` bounds each file."""
        self._stage = stage
        self._file_bytes = file_bytes
        self._table = table
        self._shape = (len(table), k)
        # Half the size for all datastores below two thousand million chunks.
        self._dtype: Any = np.int32 if highest < 1 << 31 else np.int64
        self._files = ExitStack()
        self._num_found = 0

    def __enter__(self) -> "FoundFiles":
        self._chunks = self._map(NEIGHBOURS, self._dtype)
        self._distances = self._map(DISTANCES, np.float32)
        return self

    def _map(self, name: str, dtype: Any) -> ShardedArray:
        drop_shards(self._stage, name)
        num_rows, k = self._shape
        most = rows_per_file(self._file_bytes, k * np.dtype(dtype).itemsize)
        parts = []
        for number, file in enumerate(file_names(name, num_rows, most)):
            path = self._files.enter_context(atomic_path(self._stage.file(file)))
            shape = (min(most, num_rows - number * most), k)
            parts.append(np.lib.format.open_memmap(path, "w+", dtype, shape))
            reserve(path)
        return ShardedArray(parts)

    def write(self, rows: np.ndarray, chunks: np.ndarray, distances: np.ndarray) -> None:
        """The neighbours of some chunks of the table."""
        self._chunks[rows] = chunks
        self._distances[rows] = distances
        self._num_found += int((chunks >= 0).sum())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._chunks.flush()
            self._distances.flush()
            table = self._table
            firsts = np.stack([content_hashes(table.store), table.first[:-1].astype(np.uint64)], axis=1)
            with self._stage.write(DOCUMENTS) as file:
                np.save(file, firsts)
            self._stage.counts.update(chunks=len(table), neighbours=self._num_found)
        del self._chunks, self._distances
        self._files.__exit__(kind, error, trace)
