"""How much of a text stands in its neighbours: common substrings of tokens, all at once."""

import numpy as np


def match_lengths(tokens: np.ndarray, others: np.ndarray, pad_id: int) -> np.ndarray:
    """For each position i of `tokens` and j of `others`, the length of the longest common run that ends at both.

    `tokens` is (…, n) and `others` (…, r) with leading axes that broadcast; the result is (n, …, r). Padding matches nothing.
    """
    n = tokens.shape[-1]
    shape = np.broadcast_shapes(tokens.shape[:-1], others.shape[:-1])
    runs = np.zeros((n, *shape, others.shape[-1]), dtype=np.int16)
    for i in range(n):
        current = tokens[..., i, None]
        equal = (current == others) & (others != pad_id)
        if i:
            runs[i, ..., 1:] = runs[i - 1, ..., :-1]
        runs[i] = np.where(equal, runs[i] + 1, 0)
    return runs


def longest_common_substring(chunks: np.ndarray, retrieved: np.ndarray, pad_id: int) -> np.ndarray:
    """The longest run of tokens that a chunk (…, m) shares with any of its neighbours (…, k, r); s in the paper."""
    if not retrieved.shape[-2]:
        return np.zeros(chunks.shape[:-1], dtype=np.int16)
    longest: np.ndarray = match_lengths(chunks[..., None, :], retrieved, pad_id).max(axis=(0, -1, -2))
    return longest


def longest_common_prefix(tokens: np.ndarray, others: np.ndarray, pad_id: int) -> np.ndarray:
    """For every token, the length of the longest run ending at it that appears in any of the others (k, r); LCP in the paper."""
    if not others.size or not tokens.size:
        return np.zeros(len(tokens), dtype=np.int16)
    longest: np.ndarray = match_lengths(tokens[None, :], others, pad_id).max(axis=(1, 2))
    return longest
