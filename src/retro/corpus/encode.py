"""The encoding stage: shards of text to shards of tokens, each shard by one worker."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from retro.corpus.documents import SPLITS, Document
from retro.corpus.text import TextStore, read_shard
from retro.corpus.tokenizers import Tokenizer
from retro.errors import ArtifactError
from retro.stages.arrays import load_array
from retro.stages.executor import Executor
from retro.stages.files import atomic_write
from retro.stages.hints import quoted, with_paths
from retro.stages.parts import ROWS, Parts
from retro.stages.progress import Progress, no_progress
from retro.stages.stage import Artifact, Stage, open_artifact, recorded_inputs, run_stage


@dataclass(frozen=True)
class EncodedDocument:
    """A document's number among all that were encoded, its row of the table, and its tokens."""

    number: int
    row: dict[str, Any]
    tokens: np.ndarray


class EncodedStore:
    """Finished shards of tokens. Shard i holds the documents of the text's shard i, all splits together.

    A shard is a table, `NUMBER.jsonl`, and the tokens of its rows one after the other, `NUMBER.npy`.
    """

    def __init__(self, artifact: Artifact) -> None:
        self.artifact = artifact
        self.fingerprint = artifact.fingerprint
        again = f"retro ingest SOURCE --out {quoted(artifact.path.parent)}"
        mend = f"retro doctor --work {quoted(artifact.path.parent)} --mend"
        self._remedy = f"run: {mend}; then run: {with_paths(again, artifact.path)}"
        self._tables = Parts(artifact.path, ROWS, self._remedy)
        self._mapped: tuple[str, np.ndarray] | None = None
        artifact.expect_whole(*(name for name in artifact.manifest["files"] if name.endswith(ROWS.suffix)))
        self._names = sorted(table.stem for table in artifact.path.glob(f"*{ROWS.suffix}"))

    def rows(self) -> Iterator[dict[str, Any]]:
        """The rows of all documents, without their tokens."""
        for name in self._names:
            yield from self._tables.read(name)

    def splits(self) -> list[str]:
        """The splits that have documents, in the order of `SPLITS`."""
        found: set[str] = set()
        for row in self.rows():
            found.add(row["split"])
            if len(found) == len(SPLITS):
                break  # usually after a few rows
        return [split for split in SPLITS if split in found]

    def documents(self, split: str) -> Iterator[EncodedDocument]:
        """The documents of a split in the order of the text; one shard is mapped at a time."""
        for number, (name, start, row) in enumerate(self.places()):
            if row["split"] == split:
                yield EncodedDocument(number, row, self.tokens(name)[start : start + row["num_tokens"]])

    def places(self) -> Iterator[tuple[str, int, dict[str, Any]]]:
        """The shard of every document, where its tokens begin there, and its row."""
        for name in self._names:
            # The tokens of the rows lie one after the other, so their lengths tell where each begins.
            start = 0
            for row in self._tables.read(name):
                yield name, start, row
                start += row["num_tokens"]

    def tokens(self, name: str) -> np.ndarray:
        """The tokens of a shard, mapped; the last one that was asked for stays open."""
        if self._mapped is None or self._mapped[0] != name:
            path = self.artifact.file(f"{name}.npy")
            tokens = load_array(path, self._remedy, mapped=True)
            if tokens.ndim != 1 or tokens.dtype.kind != "u":
                raise ArtifactError(
                    f"{path} holds {tokens.dtype} of shape {tokens.shape}; "
                    f"expected tokens in one row; {self._remedy}"
                )
            self._mapped = (name, tokens)
        return self._mapped[1]


class KnownTokens:
    """The tokens of an earlier store by the content of their documents, for those that are still the same."""

    def __init__(self, store: EncodedStore) -> None:
        self._store = store
        self._places: dict[bytes, tuple[str, int, int]] = {}
        for name, start, row in store.places():
            # As bytes, since there is one a document and hexadecimal text takes twice the memory.
            digest = bytes.fromhex(row["content_hash"])
            self._places.setdefault(digest, (name, start, start + row["num_tokens"]))

    def get(self, document: Document) -> np.ndarray | None:
        place = self._places.get(bytes.fromhex(document.content_hash))
        if place is None:
            return None
        name, start, end = place
        return self._store.tokens(name)[start:end]


