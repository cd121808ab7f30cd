"""The encoding stage: shards of text to shards of tokens, one worker a shard."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from retro.corpus.documents import Document
from retro.corpus.text import TextStore, read_shard
from retro.corpus.tokenizers.tokenizer import Tokenizer
from retro.stages.executor import Executor
from retro.stages.files import atomic_write
from retro.stages.progress import Progress
from retro.stages.stage import Artifact, Stage, run_stage


@dataclass(frozen=True)
class EncodedDocument:
    """A document's number among all that were encoded, its row of the table, and its tokens."""

    number: int
    row: dict[str, Any]
    tokens: np.ndarray


class EncodedStore:
    """Finished shards of tokens. Shard i holds the documents of the text's shard i, all splits together."""

    def __init__(self, artifact: Artifact) -> None:
        self.artifact = artifact
        self.fingerprint = artifact.fingerprint
        self._tables = sorted(artifact.path.glob("*.jsonl"))

    def rows(self) -> Iterator[dict[str, Any]]:
        """The rows of all documents, without their tokens."""
        for table in self._tables:
            with table.open() as lines:
                yield from map(json.loads, lines)

    def documents(self, split: str) -> Iterator[EncodedDocument]:
        """The documents of a split in the order of the text; one shard is mapped at a time."""
        number = 0
        for table in self._tables:
            tokens = np.load(table.with_suffix(".npy"), mmap_mode="r")
            start = 0
            with table.open() as lines:
                for row in map(json.loads, lines):
                    if row["split"] == split:
                        yield EncodedDocument(number, row, tokens[start : start + row["num_tokens"]])
                    start, number = start + row["num_tokens"], number + 1


def encode_text(
    text: TextStore, tokenizer_path: Path, path: Path, executor: Executor, progress: Progress | None = None
) -> EncodedStore:
    """Encode every shard that is not encoded yet."""
    tokenizer = Tokenizer.open(tokenizer_path)

    def work(stage: Stage) -> None:
        encode = partial(_encode_shard, tokenizer_path=tokenizer_path, folder=stage.path)
        missing = [shard for shard in text.shards if not _table_of(shard, stage.path).exists()]
        for done, _ in enumerate(executor.map(encode, missing), start=len(text.shards) - len(missing) + 1):
            if progress:
                progress(done, len(text.shards))

    inputs = {"text": text.fingerprint, "tokenizer": tokenizer.fingerprint}
    return EncodedStore(
        run_stage(path, "encoded", {}, inputs, work, f"retro ingest SOURCE --out {path.parent}")
    )


def _table_of(shard: Path, folder: Path) -> Path:
    return folder / f"{shard.name.partition('.')[0]}.jsonl"


@lru_cache(maxsize=1)
def _tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of this worker, loaded once."""
    return Tokenizer.open(path)


def _encode_shard(shard: Path, tokenizer_path: Path, folder: Path) -> None:
    """Write the tokens and then the table of a shard; where the table stands, both are whole."""
    tokenizer = _tokenizer(tokenizer_path)
    documents = list(read_shard(shard))
    encoded = [np.array(tokenizer.encode(document.text), dtype=tokenizer.dtype) for document in documents]
    table = _table_of(shard, folder)
    with atomic_write(table.with_suffix(".npy")) as file:
        np.save(file, np.concatenate(encoded) if encoded else np.zeros(0, dtype=tokenizer.dtype))
    with atomic_write(table) as file:
        for document, tokens in zip(documents, encoded, strict=True):
            row = row_of(document, len(tokens))
            file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")


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
