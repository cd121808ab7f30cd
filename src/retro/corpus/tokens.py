"""Token stores: flat memory-mapped tokens with the end, the byte count and the origin of every document."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from retro.artifacts import Artifact, Stage, open_artifact, run_stage
from retro.corpus.documents import Document
from retro.corpus.tokenizer import END_ID, Tokenizer
from retro.errors import DataError


class TokenStore:
    """The tokens of one split. Document i is `tokens[starts[i]:ends[i]]` and closes with the end token."""

    def __init__(self, artifact: Artifact) -> None:
        self.artifact = artifact
        self.fingerprint = artifact.fingerprint
        self.tokens: np.ndarray = np.load(artifact.file("tokens.npy"), mmap_mode="r")
        self.ends: np.ndarray = np.load(artifact.file("ends.npy"))
        self.starts: np.ndarray = np.concatenate([[0], self.ends[:-1]])
        self.num_bytes: np.ndarray = np.load(artifact.file("num_bytes.npy"))
        """UTF-8 bytes of every document's text."""
        self.documents: list[dict[str, Any]] = [json.loads(line) for line in artifact.file("documents.jsonl").read_text().splitlines()]
        self.tokenizer_fingerprint: str = artifact.inputs["tokenizer"]

    @staticmethod
    def open(path: str | Path) -> "TokenStore":
        return TokenStore(open_artifact(Path(path), "tokens", f"retro ingest SOURCE --out {Path(path).parent}"))

    def __len__(self) -> int:
        return len(self.ends)

    def document(self, index: int) -> np.ndarray:
        tokens: np.ndarray = self.tokens[self.starts[index] : self.ends[index]]
        return tokens


def write_tokens(
    documents: Iterable[tuple[Document, list[int]]], path: Path, tokenizer: Tokenizer, config: dict[str, Any], inputs: dict[str, str]
) -> TokenStore:
    """Write encoded documents as a finished token store; each gets the end token."""

    def work(stage: Stage) -> None:
        arrays: list[np.ndarray] = []
        dtype = np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32
        rows: list[dict[str, str]] = []
        num_bytes: list[int] = []
        for document, tokens in documents:
            arrays.append(np.array([*tokens, END_ID], dtype=dtype))
            num_bytes.append(len(document.text.encode()))
            rows.append(
                {
                    "id": document.id,
                    "source": document.source,
                    "title": document.title,
                    "language": document.language,
                    "content_hash": document.content_hash,
                }
            )
        if not arrays:
            raise DataError(f"no document is left for {path}; expected at least one; give more documents or another split")
        _save(stage, "tokens.npy", np.concatenate(arrays))
        _save(stage, "ends.npy", np.cumsum([len(array) for array in arrays], dtype=np.int64))
        _save(stage, "num_bytes.npy", np.array(num_bytes, dtype=np.int64))
        with stage.write("documents.jsonl") as file:
            file.write("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())
        stage.counts.update(documents=len(rows), tokens=sum(map(len, arrays)), bytes=sum(num_bytes), vocab_size=tokenizer.vocab_size)

    inputs = {**inputs, "tokenizer": tokenizer.fingerprint}
    return TokenStore(run_stage(path, "tokens", config, inputs, work, f"retro ingest SOURCE --out {path.parent}"))


def _save(stage: Stage, name: str, array: np.ndarray) -> None:
    with stage.write(name) as file:
        np.save(file, array, allow_pickle=False)
