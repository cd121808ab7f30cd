"""From sources to token stores: text, tokenizer, encoding, and then one store for each split without duplicates and contamination."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from retro.config import CorpusConfig
from retro.config_json import to_dict
from retro.corpus.decontamination import find_contaminated
from retro.corpus.documents import Document
from retro.corpus.encode import EncodedStore
from retro.corpus.names import matches_names
from retro.corpus.text import TextStore
from retro.corpus.tokenizers.huggingface import copy_tokenizer
from retro.corpus.tokenizers.sample import sample_text
from retro.corpus.tokenizers.sentencepiece import train_tokenizer
from retro.corpus.tokenizers.tokenizer import Tokenizer
from retro.corpus.tokens import TokenStore, write_tokens
from retro.errors import DataError
from retro.stages.files import make_fingerprint, write_json

HELD_OUT = ("test", "valid")
REPORT = "removed.json"


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
        optional = {
            split: TokenStore.open(path / split) if (path / split).exists() else None
            for split in ("valid", "test")
        }
        return Corpus(TokenStore.open(path / "train"), optional["valid"], optional["test"])


def train_corpus_tokenizer(text: TextStore, path: Path, config: CorpusConfig) -> Tokenizer:
    """Take the tokenizer that the config names, or train one on a sample of the training documents alone, by the sources' weights."""
    if config.tokenizer:
        copy_tokenizer(config.tokenizer, path)
        return Tokenizer.open(path)
    training = (
        document.text
        for document in sample_text(text, config.tokenizer_sample_bytes, config.tokenizer_weights)
    )
    inputs = {
        "text": text.fingerprint,
        "weights": make_fingerprint(config.tokenizer_weights, config.tokenizer_sample_bytes),
    }
    train_tokenizer(training, path, config.vocab_size, config.tokenizer_model, inputs)
    return Tokenizer.open(path)


def pack(
    encoded: EncodedStore,
    tokenizer: Tokenizer,
    path: Path,
    config: CorpusConfig,
    names: frozenset[str] = frozenset(),
    against: Sequence[np.ndarray] = (),
) -> Corpus:
    """Write one token store for each split, without exact duplicates and without training documents too close to held-out ones.

    A held-out copy of a duplicate stays and the others go. Training documents whose title or id is among `names` go too, and those
    too close to the tokens `against`. `removed.json` lists all that was removed, and with what it matched.
    """
    plan = removals(encoded, config, names, against)
    inputs = {"encoded": encoded.fingerprint}
    if names or against:
        inputs["decontaminated against"] = make_fingerprint(
            sorted(names), [tokens.tolist() for tokens in against]
        )
    stores: dict[str, TokenStore] = {}
    for split in ("train", *HELD_OUT):
        kept = [
            row for number, row in enumerate(encoded.rows()) if row["split"] == split and number not in plan
        ]
        if split == "train" and not kept:
            raise DataError("no training document is left; expected at least one; give more documents")
        if kept:
            settings = {**to_dict(config), "split": split}
            documents = (document for document in encoded.documents(split) if document.number not in plan)
            stores[split] = write_tokens(documents, kept, path / split, tokenizer, settings, inputs)
    write_json(path / REPORT, list(plan.values()))
    return Corpus(stores["train"], stores.get("valid"), stores.get("test"))


def removals(
    encoded: EncodedStore,
    config: CorpusConfig,
    names: frozenset[str] = frozenset(),
    against: Sequence[np.ndarray] = (),
) -> dict[int, dict[str, Any]]:
    """The documents that are left out, by number, each with the reason."""
    plan = dict(_duplicates(encoded))
    plan |= {number: removal for number, removal in _named(encoded, names) if number not in plan}
    held_out = [
        (document.row["id"], np.array(document.tokens))
        for split in HELD_OUT
        for document in encoded.documents(split)
        if document.number not in plan
    ]
    held_out += [(f"given document {number}", tokens) for number, tokens in enumerate(against)]
    compared: list[int] = []

    def training() -> Iterator[np.ndarray]:
        for document in encoded.documents("train"):
            if document.number not in plan:
                compared.append(document.number)
                yield document.tokens

    found = find_contaminated(
        training(),
        [tokens for _, tokens in held_out],
        config.decontaminate_ngram,
        config.decontaminate_threshold,
    )
    contaminated = {compared[entry.document]: entry for entry in found}
    for number, row in enumerate(encoded.rows() if found else ()):
        if entry := contaminated.get(number):
            plan[number] = _removal(
                "contaminated", row, held_out[entry.held_out][0], round(entry.similarity, 4)
            )
    return plan


def _named(encoded: EncodedStore, names: frozenset[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, row in enumerate(encoded.rows() if names else ()):
        if row["split"] == "train" and matches_names(
            Document(row["id"], "", row["source"], row["title"]), names
        ):
            yield number, _removal("named", row, row["title"] or row["id"], 1.0)


def _duplicates(encoded: EncodedStore) -> Iterator[tuple[int, dict[str, Any]]]:
    first: dict[bytes, str] = {}
    for split in (*HELD_OUT, "train"):
        for number, row in enumerate(encoded.rows()):
            if row["split"] == split:
                digest = bytes.fromhex(row["content_hash"])
                if digest in first:
                    yield number, _removal("duplicate", row, first[digest], 1.0)
                first.setdefault(digest, row["id"])


def _removal(reason: str, row: dict[str, Any], match: str, similarity: float) -> dict[str, Any]:
    return {
        "reason": reason,
        "source": row["source"],
        "document": row["id"],
        "matches": match,
        "similarity": similarity,
    }
