"""The corpus side of a workspace: text, tokenizer, encoded shards and token stores below one folder. It needs no torch."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from retro.config import CorpusConfig
from retro.config_json import from_dict
from retro.corpus import readers
from retro.corpus.encode import EncodedStore, encode_text
from retro.corpus.pack import REPORT, Corpus, pack, train_corpus_tokenizer
from retro.corpus.readers import FieldMap, Problems
from retro.corpus.readers.sources import fingerprint_of, read_raw, size_of
from retro.corpus.text import TextStore, raw_text, write_text
from retro.corpus.tokenizers.tokenizer import Tokenizer
from retro.corpus.tokens import TokenStore
from retro.errors import ArtifactError, DataError
from retro.stages.executor import Executor, LocalExecutor
from retro.stages.files import write_json
from retro.stages.progress import Progress, at_step, no_progress
from retro.stages.stage import open_artifact, reopen_broken


class CorpusWorkspace:
    """The stages from sources to token stores."""

    def __init__(self, path: Path, executor: Executor | None = None) -> None:
        self.path, self.executor = path, executor or LocalExecutor()
        self.text_path, self.encoded_path = path / "text", path / "encoded"
        self.tokenizer_path, self.tokens_path = path / "tokenizer", path / "tokens"
        self.skipped_path = path / "skipped.json"

    def ingest(
        self,
        sources: Sequence[str],
        config: CorpusConfig,
        fields: FieldMap | None = None,
        strict: bool = True,
        names: frozenset[str] = frozenset(),
        progress: Progress | None = None,
    ) -> Corpus:
        """Read the sources, train a tokenizer on their training documents, and write the token stores.

        Unless `strict`, records that cannot be read are skipped and listed in `skipped.json`. Training documents whose title or
        id is among `names` are removed. `progress` is called with the step, what of it is done and what there is in all, 0 where
        nobody knows.
        """
        problems, told = Problems(strict), progress or no_progress
        items = (item for source in sources for item in read_raw(source, fields, problems))
        inputs = {source: fingerprint_of(source) for source in sources} | _named_fields(fields or FieldMap())
        reading = _reading(sources, told) if progress else None
        text = write_text(items, self.text_path, config, inputs, self.executor, problems, reading)
        if problems.count:
            write_json(self.skipped_path, {"skipped": problems.count, "first": problems.rows})
        told(0, 0, "Learning a tokenizer")
        tokenizer = train_corpus_tokenizer(text, self.tokenizer_path, config)
        encoded = encode_text(
            text,
            self.tokenizer_path,
            self.encoded_path,
            self.executor,
            at_step(told, "Cutting text into tokens"),
        )
        told(0, 0, "Removing duplicates and contamination")
        return pack(encoded, tokenizer, self.tokens_path, config, names)

    def decontaminate(self, out: Path, against: Sequence[str], names: frozenset[str] = frozenset()) -> Corpus:
        """Write the token stores once more below `out`, without training documents close to those of `against`, or named."""
        config = from_dict(
            CorpusConfig, {k: v for k, v in self.corpus().train.artifact.config.items() if k != "split"}
        )
        encoded = EncodedStore(
            open_artifact(self.encoded_path, "encoded", f"retro ingest SOURCE --out {self.path}")
        )
        tokenizer = Tokenizer.open(self.tokenizer_path)
        given = [
            np.array(tokenizer.encode(document.text), dtype=tokenizer.dtype)
            for source in against
            for document in readers.read(source)
        ]
        return pack(encoded, tokenizer, out, config, names, given)

    def by_source(self) -> dict[str, Counter[str]]:
        """Documents, tokens and bytes of every source in all splits, and how many documents were removed from it, by reason."""
        table: dict[str, Counter[str]] = {}
        for store in self.corpus().stores().values():
            for index, row in enumerate(store.documents):
                tokens = int(store.ends[index] - store.starts[index])
                table.setdefault(row["source"], Counter()).update(
                    documents=1, tokens=tokens, bytes=int(store.num_bytes[index])
                )
        for row in json.loads((self.tokens_path / REPORT).read_text()):
            table.setdefault(row["source"], Counter())[row["reason"]] += 1
        return table

    def look(
        self, sources: Sequence[str], fields: FieldMap | None = None, strict: bool = False
    ) -> Iterator[tuple[str, int, int, Problems]]:
        """Every source with its documents and bytes as they would be read, before cleaning, and what would be skipped; nothing is written."""
        for source in sources:
            problems = Problems(strict)
            count = size = 0
            for item in read_raw(source, fields, problems):
                count, size = count + 1, size + len(raw_text(item).encode())
            yield source, count, size, problems

    def removed(self) -> dict[str, int]:
        """How many documents were removed, by reason."""
        return dict(Counter(row["reason"] for row in json.loads((self.tokens_path / REPORT).read_text())))

    def skipped(self) -> int:
        """How many records could not be read."""
        return int(TextStore.open(self.text_path).artifact.counts["skipped"])

    def first_skipped(self) -> list[tuple[str, str]]:
        """Where the first of them are, and why each could not be read."""
        listed = json.loads(self.skipped_path.read_text())["first"] if self.skipped_path.exists() else []
        return [(where, reason) for where, reason in listed]

    def left_out(self) -> int:
        """How many documents were too long, not sampled, or without text after cleaning."""
        return int(TextStore.open(self.text_path).artifact.counts.get("left out", 0))

    def check(self) -> None:
        """Compare every file of the corpus stages with its checksum."""
        for path in self._corpus_stages():
            open_artifact(
                path,
                path.name if path.parent == self.path else "tokens",
                f"retro ingest SOURCE --out {self.path}",
            ).check()

    def mend(self) -> list[str]:
        """Take broken or missing files out of the corpus stages and return their names; ingesting again makes those alone."""
        return [name for path in self._corpus_stages() for name in reopen_broken(path)]

    def _corpus_stages(self) -> list[Path]:
        stages = [
            self.text_path,
            self.tokenizer_path,
            self.encoded_path,
            *(self.tokens_path / split for split in ("train", "valid", "test")),
        ]
        found = [path for path in stages if path.exists()]
        if not found:
            raise ArtifactError(
                f"{self.path} holds no finished stage of a corpus; expected one; run: retro ingest SOURCE --out {self.path}"
            )
        return found

    def corpus(self) -> Corpus:
        return Corpus.open(self.tokens_path)

    def store(self, split: str) -> TokenStore:
        store = self.corpus().stores().get(split)
        if store is None:
            raise DataError(
                f"{self.tokens_path} has no {split!r} split; expected one of {', '.join(self.corpus().stores())}; ingest more documents"
            )
        return store


def _reading(sources: Sequence[str], told: Progress) -> Callable[[int, int, int], None]:
    """Reading as a step: the bar shows the part of the files that was read, where all sources are files."""
    sizes = [size_of(source) for source in sources]
    total = sum(sizes) if all(sizes) else 0

    def reading(documents: int, text_bytes: int, position: int) -> None:
        note = f"{documents:,} documents, {text_bytes / 1e6:,.1f} MB"
        told(min(position, total), total, "Reading", note)

    return reading


def _named_fields(fields: FieldMap) -> dict[str, str]:
    """The fields that are not called as usual; other names make another corpus of the same files."""
    return {
        f"fields.{name}": value
        for name, value in asdict(fields).items()
        if value != getattr(FieldMap(), name)
    }
