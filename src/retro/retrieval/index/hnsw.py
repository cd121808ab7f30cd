"""A graph over the keys, which are stored once: the graph's file holds links only."""

import re
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from retro.retrieval.index.exact import DenseIndex, by_row, float16_storage, selector
from retro.retrieval.index.keys import Allowed, Keys
from retro.retrieval.index.protocol import Entries, Found

HNSW = re.compile(r"HNSW(\d+)")
GRAPH = "graph.faiss"
ADD_BLOCK = 65_536
"""Keys that are float32 at one time. The graph depends on this and on the keys, but not on the threads."""
EF_CONSTRUCTION = 200


class HnswIndex(DenseIndex):
    """FAISS's HNSW over float16 keys; `HNSW24` keeps 48 links a key, about 208 bytes."""

    effort = 64

    def __init__(self, width: int, kind: str = "HNSW24") -> None:
        super().__init__(width)
        self.kind = kind
        match = HNSW.fullmatch(kind)
        assert match
        self._graph = faiss.IndexHNSWSQ(width, faiss.ScalarQuantizer.QT_fp16, int(match[1]))
        self._graph.hnsw.efConstruction = EF_CONSTRUCTION
        # Without this, pruning leaves ten links of 48, and the same effort finds less
        # (docs/decisions/0007-indexes.md).
        self._graph.keep_max_size_level0 = True

    def efforts(self) -> list[int]:
        return [24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256, 384, 512]

    def add(self, entries: Entries) -> None:
        """Link the keys in. Meanwhile FAISS needs vectors that can grow: a float16 copy, dropped after it."""
        growing = faiss.IndexScalarQuantizer(
            self.keys.shape[1], faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_L2
        )
        # Keys from an earlier `add` are linked already and must be there to be compared with.
        growing.add_sa_codes(self._whole.view(np.uint8))
        self._attach(growing)
        for start in range(0, len(entries.keys), ADD_BLOCK):
            # Rounded first, should they come as float32: the graph is of the stored keys.
            self._graph.add(entries.keys[start : start + ADD_BLOCK].astype(np.float16).astype(np.float32))
        super().add(entries)
        self._attach(float16_storage(self._whole))

    @property
    def _whole(self) -> np.ndarray:
        """The keys in one piece, as FAISS needs them here."""
        assert isinstance(self.keys, np.ndarray)
        return self.keys

    def _attach(self, storage: faiss.IndexScalarQuantizer) -> None:
        self._storage = storage  # the graph only points to it, so it must be kept alive here
        self._graph.own_fields = False
        self._graph.storage = storage

    def _found(self, queries: np.ndarray, k: int, allowed: Allowed | None, share: float) -> Found:
        """FAISS computes its distances from the very keys, so they need not be computed again."""
        options = {} if allowed is None else {"sel": selector(allowed)}
        # The fewer rows are allowed, the more nodes must be visited to meet as many of them.
        parameters = faiss.SearchParametersHNSW(efSearch=round(max(self.effort, 2 * k) / share), **options)
        distances, rows = self._graph.search(queries, k, params=parameters)
        return by_row(np.where(rows < 0, np.float32(np.inf), distances), rows)

    def save(self, folder: Path) -> None:
        super().save(folder)
        faiss.write_index(self._graph, str(folder / GRAPH), faiss.IO_FLAG_SKIP_STORAGE)

    def restore(self, folder: Path, keys: Keys, description: dict[str, Any]) -> None:
        super().restore(folder, keys, description)
        self._graph = faiss.read_index(str(folder / GRAPH), faiss.IO_FLAG_SKIP_STORAGE)
        if (self._graph.ntotal, self._graph.d) != keys.shape:
            raise ValueError(f"a graph of {self._graph.ntotal} keys of width {self._graph.d}")
        self._attach(float16_storage(self._whole))
