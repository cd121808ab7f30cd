"""MinHash signatures of n-gram sets, and the bands under which similar sets meet."""

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np
import rensa
from numpy.typing import NDArray

from retro.errors import ConfigError

BASE = 0x9E3779B97F4A7C15
"""Base of the polynomial over tokens; odd, so that it has an inverse modulo 2⁶⁴."""
SHORTER = 0xD6E8FEB86659FD93
"""Added for each token that a short document lacks; else it would equal itself with a token 0 more."""
SEED = 42
"""Signatures live only as long as one call, so that nobody needs to choose it."""


def lsh_parameters(threshold: float, num_perm: int, probability: float) -> tuple[int, int]:
    """The bands and rows with which a pair at the threshold shares a band with at least this probability.

    Two sets of similarity s agree in a band of r rows with probability sʳ, and in one of b bands with
    1 − (1 − sʳ)ᵇ. The most rows that still suffice are taken, since each further row spares false candidates.
    """
    needed = permutations_needed(threshold, probability)
    # From the most rows down: the first that suffices is the most selective.
    for rows in range(num_perm, 0, -1):
        bands = num_perm // rows
        if 1.0 - (1.0 - threshold**rows) ** bands >= probability:
            return bands, rows
    raise ConfigError(
        f"{num_perm} permutations cannot find a similarity of {threshold}; expected at least {needed}; "
        "raise num_perm"
    )


def permutations_needed(threshold: float, probability: float) -> int:
    """The fewest permutations, in bands of one row, that find a pair at the threshold so probably."""
    if not 0.0 < threshold <= 1.0 or not 0.0 < probability < 1.0:
        raise ConfigError(
            f"threshold {threshold} and probability {probability}; expected (0, 1] and (0, 1); change them"
        )
    if threshold >= 1.0:
        return 1
    # Solves 1 − (1 − threshold)ⁿ = probability for n.
    return math.ceil(math.log1p(-probability) / math.log1p(-threshold))


def ngram_hashes(
    documents: Sequence[NDArray[np.uint32]], n: int
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """A 64-bit hash for each token of the documents, laid end to end, and where each document begins.

    Each token stands for the n-gram that begins with it. The last tokens of a document, which begin none,
    repeat its last n-gram, or the whole document where it is shorter than n: as a set nothing changes. Equal
    n-grams have equal hashes, so no pair is lost here. The work does not grow with n.
    """
    lengths = np.array([len(document) for document in documents], dtype=np.int64)
    offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])
    total = int(offsets[-1])
    powers, inverse = _powers(total)
    # prefix[i] is the polynomial Σ token[j] · base^j over j < i, for all documents as one text, modulo 2⁶⁴.
    prefix = np.zeros(total + 1, dtype=np.uint64)
    np.multiply(np.concatenate(documents), powers[:total], out=prefix[1:])
    np.cumsum(prefix, out=prefix)
    # A window's polynomial is a difference of two prefixes, moved to the origin by the inverse of the base.
    # Windows that reach over the end of a document are wrong, and are set anew below.
    hashes = np.zeros(total, dtype=np.uint64)
    whole = max(0, total - n + 1)
    np.subtract(prefix[n:], prefix[:whole], out=hashes[:whole])
    hashes *= inverse[:total]

    # The last n-gram of every document, or all of it where it is shorter.
    lasts = np.maximum(offsets[1:] - n, offsets[:-1])
    missing = np.maximum(n - lengths, 0).astype(np.uint64)
    ends = (prefix[offsets[1:]] - prefix[lasts]) * inverse[lasts] + missing * np.uint64(SHORTER)
    # The places of the last n − 1 tokens of every document, which get that hash.
    tails = np.minimum(lengths, n - 1)
    begins = offsets[1:] - tails
    places = np.arange(tails.sum()) + np.repeat(begins - (np.cumsum(tails) - tails), tails)
    hashes[places] = np.repeat(ends, tails)
    return _mix(hashes), offsets.astype(np.uint64)


def _powers(count: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """At least so many powers of the base, and of its inverse, from the zeroth on and modulo 2⁶⁴."""
    return _exact_powers(1 << count.bit_length())


@lru_cache(maxsize=2)
def _exact_powers(count: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    # A row 1, b, b, b, …, multiplied up, is the powers of b; unsigned numbers wrap, which is the modulus.
    factors = np.array([[BASE], [pow(BASE, -1, 2**64)]], dtype=np.uint64).repeat(count, axis=1)
    factors[:, 0] = 1
    powers, inverse = np.multiply.accumulate(factors, axis=1)
    return powers, inverse


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Spread every bit over all 64, in place, as a polynomial leaves the low bits regular (MurmurHash3)."""
    shifted = values >> np.uint64(33)
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        values ^= shifted
        values *= np.uint64(factor)
        np.right_shift(values, np.uint64(33), out=shifted)
    values ^= shifted
    return values


def signatures(documents: Sequence[NDArray[np.uint32]], n: int, num_perm: int) -> NDArray[np.uint32]:
    """One row of `num_perm` minima for each document."""
    if not documents:
        return np.zeros((0, num_perm), dtype=np.uint32)
    hashes, offsets = ngram_hashes(documents, n)
    matrix = rensa.RMinHash.digest_matrix_from_flat_token_hashes(hashes, offsets, num_perm, SEED)
    return np.array(matrix.to_rows(), dtype=np.uint32)


class BandIndex:
    """Which of the indexed signatures share a band with a queried one.

    All bands lie in one sorted array of keys: 12 bytes for each band of each signature. Two different bands
    meet in a key by accident about once in 2⁶⁴, which gives a candidate too many and never one too few.
    """

    def __init__(self, signatures: NDArray[np.uint32], bands: int, rows: int) -> None:
        self.bands = bands
        self.rows = rows
        keys = self._keys(signatures).ravel()
        # Row by row the keys of a signature's bands lie side by side, so that a place tells its owner.
        order = np.argsort(keys)
        self._sorted = keys[order]
        self._owners = (order // bands).astype(np.uint32)

    def _keys(self, signatures: NDArray[np.uint32]) -> NDArray[np.uint64]:
        """One key for each band of each signature; the multipliers differ from band to band."""
        # Each row of a band has an odd multiplier of its own, so that the order of the rows counts.
        used = self.bands * self.rows
        multipliers = _mix(np.arange(1, used + 1, dtype=np.uint64)) | np.uint64(1)
        spread = _mix(signatures[:, :used].astype(np.uint64) + np.uint64(1)) * multipliers
        return _mix(spread.reshape(-1, self.bands, self.rows).sum(axis=2, dtype=np.uint64))

    def query(self, signatures: NDArray[np.uint32]) -> Iterator[tuple[int, list[int]]]:
        """The rows that have candidates, each with the indexed signatures it meets, both ascending."""
        keys = self._keys(signatures)
        places = np.searchsorted(self._sorted, keys)
        hits = self._sorted[np.minimum(places, len(self._sorted) - 1)] == keys
        # Equal keys lie side by side, from left to right; the second search is for the few hits alone.
        left = places[hits]
        right = np.searchsorted(self._sorted, keys[hits], side="right")
        # Hits come row by row. An edge is where the row changes: two edges enclose the hits of one row.
        hit_rows = np.nonzero(hits)[0]
        edges = np.flatnonzero(np.diff(hit_rows, prepend=-1, append=len(keys)))
        for begin, end in pairwise(edges.tolist()):
            owners = [self._owners[left[hit] : right[hit]] for hit in range(begin, end)]
            yield int(hit_rows[begin]), np.unique(np.concatenate(owners)).tolist()
