"""Removal of training documents that are near-duplicates of held-out ones."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from retro.corpus.minhash import BandIndex, lsh_parameters, permutations_needed, signatures
from retro.errors import ConfigError

NUM_PERM = 128
MAX_NUM_PERM = 8192
"""Thresholds below 0.053 need more permutations than the usual 128; those below 0.00085 are refused."""
PROBABILITY = 0.999
"""With which a document exactly at the threshold is proposed; above the threshold it is higher."""
BATCH_TOKENS = 1 << 17
"""Tokens hashed together: enough to hide Python's overhead, few enough to stay in the processor's caches and a few megabytes."""

Tokens = NDArray[np.uint32]


@dataclass(frozen=True)
class Contamination:
    """A training document and the held-out document that it is too close to."""

    document: int
    held_out: int
    similarity: float


def ngrams(tokens: Tokens, n: int) -> set[bytes]:
    """The distinct n-grams, each as the bytes of its tokens; a text shorter than n tokens is one n-gram of its own."""
    data, step = tokens.tobytes(), tokens.itemsize
    return {data[start : start + n * step] for start in range(0, max(1, len(data) - (n - 1) * step), step)}


def find_contaminated(
    documents: Iterable[Sequence[int] | NDArray[np.integer]],
    held_out: Sequence[Sequence[int] | NDArray[np.integer]],
    n: int = 13,
    threshold: float = 0.8,
) -> list[Contamination]:
    """Every document whose n-gram Jaccard similarity with a held-out document reaches the threshold, with the closest one.

    MinHash LSH proposes pairs and the n-grams themselves decide: nothing below the threshold is ever reported, and a document at
    the threshold is missed with a probability of at most 0.001. The documents are read once; memory is that of the held-out ones.
    """
    closest: dict[int, Contamination] = {}
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
    """The documents that may be too close to held-out ones, each with its number, its tokens and these held-out ones."""
    if not held_out:
        return
    num_perm = min(max(NUM_PERM, permutations_needed(threshold, PROBABILITY)), MAX_NUM_PERM)
    bands, rows = lsh_parameters(threshold, num_perm, PROBABILITY)
    index = BandIndex(
        np.concatenate([signatures(batch, n, num_perm) for _, batch in _batches(held_out)]), bands, rows
    )
    for first, batch in _batches(_as_tokens(tokens) for tokens in documents):
        for row, candidates in index.query(signatures(batch, n, num_perm)):
            yield first + row, batch[row], candidates


def _as_tokens(tokens: ArrayLike) -> Tokens:
    return np.asarray(tokens, dtype=np.uint32)


def _batches(documents: Iterable[Tokens]) -> Iterator[tuple[int, list[Tokens]]]:
    """Documents of at least `BATCH_TOKENS` together, with the number of the first. Each counts one more than its tokens: it may be empty."""
    first, size = 0, 0
    batch: list[Tokens] = []
    for document in documents:
        batch.append(document)
        size += len(document) + 1
        if size >= BATCH_TOKENS:
            yield first, batch
            first, size, batch = first + len(batch), 0, []
    if batch:
        yield first, batch


def _jaccard(grams: set[bytes], others: set[bytes]) -> float:
    common = len(grams & others)
    return common / (len(grams) + len(others) - common)
