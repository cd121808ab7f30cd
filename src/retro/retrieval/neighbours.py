"""Precomputed neighbours, keyed to the chunks of a token store, so that another seed, length or batch size costs nothing."""

from pathlib import Path

import numpy as np

from retro.artifacts import Artifact, Progress, Stage, open_artifact, run_stage
from retro.corpus.tokens import TokenStore
from retro.errors import ArtifactError
from retro.retrieval.chunks import ChunkTable
from retro.retrieval.datastore import Datastore, embed_in_shards


class Neighbours:
    """The K nearest datastore rows of every chunk of a token store; chunk c has `counts[c]` of them, nearest first.

    Chunks without text have none. Incomplete chunks have theirs for the measurement of overlap; a model never reads them.
    """

    def __init__(self, artifact: Artifact, store: TokenStore, datastore: Datastore) -> None:
        for name, owner in (("tokens", store.fingerprint), ("datastore", datastore.fingerprint)):
            if artifact.inputs[name] != owner:
                raise ArtifactError(f"{artifact.path} was made for other {name} than these; remove it and run: retro neighbours")
        self.artifact, self.store, self.datastore = artifact, store, datastore
        self.table = ChunkTable(store, datastore.config.chunk_len)
        self.rows: np.ndarray = np.load(artifact.file("neighbours.npy"), mmap_mode="r")
        self.counts: np.ndarray = np.load(artifact.file("counts.npy"))

    @staticmethod
    def open(path: str | Path, store: TokenStore, datastore: Datastore) -> "Neighbours":
        artifact = open_artifact(Path(path), "neighbours", f"retro neighbours {store.artifact.path} --datastore {datastore.artifact.path}")
        return Neighbours(artifact, store, datastore)

    @property
    def max_neighbours(self) -> int:
        return int(self.rows.shape[1])

    def values(self, chunks: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """[N, F] of the first k neighbours of each chunk, all padding where there is none, and the mask of the real ones."""
        mask = np.arange(k) < self.counts[chunks][..., None]
        rows = np.where(mask, self.rows[chunks][..., :k], 0)
        return np.where(mask[..., None], self.datastore.values(rows), self.datastore.tokenizer.pad_id), mask

    def documents(self, chunks: np.ndarray, k: int) -> np.ndarray:
        """Content hashes of the neighbours' documents; meaningless where the mask of `values` is false."""
        rows = self.rows[chunks][..., :k]
        hashes: np.ndarray = self.datastore.content_hashes[self.datastore.table.documents[self.datastore.rows[rows]]]
        return hashes


def find_neighbours(store: TokenStore, datastore: Datastore, path: Path, progress: Progress | None = None) -> Neighbours:
    """Search the neighbours of every chunk, without chunks of the same document or of an equal one."""
    datastore.tokenizer.expect(store.tokenizer_fingerprint, str(store.artifact.path), "retro ingest")
    command = f"retro neighbours {store.artifact.path} --datastore {datastore.artifact.path} --out {path}"

    def work(stage: Stage) -> None:
        table = ChunkTable(store, datastore.config.chunk_len)
        texts = [datastore.tokenizer.decode(table.tokens(chunk)) for chunk in range(len(table))]
        chunks = np.array([chunk for chunk, text in enumerate(texts) if text.strip()], dtype=np.int64)
        k = datastore.config.num_neighbours
        rows = np.zeros((len(table), k), dtype=np.int32)
        distances = np.full((len(table), k), np.inf, dtype=np.float32)
        counts = np.zeros(len(table), dtype=np.int32)
        if store.fingerprint == datastore.store.fingerprint:
            keys = datastore.keys()
        else:
            keys = embed_in_shards(stage, datastore.embedder, [texts[chunk] for chunk in chunks], progress)
        own = np.array([document["content_hash"] for document in store.documents])[table.documents[chunks]]
        rows[chunks], distances[chunks], counts[chunks] = search_other_documents(datastore, keys, own, k)
        for name, array in (("neighbours.npy", rows), ("distances.npy", distances), ("counts.npy", counts)):
            with stage.write(name) as file:
                np.save(file, array)
        stage.counts.update(chunks=len(table), searched=len(chunks), neighbours=int(counts.sum()))

    inputs = {"tokens": store.fingerprint, "datastore": datastore.fingerprint}
    return Neighbours(run_stage(path, "neighbours", {}, inputs, work, command), store, datastore)


def search_other_documents(datastore: Datastore, keys: np.ndarray, own: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The k nearest rows of each key among documents with another content hash than its own, their distances and their number.

    Searches again, twice as far, for the keys that the filter left with too few, until they have k or the datastore is exhausted.
    """
    hash_of_row = datastore.content_hashes[datastore.table.documents[datastore.rows]]
    rows = np.zeros((len(keys), k), dtype=np.int32)
    distances = np.full((len(keys), k), np.inf, dtype=np.float32)
    counts = np.zeros(len(keys), dtype=np.int32)
    todo, reach = np.arange(len(keys)), min(len(datastore), 2 * k)
    while len(todo):
        found_distances, found = datastore.index.search(keys[todo], reach)
        for query, query_distances, query_rows in zip(todo, found_distances, found, strict=True):
            kept = np.flatnonzero((query_rows >= 0) & (hash_of_row[query_rows] != own[query]))[:k]
            counts[query] = len(kept)
            rows[query, : len(kept)], distances[query, : len(kept)] = query_rows[kept], query_distances[kept]
        todo = todo[counts[todo] < k] if reach < len(datastore) else todo[:0]
        reach = min(len(datastore), 2 * reach)
    return rows, distances, counts
