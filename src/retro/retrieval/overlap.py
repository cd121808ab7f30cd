"""How much of a text stands in its neighbours: common substrings of tokens, for many texts at once.

This is the dynamic programme of the textbooks, turned so that its inner loop runs over all places of all
neighbours, in the smallest integers that hold them. `benchmarks/overlap.py` times it.
"""

from collections.abc import Iterator

import numpy as np

PLACES = 1 << 17
"""Tokens of neighbours that are looked at together: what fits into a processor's cache."""
TABLE = 1 << 15
"""Pairs of a token and a place that are looked at in one step: two chunks beside a neighbour and more."""


def longest_common_substring(chunks: np.ndarray, retrieved: np.ndarray, pad_id: int) -> np.ndarray:
    """The longest run of tokens that a chunk (…, m) shares with any of its neighbours (…, k, r).

    This is s in the paper. Padding matches nothing.
    """
    flat = chunks.reshape(-1, chunks.shape[-1])
    longest = np.zeros(len(flat), dtype=np.int16)
    if retrieved.size and chunks.size:
        others = retrieved.reshape(len(flat), *retrieved.shape[-2:])
        # So many chunks at a time that the places of their neighbours stay in the cache.
        step = max(1, PLACES // others[0].size)
        for first in range(0, len(flat), step):
            part = slice(first, first + step)
            for runs in _runs(flat[part], others[part], pad_id):
                np.maximum(longest[part], runs.max(axis=1), out=longest[part])
    return longest.reshape(chunks.shape[:-1])


def longest_common_prefix(tokens: np.ndarray, others: np.ndarray, pad_id: int) -> np.ndarray:
    """For every token, the length of the longest run ending at it that stands in any of the others (k, r).

    LCP in the paper.
    """
    if not others.size or not tokens.size:
        return np.zeros(len(tokens), dtype=np.int16)
    if tokens.size * others.size <= TABLE:
        found = [_longest_endings(tokens, other, pad_id) for other in others]
        return np.max(found, axis=0).astype(np.int16)
    return np.array([runs.max() for runs in _runs(tokens[None], others[None], pad_id)], dtype=np.int16)


def _longest_endings(tokens: np.ndarray, other: np.ndarray, pad_id: int) -> np.ndarray:
    """For every token, the longest run that ends at it and stands in the other, all tokens at once.

    A run is a diagonal of the table (token, place). Read with rows that are one longer, the table has its
    diagonals as columns; a place before the other, which nothing equals, ends a diagonal at the table's edge.
    So a run is as long as its last row lies behind the last row above that differs.
    """
    num_places = len(other) + 1
    differs = np.ones((len(tokens), num_places), dtype=bool)
    differs[:, 1:] = (tokens[:, None] != other) | (other == pad_id)
    num_rows = -(-differs.size // (num_places + 1))
    columns = np.ones((num_rows, num_places + 1), dtype=bool)
    columns.reshape(-1)[: differs.size] = differs.reshape(-1)
    rows = np.arange(1, num_rows + 1, dtype=np.min_scalar_type(num_rows))[:, None]
    runs = rows - np.maximum.accumulate(columns * rows, axis=0)
    longest: np.ndarray = runs.reshape(-1)[: differs.size].reshape(differs.shape).max(axis=1)
    return longest


def _runs(tokens: np.ndarray, others: np.ndarray, pad_id: int) -> Iterator[np.ndarray]:
    """For each token of rows (n, m), how long a run ends at it and at every place of its others (n, k, r).

    The others of a row are laid end to end. A place that nothing equals stands before each of them, so that
    no run goes from one to the next. What is yielded is overwritten by what follows.
    """
    # A token that stands nowhere; the smallest type that holds it makes the comparison fast.
    nothing = max(int(tokens.max()), int(others.max())) + 1
    places = np.full((*others.shape[:2], others.shape[2] + 1), nothing, dtype=np.min_scalar_type(nothing))
    places[..., 1:] = np.where(others == pad_id, nothing, others)
    places = places.reshape(len(others), -1)
    columns = np.ascontiguousarray(tokens.T, dtype=places.dtype)[..., None]
    # One column of tokens at a time, against all places. A run that ends here is one longer than the run
    # that ended at the place before with the token before, and zero where the tokens differ. Two buffers
    # take turns.
    equal = np.empty(places.shape, dtype=bool)
    before, runs = np.zeros((2, places.size), dtype=np.min_scalar_type(tokens.shape[1]))
    for column in columns:
        np.equal(places, column, out=equal)
        np.add(before[:-1], 1, out=runs[1:])
        np.multiply(runs, equal.reshape(-1).view(np.uint8), out=runs)
        yield runs.reshape(places.shape)
        before, runs = runs, before
