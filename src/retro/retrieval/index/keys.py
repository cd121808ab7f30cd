"""Keys as indexes read them: one array, or those of several segments as if they were one; and masks of rows.

Keys stay where they are on disk. What is computed from a mask is computed once for all searches with it, as
a mask over millions of rows takes longer to count than a search to answer.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np


class KeyParts:
    """The keys of several arrays, which may be memory maps, numbered one after another. Nothing is copied."""

    def __init__(self, parts: Sequence[np.ndarray]) -> None:
        assert parts
        self.parts = tuple(parts)
        self.starts = np.cumsum([0, *(len(part) for part in parts)])
        """The first row of every part; one more entry closes the last."""
        self.shape = (int(self.starts[-1]), int(parts[0].shape[1]))
        self.dtype = parts[0].dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: np.ndarray | slice) -> np.ndarray:
        """A copy of some rows; where a row is −1, which stands for none, any key."""
        if isinstance(rows, slice):
            return self._run(*rows.indices(len(self))[:2])
        rows = np.asarray(rows)
        keys = np.empty((*rows.shape, self.shape[1]), dtype=self.dtype)
        part_of = np.maximum(np.searchsorted(self.starts, rows, side="right") - 1, 0)
        for number in np.unique(part_of):
            here = part_of == number
            keys[here] = self.parts[number][np.maximum(rows[here] - self.starts[number], 0)]
        return keys

    def _run(self, begin: int, end: int) -> np.ndarray:
        pieces = [
            part[max(0, begin - start) : max(0, end - start)]
            for part, start in zip(self.parts, self.starts[:-1], strict=True)
        ]
        return np.concatenate(pieces)

    def __iter__(self) -> Iterator[tuple[int, np.ndarray]]:
        """The first row of every part, and the part."""
        return zip(self.starts[:-1].tolist(), self.parts, strict=True)


Keys = np.ndarray | KeyParts
"""What an index is built over."""


class Allowed:
    """The rows that a search may return."""

    def __init__(self, mask: np.ndarray) -> None:
        self.mask = mask

    @staticmethod
    def of(mask: "np.ndarray | Allowed | None") -> "Allowed | None":
        return Allowed(mask) if isinstance(mask, np.ndarray) else mask

    def __len__(self) -> int:
        return len(self.mask)

    @cached_property
    def count(self) -> int:
        return int(np.count_nonzero(self.mask))

    @cached_property
    def bits(self) -> np.ndarray:
        """One bit a row, as FAISS reads them."""
        return np.packbits(self.mask, bitorder="little")

    def part(self, begin: int, end: int) -> "Allowed":
        """Those among some rows that follow each other."""
        return Allowed(self.mask[begin:end])

    def without(self, removed: np.ndarray) -> "Allowed":
        return Allowed(self.mask & ~removed)
