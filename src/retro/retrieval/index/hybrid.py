"""The nearest chunks by key, put in order by BM25."""

from pathlib import Path

import numpy as np

from retro.retrieval.index.bm25 import Bm25Index
from retro.retrieval.index.exact import DenseIndex
from retro.retrieval.index.keys import Allowed
from retro.retrieval.index.protocol import Entries, Found, save_description

NUM_CANDIDATES = 100


class HybridIndex:
    """The nearest chunks by key, those that share the most telling tokens first.

    Chunks with equal BM25 scores keep the order of their keys.
    """

    kind = "hybrid"

    def __init__(self, dense: DenseIndex, bm25: Bm25Index) -> None:
        self.dense = dense
        self.bm25 = bm25

    def __len__(self) -> int:
        return len(self.dense)

    def add(self, entries: Entries) -> None:
        self.dense.add(entries)
        self.bm25.add(entries)

    def remove(self, rows: np.ndarray) -> None:
        # The dense half proposes every candidate, so what it no longer finds is gone.
        self.dense.remove(rows)

    def search(self, entries: Entries, k: int, allowed: np.ndarray | Allowed | None = None) -> Found:
        _, candidates = self.dense.search(entries, max(k, NUM_CANDIDATES), allowed)
        distances = np.full(candidates.shape, np.inf, dtype=np.float32)
        for number, (tokens, rows) in enumerate(zip(entries.tokens, candidates, strict=True)):
            real = rows >= 0
            distances[number, real] = -self.bm25.scores_of(tokens, rows[real])
        # Stable: candidates of equal score stay in the order of their keys.
        order = np.argsort(distances, axis=1, kind="stable")[:, :k]
        return np.take_along_axis(distances, order, axis=1), np.take_along_axis(candidates, order, axis=1)

    @staticmethod
    def halves(folder: Path) -> tuple[Path, Path]:
        """The folders of the two halves."""
        return folder / "dense", folder / "bm25"

    def save(self, folder: Path) -> None:
        save_description(folder, kind=self.kind, num_keys=len(self))
        dense, bm25 = self.halves(folder)
        self.dense.save(dense)
        self.bm25.save(bm25)
