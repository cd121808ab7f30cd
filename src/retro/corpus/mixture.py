"""Sources sampled by weight: which document stands at step i is a pure function of the seed and i.

Steps come in blocks. In each block a source has its share of the steps, rounded up or down, in a shuffled
order. How the shares are rounded repeats after `PERIOD` blocks and evens out within them. So the number of a
source's earlier uses, and with it the place in that source's own order, is known for any step without walking
there, on any number of workers.
"""

import hashlib
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from retro.errors import ConfigError
from retro.wording import counted

BLOCK = 1000
PERIOD = 1024
ROUNDS = 6
WORD = (1 << 64) - 1


class Draw(NamedTuple):
    """A document: its source, its index there, and how often the source has been gone through before."""

    source: str
    document: int
    epoch: int


class Mixture:
    """An endless, shuffled sequence of documents in which each source has its weight.

    Weights need not sum to 1, and 0 leaves a source out. Within a source every index comes once an epoch.
    """

    def __init__(self, weights: Mapping[str, float], sizes: Mapping[str, int], seed: int) -> None:
        _check(weights, sizes)
        self.weights = dict(weights)
        self.sources = sorted(weights)  # the order of the mapping means nothing
        self.sizes = {source: int(sizes[source]) for source in self.sources}
        self.seed = seed
        self._shares = _shares(np.array([weights[source] for source in self.sources], dtype=np.float64))
        # Row b is how often each source is used in the first b blocks of a period.
        self._before = np.concatenate([np.zeros_like(self._shares[:1]), np.cumsum(self._shares, axis=0)])
        self._block = lru_cache(maxsize=4)(self._make_block)
        self._keys = lru_cache(maxsize=4 * len(self.sources))(self._make_keys)

    def __reduce__(self) -> tuple[type["Mixture"], tuple[dict[str, float], dict[str, int], int]]:
        """What another process needs to make it again; the caches stay here."""
        return Mixture, (self.weights, self.sizes, self.seed)

    def __getitem__(self, step: int) -> Draw:
        if step < 0:
            raise IndexError(f"step {step}; expected 0 or more")
        block, place = divmod(step, BLOCK)
        order, ranks = self._block(block)
        number = int(order[place])
        source = self.sources[number]
        use = int(self._uses_before(block)[number]) + int(ranks[place])
        # Uses beyond the size of a source begin its next epoch, in another order.
        epoch, position = divmod(use, self.sizes[source])
        return Draw(source, permuted(position, self.sizes[source], self._keys(source, epoch)), epoch)

    def observed(self, start: int, stop: int) -> dict[str, float]:
        """The share of each source among the steps from `start` to before `stop`."""
        if not 0 <= start < stop:
            raise ConfigError(f"steps {start} to {stop}; expected 0 ≤ start < stop; change the range")
        counts = self._uses(stop) - self._uses(start)
        return {
            source: int(count) / (stop - start) for source, count in zip(self.sources, counts, strict=True)
        }

    def _uses(self, step: int) -> NDArray[np.int64]:
        """How often each source is used before the step."""
        block, place = divmod(step, BLOCK)
        return self._uses_before(block) + np.bincount(
            self._block(block)[0][:place], minlength=len(self.sources)
        )

    def _uses_before(self, block: int) -> NDArray[np.int64]:
        periods, rest = divmod(block, PERIOD)
        return periods * self._before[-1] + self._before[rest]

    def _make_block(self, block: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The source at each place of a block, and how often that source was used in the block before it.

        Only raw words of Philox are used: NumPy promises to keep these the same, unlike its `permutation`.
        """
        shares = self._shares[block % PERIOD]
        words = np.random.Philox(key=_word("blocks", self.seed), counter=block << 64).random_raw(BLOCK)
        order = np.repeat(np.arange(len(shares)), shares)[np.argsort(words, kind="stable")]
        # Sorted by source, the places of each source come in order and are numbered from 0.
        ranks = np.empty(BLOCK, dtype=np.int64)
        ranks[np.argsort(order, kind="stable")] = np.concatenate([np.arange(share) for share in shares])
        return order, ranks

    def _make_keys(self, source: str, epoch: int) -> tuple[int, ...]:
        return tuple(_word("epoch", self.seed, source, epoch, number) for number in range(ROUNDS))


def permuted(position: int, size: int, keys: tuple[int, ...]) -> int:
    """What stands at a position of the keyed permutation of `range(size)`.

    A Feistel network permutes the next even power of two; what falls outside `size` is sent through again,
    fewer than four times on average. A stored permutation would cost 8 bytes a document for each source and
    be drawn anew on every resumption.
    """
    # Half the bits, rounded up, that the largest position needs.
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    while True:
        left, right = position >> half, position & mask
        # Each round can be undone, whatever the mixing does: that makes it a permutation.
        for key in keys:
            left, right = right, left ^ (_mix(right ^ key) & mask)
        position = left << half | right
        if position < size:
            return position


def _mix(word: int) -> int:
    """Spread every bit of a word over all of it."""
    word = (word ^ word >> 33) * 0xFF51AFD7ED558CCD & WORD
    word = (word ^ word >> 33) * 0xC4CEB9FE1A85EC53 & WORD
    return word ^ word >> 33


def _word(*parts: object) -> int:
    return int.from_bytes(hashlib.sha256("\0".join(map(str, parts)).encode()).digest()[:8], "big")


def _shares(weights: NDArray[np.float64]) -> NDArray[np.int64]:
    """How many steps each source has in each block of a period.

    The sources lie end to end along a block, and the steps are a lattice over it that is shifted from block
    to block: each source catches its share rounded up or down, and exactly its share on average. The shifts
    follow bit reversal, so that any run of blocks is nearly even.
    """
    bits = PERIOD.bit_length() - 1
    shifts = np.array([int(f"{block:0{bits}b}"[::-1], 2) for block in range(PERIOD)]) / PERIOD
    edges = np.concatenate([[0.0], np.cumsum(weights) / weights.sum() * BLOCK])
    edges[-1] = BLOCK  # exactly, whatever the sum was rounded to
    # How many lattice points lie before each edge; rounding keeps an edge on a point from slipping past it.
    caught = np.ceil(np.round(edges, 9)[None, :] - shifts[:, None]).astype(np.int64)
    return caught[:, 1:] - caught[:, :-1]


def _check(weights: Mapping[str, float], sizes: Mapping[str, int]) -> None:
    for source in sorted(weights.keys() | sizes.keys()):
        if source not in sizes:
            raise ConfigError(
                f"a weight for {source!r}, which is no source here; expected {', '.join(sorted(sizes))}; "
                "correct the weights"
            )
        if source not in weights:
            raise ConfigError(
                f"no weight for source {source!r}; expected one for each source, 0 to leave it out; "
                "add it to the weights"
            )
        weight, size = weights[source], sizes[source]
        if not (math.isfinite(weight) and weight >= 0.0):
            raise ConfigError(
                f"weight {weight} for {source!r}; expected a finite number of at least 0; correct the weights"
            )
        if size < 0 or (weight > 0.0 and size == 0):
            raise ConfigError(
                f"source {source!r} has {counted(size, 'document')} and weight {weight}; expected documents; "
                "ingest it or set weight 0"
            )
    if not any(weight > 0.0 for weight in weights.values()):
        raise ConfigError(
            f"the weights {dict(weights)} are all 0; expected at least one above 0; correct the weights"
        )
