"""Precomputed neighbours, keyed to the chunks of a token store, so that another seed, length or batch size costs nothing.

They belong to one version of the datastore. Later deletions are masked when they are opened; finding them again searches only what
the changes since then make necessary.
"""

import copy
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from retro.corpus.tokens import TokenStore
from retro.errors import ArtifactError
from retro.retrieval.chunks import ChunkTable, content_hashes
from retro.retrieval.datastore.datastore import Datastore, Neighbour
from retro.retrieval.datastore.snapshot import Snapshot, nearest
from retro.retrieval.index import Entries
from retro.stages.files import make_fingerprint
from retro.stages.progress import Progress
from retro.stages.stage import Artifact, Stage, open_artifact, run_stage

QUERIES = 8192
"""Chunks that are searched together."""


class Neighbours:
    """The K nearest chunks of the datastore for every chunk of a token store, nearest first; −1 where there are no more.

    Chunks without text have none. Incomplete chunks have theirs for the measurement of overlap; a model never reads them.
    """

    def __init__(self, artifact: Artifact, store: TokenStore, datastore: Datastore) -> None:
        self.artifact, self.store, self.datastore, self.snapshot = (
            artifact,
            store,
            datastore,
            datastore.snapshot(),
        )
        if artifact.inputs["tokens"] != store.fingerprint:
            raise ArtifactError(
                f"{artifact.path} was made for other tokens than these; remove it and run: retro neighbours"
            )
        if recorded_version(artifact, datastore) is None:
            raise ArtifactError(
                f"{artifact.path} was made for another datastore than {datastore.path}; remove it and run: retro neighbours"
            )
        self.table = ChunkTable(store, datastore.chunk_len)
        self.chunks: np.ndarray = np.load(artifact.file("neighbours.npy"), mmap_mode="r")
        self.distances: np.ndarray = np.load(artifact.file("distances.npy"), mmap_mode="r")

    @staticmethod
    def open(path: str | Path, store: TokenStore, datastore: Datastore) -> "Neighbours":
        return Neighbours(open_artifact(Path(path), "neighbours", "retro neighbours WORK"), store, datastore)

    @property
    def fingerprint(self) -> str:
        """Changes with the neighbours and with deletions since."""
        return make_fingerprint(self.artifact.fingerprint, self.snapshot.version.lineage)

    @property
    def max_neighbours(self) -> int:
        return int(self.chunks.shape[1])

    def values(self, chunks: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """[N, F] of the first k neighbours of each chunk, all padding where there is none, and the mask of the real ones.

        A neighbour that was deleted since is not there.
        """
        found = np.asarray(self.chunks[chunks][..., :k], dtype=np.int64)
        return self.snapshot.values(found), self.snapshot.is_live(found)

    def documents(self, chunks: np.ndarray, k: int) -> np.ndarray:
        """Short content hashes of the neighbours' documents; 0 where the mask of `values` is false."""
        return self.snapshot.content_hashes(np.asarray(self.chunks[chunks][..., :k], dtype=np.int64))

    def describe(self, chunks: np.ndarray, k: int) -> list[list[Neighbour]]:
        """The first k neighbours of each chunk with their texts and documents, nearest first; without those deleted since."""
        found = np.asarray(self.chunks[chunks][:, :k], dtype=np.int64)
        return self.datastore.describe(
            self.snapshot, self.distances[chunks][:, :k], np.where(self.snapshot.is_live(found), found, -1)
        )

    def select(self, documents: Sequence[int]) -> "Neighbours":
        """Those of some documents of the store, beside `TokenStore.select`."""
        rows = np.concatenate(
            [np.arange(self.table.first[index], self.table.first[index + 1]) for index in documents]
        )
        chosen = copy.copy(self)
        chosen.store = self.store.select(documents)
        chosen.table = ChunkTable(chosen.store, self.table.chunk_len)
        chosen.chunks, chosen.distances = self.chunks[rows], self.distances[rows]
        return chosen


def recorded_version(artifact: Artifact, datastore: Datastore) -> int | None:
    """The version of this datastore that neighbours were found in; none if they were found in another."""
    return next(
        (v.number for v in datastore.ledger.versions() if v.lineage == artifact.inputs["datastore"]), None
    )


def find_neighbours(
    store: TokenStore, datastore: Datastore, path: Path, progress: Progress | None = None
) -> Neighbours:
    """Find the neighbours of every chunk, without chunks of the same document or of an equal one.

    Neighbours of an earlier version or of other tokens are brought up to date: of the documents that had theirs, a chunk that lost one
    is searched again, and the others look through what was added; new documents are searched in full.
    """
    datastore.tokenizer.expect(store.tokenizer_fingerprint, str(store.artifact.path), "retro ingest")
    snapshot = datastore.snapshot()
    inputs = {"tokens": store.fingerprint, "datastore": snapshot.version.lineage}
    former = path.with_name(path.name + ".former")
    if path.exists() and open_artifact(path, "neighbours", "retro neighbours WORK").inputs != inputs:
        shutil.rmtree(former, ignore_errors=True)
        path.replace(former)

    def work(stage: Stage) -> None:
        search = _Search(store, datastore, snapshot)
        if former.exists():
            search.take_over(
                Artifact(former, open_artifact(former, "neighbours", "retro neighbours WORK").manifest)
            )
        search.finish(stage, progress)

    config = {"num_neighbours": datastore.config.num_neighbours, "chunk_len": datastore.chunk_len}
    artifact = run_stage(path, "neighbours", config, inputs, work, "retro neighbours WORK")
    shutil.rmtree(former, ignore_errors=True)
    return Neighbours(artifact, store, datastore)


class _Search:
    """Neighbours on their way: what is known already, and what is still to be searched."""

    def __init__(self, store: TokenStore, datastore: Datastore, snapshot: Snapshot) -> None:
        self.datastore, self.snapshot = datastore, snapshot
        self.k = datastore.config.num_neighbours
        self.table = ChunkTable(store, datastore.chunk_len)
        self.hashes = content_hashes(store)
        self.own = self.hashes[self.table.documents]
        self.chunks = np.full((len(self.table), self.k), -1, dtype=np.int64)
        self.distances = np.full((len(self.table), self.k), np.inf, dtype=np.float32)
        self.known = np.zeros(len(self.table), dtype=bool)
        """Chunks whose neighbours at `since` are taken over whole."""
        self.since = 0

    def take_over(self, former: Artifact) -> None:
        """Use the neighbours of documents that were searched before, unless one of them is gone."""
        version = recorded_version(former, self.datastore)
        if (
            version is None
            or former.config["num_neighbours"] != self.k
            or former.config["chunk_len"] != self.table.chunk_len
        ):
            return
        self.since = version
        old_chunks, old_distances = (
            np.load(former.file(name), mmap_mode="r") for name in ("neighbours.npy", "distances.npy")
        )
        firsts = dict(np.load(former.file("documents.npy")).tolist())
        for document, content_hash in enumerate(self.hashes.tolist()):
            begin, end = self.table.first[document], self.table.first[document + 1]
            if content_hash in firsts:
                old = slice(firsts[content_hash], firsts[content_hash] + end - begin)
                self.chunks[begin:end], self.distances[begin:end] = old_chunks[old], old_distances[old]
                self.known[begin:end] = True
        lost = ((self.chunks >= 0) & ~self.snapshot.is_live(self.chunks)).any(axis=1)
        self.known &= ~lost
        self.chunks[~self.known], self.distances[~self.known] = -1, np.inf

    def finish(self, stage: Stage, progress: Progress | None) -> None:
        added = self.datastore.ledger.added_since(self.since) if self.known.any() else []
        jobs: list[tuple[np.ndarray, list[int] | None]] = [(np.flatnonzero(~self.known), None)]
        if added:
            jobs.append((np.flatnonzero(self.known), added))
        total, done = sum(len(chunks) for chunks, _ in jobs), 0
        for chunks, documents in jobs:
            for start in range(0, len(chunks), QUERIES):
                part = chunks[start : start + QUERIES]
                self._search(part, documents)
                done += len(part)
                if progress:
                    progress(done, total)
        write_found(stage, self.table, self.chunks, self.distances)
        searched = int((~self.known).sum())
        stage.counts.update(searched=searched, looked_through_added=total - searched)

    def _search(self, chunks: np.ndarray, documents: list[int] | None) -> None:
        for part, entries in query_entries(self.table, self.own, self.datastore, self.snapshot, chunks):
            distances, found = search_other_documents(
                self.snapshot, entries, self.own[part], self.k, documents
            )
            both = (
                np.concatenate([self.distances[part], distances], axis=1),
                np.concatenate([self.chunks[part], found], axis=1),
            )
            self.distances[part], self.chunks[part] = nearest(*both, self.k)


def query_entries(
    table: ChunkTable, own: np.ndarray, datastore: Datastore, snapshot: Snapshot, chunks: np.ndarray
) -> Iterator[tuple[np.ndarray, Entries]]:
    """Keys of the chunks that have text: the datastore's own, where it holds the document, or new ones.

    `own` are the content hashes of the documents of all chunks of the table.
    """
    texts = {int(chunk): datastore.tokenizer.decode(table.tokens(chunk).tolist()) for chunk in chunks}
    chunks = np.array([chunk for chunk, text in texts.items() if text.strip()], dtype=np.int64)
    stored = snapshot.find(own[chunks], chunks - table.first[table.documents[chunks]])
    found, keys = snapshot.keys(stored)
    yield chunks[found], Entries(keys, [table.tokens(chunk) for chunk in chunks[found]])
    missing = chunks[~found]
    if len(missing):
        keys = datastore.embedder.embed([texts[int(chunk)] for chunk in missing]).astype(np.float16)
        yield missing, Entries(keys, [table.tokens(chunk) for chunk in missing])


def write_found(stage: Stage, table: ChunkTable, chunks: np.ndarray, distances: np.ndarray) -> None:
    """The files of neighbours, as `Neighbours` reads them."""
    dtype = np.int32 if chunks.max(initial=0) < 1 << 31 else np.int64
    firsts = np.stack([content_hashes(table.store), table.first[:-1].astype(np.uint64)], axis=1)
    arrays = {"neighbours.npy": chunks.astype(dtype), "distances.npy": distances, "documents.npy": firsts}
    for name, array in arrays.items():
        with stage.write(name) as file:
            np.save(file, array)
    stage.counts.update(chunks=len(table), neighbours=int((chunks >= 0).sum()))


def search_other_documents(
    snapshot: Snapshot, entries: Entries, own: np.ndarray, k: int, documents: list[int] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Distances and numbers of the k nearest chunks among documents with another content hash than each entry's own.

    Searches again, twice as far, for those that the filter left with too few, until they have k or there are no more.
    """
    distances = np.full((len(own), k), np.inf, dtype=np.float32)
    chunks = np.full((len(own), k), -1, dtype=np.int64)
    todo, reach, most = np.arange(len(own)), 2 * k, len(snapshot)
    while len(todo):
        part = Entries(
            entries.keys[todo], [entries.tokens[int(query)] for query in todo] if len(entries.tokens) else ()
        )
        found_distances, found = snapshot.search(part, min(reach, max(1, most)), documents)
        other = (found >= 0) & (snapshot.content_hashes(found) != own[todo][:, None])
        distances[todo], chunks[todo] = nearest(
            *_at_least(np.where(other, found_distances, np.inf), np.where(other, found, -1), k), k
        )
        exhausted = reach >= most or bool((found[:, -1] < 0).all())
        todo, reach = todo[(chunks[todo, -1] < 0) & ~np.bool_(exhausted)], 2 * reach
    return distances, chunks


def _at_least(distances: np.ndarray, chunks: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Columns filled up to k with nothing."""
    missing = max(0, k - chunks.shape[1])
    return np.pad(distances, ((0, 0), (0, missing)), constant_values=np.inf), np.pad(
        chunks, ((0, 0), (0, missing)), constant_values=-1
    )
