"""The datastore: chunks of a token store, their keys, and an index over them."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from retro.artifacts import Artifact, Progress, Stage, open_artifact, run_stage
from retro.config import DatastoreConfig, from_dict, to_dict
from retro.corpus.tokenizer import Tokenizer
from retro.corpus.tokens import TokenStore
from retro.errors import ArtifactError, DataError
from retro.retrieval.chunks import ChunkTable
from retro.retrieval.embedder import Embedder
from retro.retrieval.index import FaissIndex, measure_recall

SHARD = 2048
"""Chunks embedded between two saves."""


@dataclass(frozen=True)
class Neighbour:
    """A retrieved chunk with its continuation, and where it comes from."""

    row: int
    distance: float
    tokens: np.ndarray
    """[N, F], padded."""
    text: str
    document: str
    title: str
    source: str


class Datastore:
    """Chunk rows with keys and values. Row r of the index is chunk `rows[r]` of the table."""

    def __init__(self, artifact: Artifact, store: TokenStore, tokenizer: Tokenizer) -> None:
        self.artifact, self.store, self.tokenizer = artifact, store, tokenizer
        self.fingerprint = artifact.fingerprint
        self.config = from_dict(DatastoreConfig, artifact.config, f"{artifact.path}/manifest.json")
        self.table = ChunkTable(store, self.config.chunk_len)
        self.rows: np.ndarray = np.load(artifact.file("rows.npy"))
        self.index = FaissIndex.open(artifact.file("index.faiss"))
        self.content_hashes = np.array([document["content_hash"] for document in store.documents])
        self.ids = np.array([document["id"] for document in store.documents])
        self._embedder: Embedder | None = None
        if len(self.index) != len(self.rows):
            raise ArtifactError(f"{artifact.path} holds {len(self.index)} keys for {len(self.rows)} chunks; remove it and run: retro build")

    @staticmethod
    def open(path: str | Path) -> "Datastore":
        """Open a datastore with the token store and the tokenizer that it was built from."""
        artifact = open_artifact(Path(path), "datastore", f"retro build TOKENS --out {path}")
        places = {name: (artifact.path / relative).resolve() for name, relative in artifact.counts["places"].items()}
        store, tokenizer = TokenStore.open(places["tokens"]), Tokenizer.open(places["tokenizer"])
        if store.fingerprint != artifact.inputs["tokens"]:
            raise ArtifactError(f"{path} was built from other tokens than {places['tokens']} holds now; remove it and run: retro build")
        tokenizer.expect(artifact.inputs["tokenizer"], str(path), "retro build")
        return Datastore(artifact, store, tokenizer)

    @property
    def embedder(self) -> Embedder:
        """The encoder of the keys, loaded when it is first needed."""
        if self._embedder is None:
            embedder = Embedder(self.config.encoder)
            if embedder.fingerprint != self.artifact.inputs["encoder"]:
                raise ArtifactError(
                    f"{self.artifact.path} was built with another {self.config.encoder!r} than is here now; "
                    "expected the same encoder for keys and queries; remove it and run: retro build"
                )
            self._embedder = embedder
        return self._embedder

    def __len__(self) -> int:
        return len(self.rows)

    def values(self, rows: np.ndarray) -> np.ndarray:
        """[N, F] of each row, padded."""
        return self.table.gather(self.rows[rows], 2 * self.config.chunk_len)

    def keys(self) -> np.ndarray:
        """The stored keys, one a row."""
        return np.concatenate([np.load(file) for file in sorted(self.artifact.file("keys").glob("*.npy"))])

    def search(self, texts: Sequence[str], k: int, exclude: Sequence[str] = ()) -> list[list[Neighbour]]:
        """The k nearest chunks of each text, without documents whose content hash or id is excluded; fewer if there are no more."""
        if not texts:
            return []
        excluded = np.isin(self.content_hashes, exclude) | np.isin(self.ids, exclude)
        reach = k + int(excluded[self.table.documents[self.rows]].sum()) if excluded.any() else k
        distances, rows = self.index.search(self.embedder.embed(texts), min(reach, len(self)))
        found = [
            [(int(row), float(distance)) for row, distance in zip(*pair, strict=True) if row >= 0 and not excluded[self._document(row)]]
            for pair in zip(rows, distances, strict=True)
        ]
        return [[self._neighbour(row, distance) for row, distance in pairs[:k]] for pairs in found]

    def _document(self, row: int) -> int:
        return int(self.table.documents[self.rows[row]])

    def _neighbour(self, row: int, distance: float) -> Neighbour:
        tokens, document = self.values(np.array(row)), self.store.documents[self._document(row)]
        return Neighbour(row, distance, tokens, self.tokenizer.decode(tokens), document["id"], document["title"], document["source"])


def build_datastore(
    store: TokenStore, tokenizer_path: Path, path: Path, config: DatastoreConfig, progress: Progress | None = None
) -> Datastore:
    """Embed every chunk of a token store and index the keys. Interrupted, it goes on at the last saved shard."""
    tokenizer = Tokenizer.open(tokenizer_path)
    tokenizer.expect(store.tokenizer_fingerprint, str(store.artifact.path), "retro ingest")
    embedder = Embedder(config.encoder)

    def work(stage: Stage) -> None:
        table = ChunkTable(store, config.chunk_len)
        texts = [tokenizer.decode(table.tokens(chunk)) for chunk in range(len(table))]
        rows = np.array([chunk for chunk, text in enumerate(texts) if text.strip()], dtype=np.int64)
        if not len(rows):
            raise DataError(f"{store.artifact.path} holds no chunk with text; expected at least one; ingest more text")
        keys = embed_in_shards(stage, embedder, [texts[row] for row in rows], progress)
        index = FaissIndex.for_size(embedder.width, len(keys), config.exact_below)
        index.add(keys)
        index.save(stage.file("index.faiss"))
        with stage.write("rows.npy") as file:
            np.save(file, rows)
        stage.counts.update(
            keys=len(rows),
            empty_chunks=len(table) - len(rows),
            width=embedder.width,
            index=index.kind,
            recall_at_10=measure_recall(index, keys),
            places={"tokens": _relative(store.artifact.path, path), "tokenizer": _relative(tokenizer_path, path)},
        )

    inputs = {"tokens": store.fingerprint, "tokenizer": tokenizer.fingerprint, "encoder": embedder.fingerprint}
    run_stage(path, "datastore", to_dict(config), inputs, work, f"retro build {store.artifact.path} --out {path}")
    datastore = Datastore.open(path)
    datastore._embedder = embedder
    return datastore


def embed_in_shards(stage: Stage, embedder: Embedder, texts: Sequence[str], progress: Progress | None) -> np.ndarray:
    """Keys of the texts, kept as float16, shard by shard; finished shards are not made again."""
    stage.file("keys").mkdir(exist_ok=True)
    shards = []
    for start in range(0, len(texts), SHARD):
        name = f"keys/{start:010d}.npy"
        if not stage.has(name):
            keys = embedder.embed(texts[start : start + SHARD], partial(_from, start, len(texts), progress) if progress else None)
            with stage.write(name) as file:
                np.save(file, keys.astype(np.float16))
        shards.append(np.load(stage.file(name)))
    if progress:
        progress(len(texts), len(texts))
    return np.concatenate(shards) if shards else np.zeros((0, embedder.width), dtype=np.float16)


def _from(start: int, total: int, progress: Progress, done: int, _shard: int) -> None:
    progress(start + done, total)


def _relative(target: Path, start: Path) -> str:
    return os.path.relpath(target.resolve(), start.resolve())
