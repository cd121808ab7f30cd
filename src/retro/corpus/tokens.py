"""Token stores: flat memory-mapped tokens with the end, the byte count and the origin of every document."""

import copy
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from retro.corpus.encode import EncodedDocument
from retro.corpus.tokenizers import Tokenizer
from retro.errors import ArtifactError
from retro.stages.arrays import load_array
from retro.stages.files import file_checksum, make_fingerprint
from retro.stages.hints import quoted
from retro.stages.stage import MANIFEST, Artifact, Stage, find_finished, open_artifact, run_stage
from retro.wording import counted

COLUMNS = ("id", "source", "title", "language", "content_hash")
FOLDER = "tokens"
"""A workspace's folder of token stores, one for each split."""
TOKENS = "tokens.npy"
ENDS = "ends.npy"
NUM_BYTES = "num_bytes.npy"
DOCUMENTS = "documents.jsonl"
FILES = (TOKENS, ENDS, NUM_BYTES, DOCUMENTS)
CONTENT = "content"
"""The count in a manifest that tells what the store holds, however it came to be."""


class TokenStore:
    """The tokens of one split. Document i is `tokens[starts[i]:ends[i]]` and closes with the end token."""

    def __init__(self, artifact: Artifact) -> None:
        self.artifact = artifact
        # By what it holds: other training text leaves a held-out split what it is. Older stores do not know.
        self.fingerprint: str = artifact.counts.get(CONTENT, artifact.fingerprint)
        remedy = _remedy(artifact.path)
        self.tokens = load_array(artifact.file(TOKENS), remedy, mapped=True)
        self.ends = load_array(artifact.file(ENDS), remedy)
        self.num_bytes = load_array(artifact.file(NUM_BYTES), remedy)
        """UTF-8 bytes of every document's text."""
        self.documents = _read_documents(artifact.file(DOCUMENTS), remedy)
        """Id, source, title, language and content hash of every document."""
        self._expect_fitting(remedy)
        artifact.expect_whole(ENDS, NUM_BYTES, DOCUMENTS)
        self.starts: np.ndarray = np.concatenate([[0], self.ends[:-1]])
        self.tokenizer_fingerprint: str = artifact.inputs["tokenizer"]
        if "pad_id" not in artifact.counts:
            raise ArtifactError(
                f"{artifact.path} was written before padding was recorded; expected a newer store; "
                f"remove {artifact.path.parent} and run: {_command(artifact.path)}"
            )
        self.pad_id: int = artifact.counts["pad_id"]
        self.end_id: int = artifact.counts["end_id"]

    @staticmethod
    def open(path: str | Path) -> "TokenStore":
        return TokenStore(open_artifact(Path(path), "tokens", _command(Path(path))))

    def __len__(self) -> int:
        return len(self.ends)

    def document(self, index: int) -> np.ndarray:
        tokens: np.ndarray = self.tokens[self.starts[index] : self.ends[index]]
        return tokens

    def select(self, documents: Sequence[int]) -> "TokenStore":
        """Some of the documents, in the given order, in memory."""
        # A shallow copy, in which everything that depends on the documents is replaced.
        chosen = copy.copy(self)
        chosen.tokens = np.concatenate([self.document(index) for index in documents])
        chosen.ends = np.cumsum([self.ends[index] - self.starts[index] for index in documents])
        chosen.starts = np.concatenate([[0], chosen.ends[:-1]])
        chosen.num_bytes = self.num_bytes[list(documents)]
        chosen.documents = [self.documents[index] for index in documents]
        chosen.fingerprint = make_fingerprint(self.fingerprint, [int(index) for index in documents])
        return chosen

    def _expect_fitting(self, remedy: str) -> None:
        """Refuse files that are readable but do not belong together; no token is looked at."""
        path = self.artifact.path
        for name, array in ((TOKENS, self.tokens), (ENDS, self.ends), (NUM_BYTES, self.num_bytes)):
            if array.ndim != 1 or array.dtype.kind not in "iu":
                raise ArtifactError(
                    f"{path / name} holds {array.dtype} of shape {array.shape}; "
                    f"expected whole numbers in one row; {remedy}"
                )
        # Every document has at least its end token, so ends grow strictly from 1 to the number of tokens.
        grows = bool((np.diff(self.ends, prepend=0) > 0).all())
        last = int(self.ends[-1]) if len(self.ends) else 0
        if not grows or last != len(self.tokens):
            raise ArtifactError(
                f"{path / ENDS} does not fit {TOKENS}: the last document ends at {last:,}; "
                f"expected ends that grow to {len(self.tokens):,}; {remedy}"
            )
        for name, number in ((NUM_BYTES, len(self.num_bytes)), (DOCUMENTS, len(self.documents))):
            if number != len(self.ends):
                raise ArtifactError(
                    f"{path / name} describes {counted(number, 'document')}; "
                    f"expected {len(self.ends):,} as in {ENDS}; {remedy}"
                )


