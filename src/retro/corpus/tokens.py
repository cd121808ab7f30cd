"""Token stores: flat memory-mapped tokens with the end, the byte count and the origin of every document."""

import copy
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from retro.corpus.encode import EncodedDocument
from retro.corpus.tokenizers.tokenizer import Tokenizer
from retro.errors import ArtifactError
from retro.stages.files import make_fingerprint
from retro.stages.stage import Artifact, Stage, open_artifact, run_stage

COLUMNS = ("id", "source", "title", "language", "content_hash")


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
        self.documents: list[dict[str, Any]] = [
            json.loads(line) for line in artifact.file("documents.jsonl").read_text().splitlines()
        ]
        self.tokenizer_fingerprint: str = artifact.inputs["tokenizer"]
        if "pad_id" not in artifact.counts:
            raise ArtifactError(
                f"{artifact.path} was written before padding was recorded; remove {artifact.path.parent} and run: retro ingest"
            )
        self.pad_id: int = artifact.counts["pad_id"]
        self.end_id: int = artifact.counts["end_id"]

    @staticmethod
    def open(path: str | Path) -> "TokenStore":
        return TokenStore(
            open_artifact(Path(path), "tokens", f"retro ingest SOURCE --out {Path(path).parent}")
        )

    def __len__(self) -> int:
        return len(self.ends)

    def document(self, index: int) -> np.ndarray:
        tokens: np.ndarray = self.tokens[self.starts[index] : self.ends[index]]
        return tokens

    def select(self, documents: Sequence[int]) -> "TokenStore":
        """Some of the documents, in the given order, in memory."""
        chosen = copy.copy(self)
        chosen.tokens = np.concatenate([self.document(index) for index in documents])
        chosen.ends = np.cumsum([self.ends[index] - self.starts[index] for index in documents])
        chosen.starts = np.concatenate([[0], chosen.ends[:-1]])
        chosen.num_bytes = self.num_bytes[list(documents)]
        chosen.documents = [self.documents[index] for index in documents]
        chosen.fingerprint = make_fingerprint(self.fingerprint, [int(index) for index in documents])
        return chosen


def write_tokens(
    documents: Iterable[EncodedDocument],
    rows: Sequence[dict[str, Any]],
    path: Path,
    tokenizer: Tokenizer,
    config: dict[str, Any],
    inputs: dict[str, str],
) -> TokenStore:
    """Write documents, whose rows are known beforehand, as a finished token store; each gets the end token."""

    def work(stage: Stage) -> None:
        ends = np.cumsum([row["num_tokens"] + 1 for row in rows], dtype=np.int64)
        with stage.write("tokens.npy") as file:
            header = {
                "descr": np.lib.format.dtype_to_descr(tokenizer.dtype),
                "fortran_order": False,
                "shape": (int(ends[-1]),),
            }
            np.lib.format.write_array_header_2_0(file, header)
            for document in documents:
                file.write(document.tokens.tobytes())
                file.write(np.array([tokenizer.end_id], dtype=tokenizer.dtype).tobytes())
        num_bytes = np.array([row["num_bytes"] for row in rows], dtype=np.int64)
        for name, array in (("ends.npy", ends), ("num_bytes.npy", num_bytes)):
            with stage.write(name) as file:
                np.save(file, array)
        with stage.write("documents.jsonl") as file:
            file.write(
                "".join(
                    json.dumps({key: row[key] for key in COLUMNS}, ensure_ascii=False) + "\n" for row in rows
                ).encode()
            )
        stage.counts.update(documents=len(rows), tokens=int(ends[-1]), bytes=int(num_bytes.sum()))
        stage.counts.update(vocab_size=tokenizer.vocab_size, pad_id=tokenizer.pad_id, end_id=tokenizer.end_id)

    inputs = {**inputs, "tokenizer": tokenizer.fingerprint}
    return TokenStore(
        run_stage(path, "tokens", config, inputs, work, f"retro ingest SOURCE --out {path.parent}")
    )
