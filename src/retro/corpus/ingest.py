"""Documents to token stores: split, encode, drop exact duplicates, decontaminate."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from retro.artifacts import make_fingerprint, write_json
from retro.config import CorpusConfig, to_dict
from retro.corpus.decontamination import find_contaminated
from retro.corpus.documents import SPLITS, Document, split_of
from retro.corpus.tokenizer import Tokenizer, train_tokenizer
from retro.corpus.tokens import TokenStore, write_tokens
from retro.errors import DataError

Progress = Callable[[int, int], None]


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
        optional = {split: TokenStore.open(path / split) if (path / split).exists() else None for split in ("valid", "test")}
        return Corpus(TokenStore.open(path / "train"), optional["valid"], optional["test"])


def select(documents: Iterable[Document], config: CorpusConfig) -> dict[str, list[Document]]:
    """The documents of each split, without empty ones and exact duplicates. The held-out copy of a duplicate is the one that stays."""
    splits: dict[str, list[Document]] = {split: [] for split in SPLITS}
    for document in documents:
        split = split_of(document, config)
        if split is not None and document.text.strip():
            splits[split].append(document)
    seen: set[str] = set()
    for split in reversed(SPLITS):
        unique = []
        for document in splits[split]:
            if document.content_hash not in seen:
                seen.add(document.content_hash)
                unique.append(document)
        splits[split] = unique
    if not splits["train"]:
        raise DataError("the corpus holds no training document with text; expected at least one; give more documents")
    return splits


def fingerprint_of(splits: dict[str, list[Document]]) -> str:
    return make_fingerprint(
        {split: [(document.id, document.content_hash) for document in documents] for split, documents in splits.items()}
    )


def train_corpus_tokenizer(splits: dict[str, list[Document]], path: Path, config: CorpusConfig) -> Tokenizer:
    """Train a tokenizer on the training documents alone."""
    train_tokenizer((document.text for document in splits["train"]), path, config.vocab_size, {"documents": fingerprint_of(splits)})
    return Tokenizer.open(path)


def ingest(
    splits: dict[str, list[Document]], tokenizer: Tokenizer, path: Path, config: CorpusConfig, progress: Progress | None = None
) -> Corpus:
    """Encode the documents, remove contaminated training documents, and write one token store for each split.

    `contaminated.json` lists what was removed and is written last: where it stands, the rest is finished.
    """
    inputs = {"documents": fingerprint_of(splits)}
    report = path / "contaminated.json"
    stores: dict[str, TokenStore] = {}
    encoded: dict[str, list[list[int]]] = {} if report.exists() else _encode(splits, tokenizer, progress)
    contaminated = find_contaminated(
        encoded.get("train", []),
        [*encoded.get("valid", []), *encoded.get("test", [])],
        config.decontaminate_ngram,
        config.decontaminate_threshold,
    )
    removed = {entry.document for entry in contaminated}
    for split, documents in splits.items():
        pairs = zip(documents, encoded.get(split, []), strict=False)
        kept = (pair for index, pair in enumerate(pairs) if split != "train" or index not in removed)
        if documents:
            stores[split] = write_tokens(kept, path / split, tokenizer, {**to_dict(config), "split": split}, inputs)
    if not report.exists():
        held_out = [*splits["valid"], *splits["test"]]
        rows = [(splits["train"][entry.document].id, held_out[entry.held_out].id, entry.similarity) for entry in contaminated]
        write_json(report, [{"document": a, "matches": b, "similarity": round(similarity, 4)} for a, b, similarity in rows])
    return Corpus(stores["train"], stores.get("valid"), stores.get("test"))


def _encode(splits: dict[str, list[Document]], tokenizer: Tokenizer, progress: Progress | None) -> dict[str, list[list[int]]]:
    encoded: dict[str, list[list[int]]] = {split: [] for split in splits}
    total, done = sum(map(len, splits.values())), 0
    for split, documents in splits.items():
        for document in documents:
            encoded[split].append(tokenizer.encode(document.text))
            done += 1
            if progress:
                progress(done, total)
    return encoded
