"""The corpus side of a workspace: text, tokenizer, encoded shards and token stores below one folder. It needs no torch."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from retro.artifacts import MANIFEST, Artifact, Progress, open_artifact, reopen_broken, write_json
from retro.config import CorpusConfig, from_dict
from retro.corpus import readers
from retro.corpus.encode import EncodedStore, encode_text
from retro.corpus.ingest import REPORT, Corpus, pack, train_corpus_tokenizer
from retro.corpus.readers import FieldMap, Problems
from retro.corpus.sources import fingerprint_of, read_raw
from retro.corpus.text import TextStore, raw_text, write_text
from retro.corpus.tokenizer import Tokenizer
from retro.corpus.tokens import TokenStore
from retro.errors import DataError
from retro.executor import Executor, LocalExecutor

SKIPPED = "skipped.json"


class CorpusWorkspace:
    """The stages from sources to token stores."""

    def __init__(self, path: Path, executor: Executor | None = None) -> None:
        self.path, self.executor = path, executor or LocalExecutor()
        self.text_path, self.encoded_path = path / "text", path / "encoded"
        self.tokenizer_path, self.tokens_path = path / "tokenizer", path / "tokens"

    def ingest(
        self,
        sources: Sequence[str],
        config: CorpusConfig,
        fields: FieldMap | None = None,
        strict: bool = True,
        names: frozenset[str] = frozenset(),
        progress: Callable[[str, int, int], None] | None = None,
    ) -> Corpus:
        """Read the sources, train a tokenizer on their training documents, and write the token stores.

        Unless `strict`, records that cannot be read are skipped and listed in `skipped.json`. Training documents whose title or
        id is among `names` are removed.
        """

        def told(step: str) -> Progress | None:
            return partial(progress, step) if progress else None

        problems = Problems(strict)
        items = (item for source in sources for item in read_raw(source, fields, problems))
        inputs = {source: fingerprint_of(source) for source in sources}
        text = write_text(items, self.text_path, config, inputs, self.executor, problems, told("reading"))
        if problems.count:
            write_json(self.path / SKIPPED, {"skipped": problems.count, "first": problems.rows})
        tokenizer = train_corpus_tokenizer(text, self.tokenizer_path, config)
        encoded = encode_text(text, self.tokenizer_path, self.encoded_path, self.executor, told("encoding"))
        return pack(encoded, tokenizer, self.tokens_path, config, names)

    def decontaminate(self, out: Path, against: Sequence[str], names: frozenset[str] = frozenset()) -> Corpus:
        """Write the token stores once more below `out`, without training documents close to those of `against`, or named."""
        config = from_dict(CorpusConfig, {k: v for k, v in self.corpus().train.artifact.config.items() if k != "split"})
        encoded = EncodedStore(open_artifact(self.encoded_path, "encoded", f"retro ingest SOURCE --out {self.path}"))
        tokenizer = Tokenizer.open(self.tokenizer_path)
        given = [
            np.array(tokenizer.encode(document.text), dtype=tokenizer.dtype) for source in against for document in readers.read(source)
        ]
        return pack(encoded, tokenizer, out, config, names, given)

    def by_source(self) -> dict[str, Counter[str]]:
        """Documents, tokens and bytes of every source in all splits, and how many documents were removed from it, by reason."""
        table: dict[str, Counter[str]] = {}
        for store in self.corpus().stores().values():
            for index, row in enumerate(store.documents):
                tokens = int(store.ends[index] - store.starts[index])
                table.setdefault(row["source"], Counter()).update(documents=1, tokens=tokens, bytes=int(store.num_bytes[index]))
        for row in json.loads((self.tokens_path / REPORT).read_text()):
            table.setdefault(row["source"], Counter())[row["reason"]] += 1
        return table

    def look(self, sources: Sequence[str], fields: FieldMap | None = None) -> Iterator[tuple[str, int, int]]:
        """Documents and bytes of every source as they would be read, before cleaning; nothing is written."""
        for source in sources:
            count = size = 0
            for item in read_raw(source, fields, Problems()):
                count, size = count + 1, size + len(raw_text(item).encode())
            yield source, count, size

    def removed(self) -> dict[str, int]:
        """How many documents were removed, by reason."""
        return dict(Counter(row["reason"] for row in json.loads((self.tokens_path / REPORT).read_text())))

    def skipped(self) -> int:
        """How many records could not be read."""
        return int(TextStore.open(self.text_path).artifact.counts["skipped"])

    def check(self) -> None:
        """Compare every file of the corpus stages with its checksum."""
        for path in self._corpus_stages():
            Artifact(path, json.loads((path / MANIFEST).read_text())).check()

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
        return [path for path in stages if path.exists()]

    def corpus(self) -> Corpus:
        return Corpus.open(self.tokens_path)

    def store(self, split: str) -> TokenStore:
        store = self.corpus().stores().get(split)
        if store is None:
            raise DataError(
                f"{self.tokens_path} has no {split!r} split; expected one of {', '.join(self.corpus().stores())}; ingest more documents"
            )
        return store
