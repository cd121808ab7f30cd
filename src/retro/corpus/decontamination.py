"""Removal of training documents that are near-duplicates of held-out ones."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Contamination:
    """A training document and the held-out document that it is too close to."""

    document: int
    held_out: int
    similarity: float


def ngrams(tokens: Sequence[int], n: int) -> set[tuple[int, ...]]:
    """The distinct n-grams; a text shorter than n tokens is one n-gram of its own."""
    if len(tokens) < n:
        return {tuple(tokens)}
    return set(zip(*(tokens[start:] for start in range(n)), strict=False))


def find_contaminated(
    documents: Iterable[Sequence[int]], held_out: Sequence[Sequence[int]], n: int = 13, threshold: float = 0.8
) -> list[Contamination]:
    """Every document whose n-gram Jaccard similarity with a held-out document reaches the threshold, with the closest one.

    Exact: an inverted index of the held-out n-grams counts the common ones of each pair.
    """
    sizes: list[int] = []
    holders: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
    for index, tokens in enumerate(held_out):
        grams = ngrams(tokens, n)
        sizes.append(len(grams))
        for gram in grams:
            holders[gram].append(index)

    found: list[Contamination] = []
    for document, tokens in enumerate(documents):
        grams = ngrams(tokens, n)
        common = Counter(holder for gram in grams if gram in holders for holder in holders[gram])
        similarities = {index: count / (len(grams) + sizes[index] - count) for index, count in common.items()}
        closest = max(similarities, key=similarities.__getitem__, default=None)
        if closest is not None and similarities[closest] >= threshold:
            found.append(Contamination(document, closest, similarities[closest]))
    return found
