"""The corpus side of a workspace: where its stages lie below one folder, and what the finished ones hold."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from retro import catalogue
from retro.corpus.documents import SPLITS, Document
from retro.corpus.encode import EncodedStore
from retro.corpus.pack import REPORT, removal_tallies
from retro.corpus.readers.problems import Tally
from retro.corpus.readers.records import split_fields
from retro.corpus.renewal import settle
from retro.corpus.text import LEFT_OUT, TextStore
from retro.corpus.tokenizers import Tokenizer
from retro.corpus.tokens import FOLDER as TOKENS_FOLDER
from retro.corpus.tokens import Corpus, TokenStore
from retro.errors import ArtifactError, ConfigError, DataError
from retro.stages.hints import quoted
from retro.stages.stage import open_artifact


class CorpusFolder:
    """Paths, and opening what is finished. The stages themselves are the functions of `ingest.py`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.text_path = path / "text"
        self.tokenizer_path = path / "tokenizer"
        self.encoded_path = path / "encoded"
        self.tokens_path = path / TOKENS_FOLDER
        self.left_out_path = self.text_path / LEFT_OUT

    @property
    def command(self) -> str:
        """What makes all of it, for messages."""
        return f"retro ingest SOURCE --out {quoted(self.path)}"

    @property
    def is_finished(self) -> bool:
        """Whether the corpus was ingested to the end; the report is written last."""
        return (self.tokens_path / REPORT).exists()

    def tokenizer(self) -> Tokenizer:
        return Tokenizer.open(self.tokenizer_path)

    def corpus(self) -> Corpus:
        settle(self.path)  # a renewal that was killed when all but the names was done
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
            for source, counts in store.by_source().items():
                table.setdefault(source, Counter()).update(counts)
        # A source may have lost all of its documents and is listed all the same.
        for row in self.removed_rows():
            table.setdefault(row["source"], Counter())[row["reason"]] += 1
        return table

    def removed(self) -> dict[str, int]:
        """How many documents were removed, by reason."""
        return dict(Counter(row["reason"] for row in self.removed_rows()))

    def left_out(self) -> dict[str, Tally]:
        """How much of the sources was left out, by kind; `left_out_path` lists all of it."""
        return TextStore.open(self.text_path).left_out()

    def removed_tallies(self) -> dict[str, Tally]:
        """How much was removed among the tokens, by kind; `tokens/removed.json` lists all of it."""
        return removal_tallies(self.removed_rows())

    def expect_outside(self, sources: Sequence[str], command: str = "ingest") -> None:
        """Refuse a workspace inside a folder that it is made from: what it holds would be read as text."""
        for source in sources:
            name, _ = split_fields(source)
            if name in catalogue.ENTRIES or name in catalogue.LOCAL:
                continue  # read as such, even where a folder has the same name
            folder = Path(name)
            if folder.is_dir() and self.path.resolve().is_relative_to(folder.resolve()):
                outside = str(folder.resolve().with_name(f"{folder.resolve().name}-work"))
                raise ConfigError(
                    f"{self.path} lies inside the source {folder}, and would be read as text; expected a "
                    f"workspace outside of it; run: retro {command} {quote(source)} --out {quote(outside)}"
                )

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

    def removed_rows(self) -> list[dict[str, Any]]:
        """Every document that was removed, and why."""
        rows: list[dict[str, Any]] = json.loads((self.tokens_path / REPORT).read_text())
        return rows

    def contaminated(self) -> Iterator[Document]:
        """The training documents that were left out as too close to others, read back from their tokens."""
        gone = {
            (row["source"], row["document"]) for row in self.removed_rows() if row["reason"] == "contaminated"
        }
        if not gone:
            return
        tokenizer = self.tokenizer()
        encoded = EncodedStore(open_artifact(self.encoded_path, "encoded", self.command))
        for document in encoded.documents("train"):
            row = document.row
            if (row["source"], row["id"]) in gone:
                text = tokenizer.decode(document.tokens.tolist())
                yield Document(row["id"], text, row["source"], row["title"], row["language"])
