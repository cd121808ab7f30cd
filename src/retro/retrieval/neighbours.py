"""Precomputed neighbours, keyed to the chunks of a token store.

So another seed, sequence length or batch size costs nothing. They belong to one version of the datastore.
Later deletions are masked when they are opened; finding them again searches only what the changes since
then make necessary.
"""

import copy
import json
import shutil
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from retro.corpus.tokens import TokenStore
from retro.errors import ArtifactError
from retro.retrieval.chunks import ChunkTable, content_hashes
from retro.retrieval.datastore import Datastore
from retro.retrieval.datastore.ledger import CompactedError
from retro.retrieval.datastore.scanning import nearest
from retro.retrieval.datastore.snapshot import Snapshot
from retro.retrieval.index import Entries
from retro.retrieval.other_documents import search_other_documents
from retro.retrieval.search import Neighbour, Search
from retro.stages.arrays import load_array
from retro.stages.files import locked, make_fingerprint
from retro.stages.hints import with_paths
from retro.stages.parts import ARRAYS, Parts
from retro.stages.progress import Progress, no_progress
from retro.stages.stage import PLAN, Artifact, Stage, open_artifact, run_stage
from retro.wording import counted

COMMAND = "retro neighbours WORK"
QUERIES = 8192
"""Chunks that are searched together, and kept together if the work is interrupted."""


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
        self.chunks, self.distances = _load_found(artifact)
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

    def replaced(self, chunks: np.ndarray, distances: np.ndarray) -> "Neighbours":
        """Others of the same chunks, found in the same datastore."""
        other = copy.copy(self)
        other.chunks = chunks
        other.distances = distances
        return other


def recorded_version(artifact: Artifact, datastore: Datastore) -> int | None:
    """The version of this datastore that neighbours were found in; none if they were found in another."""
    lineage = artifact.inputs["datastore"]
    return next((v.number for v in datastore.ledger.versions() if v.lineage == lineage), None)


def _load_found(artifact: Artifact) -> tuple[np.ndarray, np.ndarray]:
    """The chunks and the distances that were found, mapped into memory."""
    remedy = f"remove {artifact.path} and run: {COMMAND}"
    chunks = load_array(artifact.file("neighbours.npy"), remedy, mapped=True)
    distances = load_array(artifact.file("distances.npy"), remedy, mapped=True)
    kinds = chunks.dtype.kind + distances.dtype.kind
    if chunks.ndim != 2 or chunks.shape != distances.shape or kinds != "if":
        raise ArtifactError(
            f"{artifact.path} holds {chunks.dtype} of shape {chunks.shape} and distances {distances.dtype}, "
            f"{distances.shape}; expected chunks by rank, each with its distance; {remedy}"
        )
    return chunks, distances


def find_neighbours(
    store: TokenStore, datastore: Datastore, path: Path, progress: Progress = no_progress
) -> Neighbours:
    """Find the neighbours of every chunk, without chunks of the same document or of an equal one.

    Neighbours of an earlier version or of other tokens are brought up to date: of the documents that had
    theirs, a chunk that lost one is searched again, and the others look through what was added; new
    documents are searched in full. Interrupted, it goes on behind the last finished block of chunks.
    """
    place = store.artifact.path
    command = with_paths("retro ingest SOURCE --out WORK", place)
    datastore.tokenizer.expect(store.tokenizer_fingerprint, str(place), command)
    while True:
        try:
            return Neighbours(_find(store, datastore, path, progress), store, datastore)
        except CompactedError:
            continue  # before it was known what was added; the newest version can be asked


def _find(store: TokenStore, datastore: Datastore, path: Path, progress: Progress) -> Artifact:
    snapshot = datastore.snapshot()
    inputs = {"tokens": store.fingerprint, "datastore": snapshot.version.lineage}
    config = {"num_neighbours": datastore.config.num_neighbours, "chunk_len": datastore.chunk_len}
    former = former_of(path)
    if path.exists() and open_artifact(path, "neighbours", COMMAND).inputs != inputs:
        shutil.rmtree(former, ignore_errors=True)
        path.replace(former)
    # They would make the stage refuse to go on, since it was planned for other inputs.
    _drop_outdated(path.with_name(path.name + ".partial"), inputs)

    def work(stage: Stage) -> None:
        finding = _Finding(store, datastore, snapshot)
        if former.exists():
            finding.take_over(open_artifact(former, "neighbours", COMMAND))
        finding.finish(stage, progress)

    artifact = run_stage(path, "neighbours", config, inputs, work, COMMAND)
    shutil.rmtree(former, ignore_errors=True)
    return artifact


def former_of(path: Path) -> Path:
    """Where neighbours lie while they are brought up to date."""
    return path.with_name(path.name + ".former")


def _drop_outdated(partial: Path, inputs: dict[str, str]) -> None:
    """Remove unfinished neighbours of another version or of other tokens: nothing in them is of use now."""
    plan = partial / PLAN
    if plan.exists() and json.loads(plan.read_text())["inputs"] != inputs:
        with locked(partial):
            shutil.rmtree(partial)


