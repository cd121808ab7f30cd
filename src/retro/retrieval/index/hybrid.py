"""Dense candidates, ordered by BM25."""

from pathlib import Path
from typing import Any

import numpy as np

from retro.retrieval.index.bm25 import Bm25Index
from retro.retrieval.index.dense import DenseIndex
from retro.retrieval.index.index import Entries, Found, open_index, save_description

NUM_CANDIDATES = 100


class HybridIndex:
    """The nearest chunks by key, those with the most telling tokens in common first; equals keep the order of their keys."""

    kind = "hybrid"

    def __init__(self, dense: Any, bm25: Any) -> None:
        self.dense: DenseIndex = dense
        self.bm25: Bm25Index = bm25

    def __len__(self) -> int:
        return len(self.dense)

    def add(self, entries: Entries) -> None:
        self.dense.add(entries)
        self.bm25.add(entries)

    def remove(self, rows: np.ndarray) -> None:
        self.dense.remove(rows)

    def search(self, entries: Entries, k: int, allowed: np.ndarray | None = None) -> Found:
        _, candidates = self.dense.search(entries, max(k, NUM_CANDIDATES), allowed)
        distances = np.full(candidates.shape, np.inf, dtype=np.float32)
        for number, (tokens, rows) in enumerate(zip(entries.tokens, candidates, strict=True)):
            real = rows >= 0
            distances[number, real] = -self.bm25.scores_of(tokens, rows[real])
        order = np.argsort(distances, axis=1, kind="stable")[:, :k]
        return np.take_along_axis(distances, order, axis=1), np.take_along_axis(candidates, order, axis=1)

    def save(self, folder: Path) -> None:
        save_description(folder, kind=self.kind, num_keys=len(self))
        self.dense.save(folder / "dense")
        self.bm25.save(folder / "bm25")

    def restore(self, folder: Path, keys: np.ndarray, description: dict[str, Any]) -> None:
        self.dense = open_index(folder / "dense", keys)  # type: ignore[assignment]
        self.bm25 = open_index(folder / "bm25", keys)  # type: ignore[assignment]
