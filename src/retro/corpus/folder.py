"""The corpus side of a workspace: where its stages lie below one folder, and what the finished ones hold."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from retro.corpus.documents import SPLITS
from retro.corpus.pack import REPORT
from retro.corpus.text import TextStore
from retro.corpus.tokenizers import Tokenizer
from retro.corpus.tokens import FOLDER as TOKENS_FOLDER
from retro.corpus.tokens import Corpus, TokenStore
from retro.errors import ArtifactError, DataError


class CorpusFolder:
    """Paths, and opening what is finished. The stages themselves are the functions of `ingest.py`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.text_path = path / "text"
        self.tokenizer_path = path / "tokenizer"
        self.encoded_path = path / "encoded"
        self.tokens_path = path / TOKENS_FOLDER
        self.skipped_path = path / "skipped.json"

    @property
    def command(self) -> str:
        """What makes all of it, for messages."""
        return f"retro ingest SOURCE --out {self.path}"

    def tokenizer(self) -> Tokenizer:
        return Tokenizer.open(self.tokenizer_path)

    def corpus(self) -> Corpus:
        return Corpus.open(self.tokens_path)

    def store(self, split: str) -> TokenStore:
        """The tokens of one split."""
        stores = self.corpus().stores()
        if split not in stores:
            raise DataError(
                f"{self.tokens_path} has no {split!r} split; expected one of {', '.join(stores)}; "
                "ingest more documents"
            )
        return stores[split]

    def by_source(self) -> dict[str, Counter[str]]:
        """Documents, tokens and bytes of every source, and how many documents were removed, by reason."""
        table: dict[str, Counter[str]] = {}
        for store in self.corpus().stores().values():
            for index, row in enumerate(store.documents):
                counts = table.setdefault(row["source"], Counter())
                counts["documents"] += 1
                counts["tokens"] += int(store.ends[index] - store.starts[index])
                counts["bytes"] += int(store.num_bytes[index])
        # A source may have lost all of its documents and is listed all the same.
        for row in self._removed_rows():
            table.setdefault(row["source"], Counter())[row["reason"]] += 1
        return table

    def removed(self) -> dict[str, int]:
        """How many documents were removed, by reason."""
        return dict(Counter(row["reason"] for row in self._removed_rows()))

    def skipped(self) -> int:
        """How many records could not be read."""
        return int(TextStore.open(self.text_path).artifact.counts["skipped"])

    def first_skipped(self) -> list[tuple[str, str]]:
        """Where the first of them are, and why each could not be read."""
        if not self.skipped_path.exists():
            return []
        return [(where, reason) for where, reason in json.loads(self.skipped_path.read_text())["first"]]

    def left_out(self) -> int:
        """How many documents were too long, not sampled, or without text after cleaning."""
        return int(TextStore.open(self.text_path).artifact.counts.get("left out", 0))

    def finished_stages(self) -> dict[Path, str]:
        """The stages that are there, each with its kind."""
        stages = {self.text_path: "text", self.tokenizer_path: "tokenizer", self.encoded_path: "encoded"}
        stages |= {self.tokens_path / split: "tokens" for split in SPLITS}
        finished = {path: kind for path, kind in stages.items() if path.exists()}
        if not finished:
            raise ArtifactError(
                f"{self.path} holds no finished stage of a corpus; expected one; run: {self.command}"
            )
        return finished

    def _removed_rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = json.loads((self.tokens_path / REPORT).read_text())
        return rows
