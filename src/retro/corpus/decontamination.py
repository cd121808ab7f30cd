"""Which training documents must go: near-duplicates of held-out ones, and those whose names are on a list.

The lists are of titles or ids, such as those of Wikitext103's articles, which also stand in Wikipedia.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from retro.corpus.documents import Document
from retro.corpus.minhash import BandIndex, lsh_parameters, permutations_needed, signatures
from retro.errors import ConfigError, DataError

NUM_PERM = 128
MAX_NUM_PERM = 8192
"""Thresholds below 0.053 need more permutations than the usual 128; those below 0.00085 are refused."""
PROBABILITY = 0.999
"""How probably a document exactly at the threshold is proposed; above the threshold it is more probable."""
BATCH_TOKENS = 1 << 17
"""Tokens hashed together: enough to hide Python's overhead, few enough to stay in the processor's caches."""
_JOINER = re.compile(r"\s@(.)@\s")
"""WikiText's mark for a hyphen, comma or point that stood without spaces."""
_SPACE = re.compile(r"[\s_]+")

Tokens = NDArray[np.uint32]


@dataclass(frozen=True)
class Contamination:
    """A training document and the held-out document that it is too close to."""

    document: int
    held_out: int
    similarity: float


def ngrams(tokens: Tokens, n: int) -> set[bytes]:
    """The distinct n-grams, each as the bytes of its tokens; a text shorter than n is one n-gram itself."""
    data = tokens.tobytes()
    step = tokens.itemsize
    # One start for each whole n-gram, and at least one: slicing stops at the end of a short text.
    starts = range(0, max(1, len(data) - (n - 1) * step), step)
    return {data[start : start + n * step] for start in starts}


def find_contaminated(
    documents: Iterable[Sequence[int] | NDArray[np.integer]],
    held_out: Sequence[Sequence[int] | NDArray[np.integer]],
    n: int = 13,
    threshold: float = 0.8,
) -> list[Contamination]:
    """Every document whose n-grams' Jaccard similarity with a held-out one reaches the threshold.

    Each comes with the closest of these. MinHash LSH proposes pairs and the n-grams themselves decide:
    nothing below the threshold is ever reported, and a document at the threshold is missed with a probability
    of at most 0.001. The documents are read once; memory is that of the held-out ones.
    """
    closest: dict[int, Contamination] = {}
    # Of equally close ones the first stays, so that the report is the same in every run.
    for pair in find_pairs(documents, held_out, n, threshold):
        if pair.document not in closest or pair.similarity > closest[pair.document].similarity:
            closest[pair.document] = pair
    return list(closest.values())


def find_pairs(
    documents: Iterable[Sequence[int] | NDArray[np.integer]],
    held_out: Sequence[Sequence[int] | NDArray[np.integer]],
    n: int = 13,
    threshold: float = 0.8,
) -> Iterator[Contamination]:
    """Every document with every held-out document that it is too close to, as in `find_contaminated`."""
    if n < 1:
        raise ConfigError(f"n-grams of {n} tokens; expected at least 1; change decontaminate_ngram")
    held = [_as_tokens(tokens) for tokens in held_out]
    for number, tokens, candidates in find_candidates(documents, held, n, threshold):
        grams = ngrams(tokens, n)
        for candidate in candidates:
            similarity = _jaccard(grams, ngrams(held[candidate], n))
            if similarity >= threshold:
                yield Contamination(number, candidate, similarity)


def find_candidates(
    documents: Iterable[Sequence[int] | NDArray[np.integer]],
    held_out: Sequence[Tokens],
    n: int,
    threshold: float,
) -> Iterator[tuple[int, Tokens, list[int]]]:
    """The documents that may be too close to held-out ones: number, tokens, and which held-out ones."""
    if not held_out:
        return
    # The usual number, unless the threshold is so low that it would miss pairs.
    num_perm = min(max(NUM_PERM, permutations_needed(threshold, PROBABILITY)), MAX_NUM_PERM)
    bands, rows = lsh_parameters(threshold, num_perm, PROBABILITY)
    held_signatures = [signatures(batch, n, num_perm) for _, batch in _batches(held_out)]
    index = BandIndex(np.concatenate(held_signatures), bands, rows)
    for first, batch in _batches(_as_tokens(tokens) for tokens in documents):
        for row, candidates in index.query(signatures(batch, n, num_perm)):
            yield first + row, batch[row], candidates


def _as_tokens(tokens: ArrayLike) -> Tokens:
    return np.asarray(tokens, dtype=np.uint32)


def _batches(documents: Iterable[Tokens]) -> Iterator[tuple[int, list[Tokens]]]:
    """Documents of at least `BATCH_TOKENS` together, with the number of the first of them."""
    first = 0
    size = 0
    batch: list[Tokens] = []
    for document in documents:
        batch.append(document)
        size += len(document) + 1  # one more, so that a batch of empty documents ends too
        if size >= BATCH_TOKENS:
            yield first, batch
            first += len(batch)
            size = 0
            batch = []
    if batch:
        yield first, batch


def _jaccard(grams: set[bytes], others: set[bytes]) -> float:
    common = len(grams & others)
    return common / (len(grams) + len(others) - common)


def title_key(title: str) -> str:
    """A title without what its forms differ in: "AC @-@ 130" and "AC-130", "Iron_Man" and "Iron Man"."""
    return _SPACE.sub("", _JOINER.sub(r"\1", unicodedata.normalize("NFC", title)))


def names_of(lines: Iterable[str]) -> frozenset[str]:
    """Titles or ids, each as it is, for ids match exactly, and as its `title_key`, for titles in any form."""
    # Ids match as they are, titles in any of their forms: both are kept.
    names = {line.strip() for line in lines}
    names |= {title_key(name) for name in names}
    return frozenset(names - {""})


def read_names(path: str | Path) -> frozenset[str]:
    """The names of a text file, one a line; empty lines are skipped."""
    try:
        names = names_of(Path(path).read_text(encoding="utf-8").splitlines())
    except FileNotFoundError:
        raise DataError(
            f"{path} does not exist; expected a text file with one title or id a line; check the path"
        ) from None
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is not UTF-8 at byte {error.start}; expected one title or id a line; convert it to UTF-8"
        ) from None
    if not names:
        raise DataError(
            f"{path} holds no names; expected one title or id a line; fill it or leave the option out"
        )
    return names


def matches_names(document: Document, names: frozenset[str]) -> bool:
    """Whether the document's id or title is among the names (of `names_of` or `read_names`)."""
    forms = {document.id, document.title, title_key(document.title)}
    return not names.isdisjoint(forms - {""})
