"""Token stores: flat memory-mapped tokens with the end, the byte count and the origin of every document.

Nothing of it is held in memory, however many tokens and documents there are.
"""

import copy
import hashlib
import json
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from retro.config import FILE_BYTES
from retro.corpus.encode import EncodedDocument
from retro.corpus.table import COLUMNS, LINES, DocumentTable, TableWriter
from retro.corpus.table import NAME as TABLE
from retro.corpus.tokenizers import Tokenizer
from retro.errors import ArtifactError
from retro.stages.arrays import load_array
from retro.stages.files import file_checksum, make_fingerprint
from retro.stages.hints import quoted
from retro.stages.shards import Rows, append_shards, files_of, load_shards, whole_checksum
from retro.stages.stage import MANIFEST, Artifact, Stage, find_finished, open_artifact, run_stage
from retro.wording import counted

FOLDER = "tokens"
"""A workspace's folder of token stores, one for each split."""
TOKENS = "tokens"
"""The name of the tokens, which are one file or several."""
ENDS = "ends.npy"
NUM_BYTES = "num_bytes.npy"
CONTENT = "content"
"""The count in a manifest that tells what the store holds, however it came to be."""
HELD = "held"
"""The same, but never taken over from an older store."""
CHECKED_BYTES = 16 << 20
"""Files up to this size are compared with their checksums whenever a store is opened; `retro doctor` compares
all of them."""