@dataclass(frozen=True)
class Corpus:
    """The token stores of a corpus by split; a split without documents is absent."""

    train: TokenStore
    valid: TokenStore | None
    test: TokenStore | None

    def stores(self) -> dict[str, TokenStore]:
        """The splits that have documents."""
        stores = {"train": self.train, "valid": self.valid, "test": self.test}
        return {split: store for split, store in stores.items() if store is not None}

    @staticmethod
    def open(path: str | Path) -> "Corpus":
        path = Path(path)
        held_out = {
            split: TokenStore.open(path / split) if (path / split).exists() else None
            for split in ("valid", "test")
        }
        return Corpus(TokenStore.open(path / "train"), held_out["valid"], held_out["test"])


def write_tokens(
    documents: Iterable[EncodedDocument],
    rows: Sequence[dict[str, Any]],
    path: Path,
    tokenizer: Tokenizer,
    config: dict[str, Any],
    inputs: dict[str, str],
    command: str = "",
    former: Path | None = None,
) -> TokenStore:
    """Write documents, whose rows are known beforehand, as a token store; each gets the end token.

    `command` is what makes it, unless that is `retro ingest`. If the `former` store holds the same, the new
    one has its fingerprint, and whatever was made with that one belongs to this one, too.
    """

    def work(stage: Stage) -> None:
        ends = np.cumsum([row["num_tokens"] + 1 for row in rows], dtype=np.int64)
        num_bytes = np.array([row["num_bytes"] for row in rows], dtype=np.int64)
        end_token = np.array([tokenizer.end_id], dtype=tokenizer.dtype).tobytes()
        with stage.write(TOKENS) as file:
            # The header needs the number of tokens, which the rows tell; so the tokens are streamed after it.
            header = {
                "descr": np.lib.format.dtype_to_descr(tokenizer.dtype),
                "fortran_order": False,
                "shape": (int(ends[-1]),),
            }
            np.lib.format.write_array_header_2_0(file, header)
            for document in documents:
                file.write(document.tokens.tobytes())
                file.write(end_token)
        for name, array in ((ENDS, ends), (NUM_BYTES, num_bytes)):
            with stage.write(name) as file:
                np.save(file, array)
        with stage.write(DOCUMENTS) as file:
            for row in rows:
                columns = {key: row[key] for key in COLUMNS}
                file.write(json.dumps(columns, ensure_ascii=False).encode() + b"\n")
        stage.counts.update(documents=len(rows), tokens=int(ends[-1]), bytes=int(num_bytes.sum()))
        stage.counts.update(vocab_size=tokenizer.vocab_size, pad_id=tokenizer.pad_id, end_id=tokenizer.end_id)
        if stage.mended is None:
            checksums = {name: file_checksum(stage.file(name)) for name in FILES}
            content = _content(checksums, tokenizer.fingerprint)
            stage.counts[CONTENT] = _fingerprint_of_same(content, former) or content
        elif CONTENT in stage.mended:
            # What it was called is what others know it by, even if that came from an older store.
            stage.counts[CONTENT] = stage.mended[CONTENT]

    inputs = {**inputs, "tokenizer": tokenizer.fingerprint}
    return TokenStore(run_stage(path, "tokens", config, inputs, work, command or _command(path)))


def _content(checksums: Mapping[str, str], tokenizer: str) -> str:
    """A fingerprint of tokens and documents by the checksums of their files."""
    return make_fingerprint({name: checksums.get(name) for name in FILES}, tokenizer)


def _fingerprint_of_same(content: str, former: Path | None) -> str:
    """The fingerprint of the former store if it holds the same; it may be older than such contents."""
    if former is None or not (former / MANIFEST).exists():
        return ""
    artifact = open_artifact(former, "tokens", _command(former))
    is_same = _content(artifact.manifest["files"], artifact.inputs["tokenizer"]) == content
    return artifact.counts.get(CONTENT, artifact.fingerprint) if is_same else ""


def find_tokens(
    path: Path, tokenizer: Tokenizer, config: dict[str, Any], inputs: dict[str, str]
) -> TokenStore | None:
    """The store that `write_tokens` would reuse, if it is finished; one of other settings is refused."""
    inputs = {**inputs, "tokenizer": tokenizer.fingerprint}
    artifact = find_finished(path, "tokens", config, inputs, _command(path))
    return TokenStore(artifact) if artifact else None


def _command(path: Path) -> str:
    """What makes a store: those of a workspace lie in WORK/tokens/SPLIT."""
    is_in_workspace = path.parent.name == FOLDER
    return f"retro ingest SOURCE --out {quoted(path.parent.parent if is_in_workspace else path.parent)}"


def _remedy(path: Path) -> str:
    """What mends a damaged store; those of evaluation sets stand alone and are made by other commands."""
    if path.parent.name != FOLDER:
        return f"remove {path} and run the same command again"
    work = path.parent.parent
    return f"run: retro doctor --work {quoted(work)} --mend; then run: {_command(path)}"


def _read_documents(path: Path, remedy: str) -> list[dict[str, Any]]:
    try:
        with path.open(encoding="utf-8") as lines:
            return [json.loads(line) for line in lines]
    except (OSError, ValueError, RecursionError) as error:
        raise ArtifactError(
            f"{path} is damaged ({error}); expected one JSON object a line; {remedy}"
        ) from None
