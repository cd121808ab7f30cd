"""Packing: from encoded shards to one token store for each split, without duplicates and contamination."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from retro.config import FILE_BYTES, CorpusConfig
from retro.config.as_json import to_dict
from retro.corpus.decontamination import find_contaminated, matches_names
from retro.corpus.documents import Document
from retro.corpus.encode import EncodedStore
from retro.corpus.readers.problems import Kind, Tally
from retro.corpus.tokenizers import Tokenizer
from retro.corpus.tokens import Corpus, TokenStore, find_tokens, write_tokens
from retro.errors import DataError
from retro.stages.files import make_fingerprint, write_json

HELD_OUT = ("test", "valid")
REPORT = "removed.json"
AGAINST = "decontaminated against"


def pack(
    encoded: EncodedStore,
    tokenizer: Tokenizer,
    path: Path,
    config: CorpusConfig,
    names: frozenset[str] = frozenset(),
    against: Sequence[np.ndarray] = (),
    former: Path | None = None,
    file_bytes: int = FILE_BYTES,
) -> Corpus:
    """Write a token store for each split, without duplicates or training documents close to held-out ones.

    Of exact duplicates, a held-out copy stays and the others go. Training documents whose title or id is
    among `names` go too, and those too close to the tokens `against`. `removed.json` lists all that was
    removed, and what it matched. It is written last: where it stands beside a store of every split, nothing
    is left to do. A split that holds what it held in the `former` stores has its fingerprint from there.
    `file_bytes` bounds the files of tokens.
    """
    inputs = {"encoded": encoded.fingerprint}
    if compared_with := against_fingerprint(names, against):
        inputs[AGAINST] = compared_with
    # A split without documents has no store; the others have one, unless all their documents are removed.
    settings = {split: {**to_dict(config), "split": split} for split in encoded.splits()}
    found = {split: find_tokens(path / split, tokenizer, settings[split], inputs) for split in settings}
    stores = {split: store for split, store in found.items() if store is not None}
    if len(stores) < len(settings) or not (path / REPORT).exists():
        removed = removals(encoded, config, names, against)
        rest: dict[str, Any] = {"inputs": inputs, "former": former, "file_bytes": file_bytes}
        write: Any = partial(_write_split, encoded, removed, tokenizer, **rest)
        written = {split: write(split, path / split, settings[split]) for split in settings}
        stores = {split: store for split, store in written.items() if store is not None}
        write_json(path / REPORT, list(removed.values()))
    return Corpus(stores["train"], stores.get("valid"), stores.get("test"))


def against_fingerprint(names: frozenset[str], against: Sequence[np.ndarray] = ()) -> str:
    """What tells which names and tokens training documents are compared with; empty if with none."""
    given = [tokens.tolist() for tokens in against]
    return make_fingerprint(sorted(names), given) if names or given else ""


def _write_split(
    encoded: EncodedStore,
    removed: dict[int, dict[str, Any]],
    tokenizer: Tokenizer,
    split: str,
    path: Path,
    settings: dict[str, Any],
    inputs: dict[str, str],
    former: Path | None,
    file_bytes: int,
) -> TokenStore | None:
    """The documents of a split that were not removed; nothing if none is left of a held-out split."""
    documents = (document for document in encoded.documents(split) if document.number not in removed)
    first = next(documents, None)
    if first is None and split == "train":
        raise DataError("no training document is left; expected at least one; give more documents")
    if first is None:
        return None
    same = former / split if former is not None else None
    return write_tokens(
        chain([first], documents), path, tokenizer, settings, inputs, former=same, file_bytes=file_bytes
    )


def removals(
    encoded: EncodedStore,
    config: CorpusConfig,
    names: frozenset[str] = frozenset(),
    against: Sequence[np.ndarray] = (),
) -> dict[int, dict[str, Any]]:
    """The documents that are left out, by number, each with the reason."""
    # In this order a document that could go for several reasons is listed with the first.
    removed = dict(duplicates(encoded.rows))
    removed |= {number: removal for number, removal in _named(encoded, names) if number not in removed}
    held_out = [
        (document.row["id"], np.array(document.tokens))
        for split in HELD_OUT
        for document in encoded.documents(split)
        if document.number not in removed
    ]
    held_out += [(f"given document {number}", tokens) for number, tokens in enumerate(against)]
    # The search counts the documents it is given; this list leads back to their numbers in the encoded store.
    compared: list[int] = []

    def training() -> Iterator[np.ndarray]:
        for document in encoded.documents("train"):
            if document.number not in removed:
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
            match, _ = held_out[entry.held_out]
            removed[number] = _removal("contaminated", row, match, round(entry.similarity, 4))
    return removed


def _named(encoded: EncodedStore, names: frozenset[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, row in enumerate(encoded.rows() if names else ()):
        document = Document(row["id"], "", row["source"], row["title"])
        if row["split"] == "train" and matches_names(document, names):
            yield number, _removal("named", row, row["title"] or row["id"], 1.0)


def duplicates(rows: Callable[[], Iterable[dict[str, Any]]]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Every document whose text was met before. Held-out documents come first, so their copies stay."""
    first: dict[bytes, str] = {}
    for split in (*HELD_OUT, "train"):
        for number, row in enumerate(rows()):
            if row["split"] == split:
                # As bytes, since there is one a document and hexadecimal text takes twice the memory.
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
        "bytes": row["num_bytes"],
    }


def removal_tallies(removals: Iterable[dict[str, Any]]) -> dict[str, Tally]:
    """How much was removed by kind, in the words that a user reads; earlier reports lack sizes."""
    tallies: dict[str, Tally] = {}
    for row in removals:
        kind, reason = Kind.NAMED, "is named to be removed"
        if row["reason"] == "duplicate":
            kind, reason = Kind.DUPLICATE, f"is the same as {row['matches']}"
        elif row["reason"] == "contaminated":
            kind, reason = Kind.CONTAMINATED, f"is {row['similarity']:.0%} like {row['matches']}"
        place = f"{row['source']}/{row['document']}"
        tallies.setdefault(kind, Tally()).add(1, row.get("bytes", 0), [(place, reason)])
    return tallies