def encode_text(
    text: TextStore,
    tokenizer_path: Path,
    path: Path,
    executor: Executor,
    progress: Progress = no_progress,
    former: Path | None = None,
) -> EncodedStore:
    """Encode every shard that is not encoded yet; documents that the `former` store has are not cut again."""
    tokenizer = Tokenizer.open(tokenizer_path)
    if former is not None and recorded_inputs(former).get("tokenizer") != tokenizer.fingerprint:
        former = None

    def work(stage: Stage) -> None:
        # The workers write the tables themselves: sent here, they would pass through one process.
        tables = Parts(stage.path, ROWS, alone=False)
        _drop_others(stage.path, {_name_of(shard) for shard in text.shards})
        encode = partial(_keep_shard, tables=tables, tokenizer_path=tokenizer_path, former=former)
        missing = [shard for shard in text.shards if not tables.has(_name_of(shard))]
        num_kept = len(text.shards) - len(missing)
        for done, _ in enumerate(executor.map(encode, missing), start=num_kept + 1):
            progress(done, len(text.shards))

    inputs = {"text": text.fingerprint, "tokenizer": tokenizer.fingerprint}
    command = f"retro ingest SOURCE --out {quoted(path.parent)}"
    return EncodedStore(run_stage(path, "encoded", {}, inputs, work, command))


def row_of(document: Document, num_tokens: int) -> dict[str, Any]:
    """The row of an encoded document in its table."""
    return {
        "id": document.id,
        "source": document.source,
        "title": document.title,
        "language": document.language,
        "split": document.split,
        "content_hash": document.content_hash,
        "num_tokens": num_tokens,
        "num_bytes": len(document.text.encode()),
    }


def _name_of(shard: Path) -> str:
    return shard.name.partition(".")[0]


def _drop_others(folder: Path, names: set[str]) -> None:
    """Remove what was begun of a text that was cut into other shards, as earlier versions did."""
    for table in folder.glob(f"*{ROWS.suffix}"):
        if _name_of(table) not in names:
            table.unlink()
            table.with_suffix(".npy").unlink(missing_ok=True)


@lru_cache(maxsize=1)
def _tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of this worker, loaded once."""
    return Tokenizer.open(path)


@lru_cache(maxsize=1)
def _known(path: Path, _fingerprint: str) -> KnownTokens:
    """The tokens that this worker need not make; another store may come to lie in the same place."""
    return KnownTokens(
        EncodedStore(open_artifact(path, "encoded", f"retro ingest SOURCE --out {path.parent}"))
    )


def _keep_shard(
    shard: Path, tables: Parts[list[dict[str, Any]]], tokenizer_path: Path, former: Path | None
) -> None:
    name = _name_of(shard)
    tokens_path = tables.folder / f"{name}.npy"
    tokenizer = _tokenizer(tokenizer_path)
    known = None
    if former is not None:
        known = _known(former, open_artifact(former, "encoded", "retro ingest").fingerprint)
    tables.keep(name, lambda: _encode_shard(shard, tokens_path, tokenizer, known))


def _encode_shard(
    shard: Path, tokens_path: Path, tokenizer: Tokenizer, known: KnownTokens | None
) -> list[dict[str, Any]]:
    """Write the tokens of a shard and return its table, which closes the part."""
    rows: list[dict[str, Any]] = []
    encoded = [np.zeros(0, dtype=tokenizer.dtype)]  # a shard may hold no document
    for document in read_shard(shard):
        tokens = known.get(document) if known is not None else None
        if tokens is None:
            tokens = np.array(tokenizer.encode(document.text), dtype=tokenizer.dtype)
        encoded.append(tokens)
        rows.append(row_of(document, len(tokens)))
    with atomic_write(tokens_path, alone=False) as file:
        np.save(file, np.concatenate(encoded))
    return rows