class _Finding:
    """Neighbours on their way: what is known already, and what is still to be searched."""

    def __init__(self, store: TokenStore, datastore: Datastore, snapshot: Snapshot) -> None:
        self.datastore = datastore
        self.snapshot = snapshot
        self.k = datastore.config.num_neighbours
        self.table = ChunkTable(store, datastore.chunk_len)
        self.hashes = content_hashes(store)
        self.own = self.hashes[self.table.documents]
        """The content hash of every chunk's document, in which no neighbour may lie."""
        self.chunks = np.full((len(self.table), self.k), -1, dtype=np.int64)
        self.distances = np.full((len(self.table), self.k), np.inf, dtype=np.float32)
        self.known = np.zeros(len(self.table), dtype=bool)
        """Chunks whose former neighbours are all there still; they only look through what was added since."""
        self.added: list[int] = []
        """Documents that were added since the former neighbours were found."""

    def take_over(self, former: Artifact) -> None:
        """Use the neighbours of documents that were searched before, unless one of them is gone."""
        version = recorded_version(former, self.datastore)
        config = {"num_neighbours": self.k, "chunk_len": self.table.chunk_len}
        if version is None or former.config != config:
            return
        old_chunks, old_distances = _load_found(former)
        former.expect_whole("documents.npy")
        firsts = dict(np.load(former.file("documents.npy")).tolist())
        for document, content_hash in enumerate(self.hashes.tolist()):
            # An equal text has equal chunks, wherever it stood among the former tokens.
            if content_hash in firsts:
                begin, end = self.table.first[document], self.table.first[document + 1]
                old = slice(firsts[content_hash], firsts[content_hash] + end - begin)
                self.chunks[begin:end] = old_chunks[old]
                self.distances[begin:end] = old_distances[old]
                self.known[begin:end] = True
        lost = ((self.chunks >= 0) & ~self.snapshot.is_live(self.chunks)).any(axis=1)
        self.known &= ~lost
        self.chunks[~self.known] = -1
        self.distances[~self.known] = np.inf
        self.added = self.datastore.ledger.added_since(version, self.snapshot.version.number)

    def finish(self, stage: Stage, progress: Progress) -> None:
        """Search what is missing, block by block; blocks that an interrupted run finished are read."""
        blocks: list[tuple[str, list[int] | None, np.ndarray]]
        blocks = [("all", None, part) for part in _blocks(np.flatnonzero(~self.known))]
        if self.added:
            blocks += [("added", self.added, part) for part in _blocks(np.flatnonzero(self.known))]
        total = sum(len(part) for _, _, part in blocks)
        done = 0
        parts = Parts(stage.scratch("blocks"), ARRAYS)
        for among, documents, part in blocks:
            # The name says which chunks it holds, so that blocks of another size are never mistaken for
            # these.
            name = f"{among}-{part[0]:09d}-{part[-1]:09d}-{len(part)}"
            found = parts.keep(name, partial(self._search, part, documents))
            self.distances[part] = found["distances"]
            self.chunks[part] = found["chunks"]
            done += len(part)
            progress(done, total)
        write_found(stage, self.table, self.chunks, self.distances)
        searched = int((~self.known).sum())
        stage.counts.update(searched=searched, looked_through_added=total - searched)

    def _search(self, part: np.ndarray, documents: list[int] | None) -> dict[str, np.ndarray]:
        """The neighbours of some chunks: the best of those that they have and of those that are found."""
        distances = self.distances[part]
        chunks = self.chunks[part]
        for asked, entries in query_entries(self.table, self.own, self.datastore, self.snapshot, part):
            found = search_other_documents(self.snapshot, entries, self.own[asked], self.k, documents)
            # `part` is sorted, so this is where the asked chunks stand in it.
            rows = np.searchsorted(part, asked)
            distances[rows], chunks[rows] = nearest(
                np.concatenate([distances[rows], found[0]], axis=1),
                np.concatenate([chunks[rows], found[1]], axis=1),
                self.k,
            )
        return {"distances": distances, "chunks": chunks}


def _blocks(chunks: np.ndarray) -> list[np.ndarray]:
    return [chunks[start : start + QUERIES] for start in range(0, len(chunks), QUERIES)]


def query_entries(
    table: ChunkTable, own: np.ndarray, datastore: Datastore, search: Search, chunks: np.ndarray
) -> Iterator[tuple[np.ndarray, Entries]]:
    """What chunks with text are searched with: the datastore's own keys where it has them, or new ones.

    `own` are the content hashes of the documents of all chunks of the table.
    """
    offsets = chunks - table.first[table.documents[chunks]]
    found, keys = search.keys(search.find(own[chunks], offsets))
    if found.any():
        yield chunks[found], Entries(keys, [table.tokens(chunk) for chunk in chunks[found]])
    missing = chunks[~found]
    asked, entries = datastore.queries([table.tokens(chunk) for chunk in missing])
    if len(asked):
        yield missing[asked], entries


def write_found(stage: Stage, table: ChunkTable, chunks: np.ndarray, distances: np.ndarray) -> None:
    """The files of neighbours, as `Neighbours` reads them."""
    # Half the size for all datastores below two thousand million chunks.
    dtype = np.int32 if chunks.max(initial=0) < 1 << 31 else np.int64
    firsts = np.stack([content_hashes(table.store), table.first[:-1].astype(np.uint64)], axis=1)
    arrays: dict[str, Any] = {
        "neighbours.npy": chunks.astype(dtype),
        "distances.npy": distances,
        "documents.npy": firsts,
    }
    for name, array in arrays.items():
        with stage.write(name) as file:
            np.save(file, array)
    stage.counts.update(chunks=len(table), neighbours=int((chunks >= 0).sum()))