class TokenStore:
    """The tokens of one split. Document i is `tokens[starts[i]:ends[i]]` and closes with the end token."""

    def __init__(self, artifact: Artifact) -> None:
        self.artifact = artifact
        # By what it holds: other training text leaves a held-out split what it is. Older stores do not know.
        self.fingerprint: str = artifact.counts.get(CONTENT, artifact.fingerprint)
        remedy = _remedy(artifact.path)
        self.tokens: Rows = load_shards(files_of(artifact, TOKENS), remedy)
        self.ends = np.asarray(load_array(artifact.file(ENDS), remedy, mapped=True))
        self.num_bytes = np.asarray(load_array(artifact.file(NUM_BYTES), remedy, mapped=True))
        """UTF-8 bytes of every document's text."""
        table = TABLE if TABLE in artifact.manifest["files"] else LINES
        self.documents = DocumentTable.open(artifact.file(table), remedy)
        """Id, source, title, language and content hash of every document."""
        self._expect_fitting(table, remedy)
        files = [name for name in (ENDS, NUM_BYTES, table) if _is_small(artifact.file(name))]
        artifact.expect_whole(*files)
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

    @cached_property
    def starts(self) -> np.ndarray:
        """Where every document begins. Unlike the ends, which lie on disk, they are in memory."""
        return np.concatenate([np.zeros(1, dtype=np.int64), self.ends[:-1]])

    def document(self, index: int) -> np.ndarray:
        index = range(len(self))[index]
        start = int(self.ends[index - 1]) if index else 0
        tokens: np.ndarray = self.tokens[start : int(self.ends[index])]
        return tokens

    def by_source(self) -> dict[str, dict[str, int]]:
        """Documents, tokens and bytes of every source, in the order in which the sources come."""
        sources, codes = self.documents.coded("source")
        columns = {
            "documents": np.ones(len(self), dtype=np.int64),
            "tokens": np.diff(self.ends, prepend=0),
            "bytes": self.num_bytes,
        }
        sums = {name: np.zeros(len(sources), dtype=np.int64) for name in columns}
        for name, values in columns.items():
            np.add.at(sums[name], codes, values)
        return {
            source: {name: int(sums[name][number]) for name in sums} for number, source in enumerate(sources)
        }

    def select(self, documents: Sequence[int]) -> "TokenStore":
        """Some of the documents, in the given order, in memory."""
        # A shallow copy, in which everything that depends on the documents is replaced.
        chosen = copy.copy(self)
        chosen.tokens = np.concatenate([self.document(index) for index in documents])
        chosen.ends = np.cumsum([len(self.document(index)) for index in documents])
        chosen.starts = np.concatenate([[0], chosen.ends[:-1]])
        chosen.num_bytes = self.num_bytes[list(documents)]
        chosen.documents = DocumentTable.of(self.documents[index] for index in documents)
        chosen.fingerprint = make_fingerprint(self.fingerprint, [int(index) for index in documents])
        return chosen

    def _expect_fitting(self, table: str, remedy: str) -> None:
        """Refuse files that are readable but do not belong together; no token is looked at."""
        path = self.artifact.path
        tokens = f"{TOKENS}.npy"
        for name, values in ((tokens, self.tokens), (ENDS, self.ends), (NUM_BYTES, self.num_bytes)):
            if values.ndim != 1 or values.dtype.kind not in "iu":
                raise ArtifactError(
                    f"{path / name} holds {values.dtype} of shape {values.shape}; "
                    f"expected whole numbers in one row; {remedy}"
                )
        # Every document has at least its end token, so ends grow strictly from 1 to the number of tokens.
        # Very many of them are not looked at one by one.
        is_small = _is_small(self.artifact.file(ENDS))
        grows = not is_small or bool((np.diff(self.ends, prepend=0) > 0).all())
        last = int(self.ends[-1]) if len(self.ends) else 0
        if not grows or last != len(self.tokens):
            raise ArtifactError(
                f"{path / ENDS} does not fit {tokens}: the last document ends at {last:,}; "
                f"expected ends that grow to {len(self.tokens):,}; {remedy}"
            )
        for name, number in ((NUM_BYTES, len(self.num_bytes)), (table, len(self.documents))):
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
    path: Path,
    tokenizer: Tokenizer,
    config: dict[str, Any],
    inputs: dict[str, str],
    command: str = "",
    former: Path | None = None,
    file_bytes: int = FILE_BYTES,
) -> TokenStore:
    """Write documents, at least one, as a token store; each gets the end token.

    They pass once, and memory holds 16 bytes for each. `file_bytes` bounds the files of tokens. How those are
    cut is no setting: the store holds the same, and has the same fingerprint. `command` is what makes it,
    unless that is `retro ingest`. If the `former` store holds the same, the new one has its fingerprint, and
    whatever was made with that one belongs to this one, too.
    """

    def work(stage: Stage) -> None:
        lengths, num_bytes = array("q"), array("q")
        lines = hashlib.sha256()
        end_token = np.array([tokenizer.end_id], dtype=tokenizer.dtype)

        def pieces(table: TableWriter) -> Iterator[np.ndarray]:
            for document in documents:
                table.add(document.row)
                lines.update(_line(document.row))
                lengths.append(len(document.tokens) + 1)
                num_bytes.append(document.row["num_bytes"])
                yield document.tokens
                yield end_token

        stage.file(LINES).unlink(missing_ok=True)  # of an older store that is being mended
        with stage.write(TABLE) as file, TableWriter(file) as table:
            files = append_shards(stage, TOKENS, tokenizer.dtype, pieces(table), file_bytes)
        ends = np.cumsum(np.frombuffer(lengths, dtype=np.int64), dtype=np.int64)
        for name, values in ((ENDS, ends), (NUM_BYTES, np.frombuffer(num_bytes, dtype=np.int64))):
            with stage.write(name) as file:
                np.save(file, values)
        stage.counts.update(documents=len(ends), tokens=int(ends[-1]), bytes=sum(num_bytes))
        stage.counts.update(vocab_size=tokenizer.vocab_size, pad_id=tokenizer.pad_id, end_id=tokenizer.end_id)
        checksums = {name: file_checksum(stage.file(name)) for name in (ENDS, NUM_BYTES)}
        checksums[f"{TOKENS}.npy"] = whole_checksum(load_shards(files, "run the same command again"))
        checksums[LINES] = lines.hexdigest()
        stage.counts[HELD] = _content(checksums, tokenizer.fingerprint)
        if stage.mended is None:
            stage.counts[CONTENT] = _fingerprint_of_same(stage.counts[HELD], former) or stage.counts[HELD]
        elif CONTENT in stage.mended:
            # What it was called is what others know it by, even if that came from an older store.
            stage.counts[CONTENT] = stage.mended[CONTENT]

    inputs = {**inputs, "tokenizer": tokenizer.fingerprint}
    return TokenStore(run_stage(path, "tokens", config, inputs, work, command or _command(path)))


def _line(row: Mapping[str, Any]) -> bytes:
    """A row as earlier versions wrote it, which is what fingerprints are still made of."""
    return json.dumps({name: row[name] for name in COLUMNS}, ensure_ascii=False).encode() + b"\n"


def _content(checksums: Mapping[str, str], tokenizer: str) -> str:
    """A fingerprint of tokens and documents, by the checksums of the files of an earlier version.

    Those are of one file of tokens and of lines of JSON, so it depends neither on how tokens are cut into
    files nor on how the table is kept.
    """
    names = (f"{TOKENS}.npy", ENDS, NUM_BYTES, LINES)
    return make_fingerprint({name: checksums.get(name) for name in names}, tokenizer)


def _fingerprint_of_same(content: str, former: Path | None) -> str:
    """The fingerprint of the former store if it holds the same; it may be older than such contents."""
    if former is None or not (former / MANIFEST).exists():
        return ""
    artifact = open_artifact(former, "tokens", _command(former))
    held = artifact.counts.get(HELD) or _content(artifact.manifest["files"], artifact.inputs["tokenizer"])
    return artifact.counts.get(CONTENT, artifact.fingerprint) if held == content else ""


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


def _is_small(file: Path) -> bool:
    return not file.exists() or file.stat().st_size <= CHECKED_BYTES
