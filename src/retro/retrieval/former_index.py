"""The index of the datastore before segments; `datastore.py` still reads it. To be removed with it."""

from pathlib import Path
from typing import Protocol, runtime_checkable

import faiss
import numpy as np

from retro.errors import ArtifactError


@runtime_checkable
class Index(Protocol):
    """Nearest keys by squared L2 distance. Rows are numbered in the order of adding."""

    def add(self, keys: np.ndarray) -> None: ...

    def search(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Squared distances and row numbers, nearest first. k is at most the number of rows."""
        ...

    def save(self, path: Path) -> None: ...

    def __len__(self) -> int: ...


class FaissIndex:
    """Exact search for few keys, HNSW for many."""

    def __init__(self, index: faiss.Index) -> None:
        self._index = index

    @staticmethod
    def for_size(width: int, num_keys: int, exact_below: int) -> "FaissIndex":
        if num_keys < exact_below:
            return FaissIndex(faiss.IndexFlatL2(width))
        index = faiss.IndexHNSWFlat(width, 32)
        index.hnsw.efConstruction = 80
        return FaissIndex(index)

    @staticmethod
    def open(path: Path) -> "FaissIndex":
        try:
            return FaissIndex(faiss.read_index(str(path)))
        except RuntimeError:
            raise ArtifactError(f"{path} is not a readable FAISS index; remove {path.parent} and run: retro build") from None

    @property
    def kind(self) -> str:
        return "exact" if isinstance(self._index, faiss.IndexFlat) else "hnsw"

    def add(self, keys: np.ndarray) -> None:
        self._index.add(np.ascontiguousarray(keys, dtype=np.float32))

    def search(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        # A list of candidates shorter than k would leave places empty.
        parameters = faiss.SearchParametersHNSW(efSearch=max(128, 2 * k)) if self.kind == "hnsw" else None  # type: ignore[attr-defined]
        distances, rows = self._index.search(np.ascontiguousarray(queries, dtype=np.float32), k, params=parameters)
        return distances, rows

    def save(self, path: Path) -> None:
        faiss.write_index(self._index, str(path))

    def __len__(self) -> int:
        return int(self._index.ntotal)


def measure_recall(index: Index, keys: np.ndarray, k: int = 10, num_queries: int = 200, seed: int = 0) -> float:
    """Part of the true k nearest keys that the index finds, over a sample of the keys as queries."""
    rng = np.random.default_rng(seed)
    queries = keys[rng.choice(len(keys), size=min(num_queries, len(keys)), replace=False)].astype(np.float32)
    k = min(k, len(keys))
    exact = faiss.IndexFlatL2(keys.shape[1])
    exact.add(np.ascontiguousarray(keys, dtype=np.float32))
    _, truth = exact.search(queries, k)
    _, found = index.search(queries, k)
    hits = sum(len(set(a) & set(b)) for a, b in zip(truth.tolist(), found.tolist(), strict=True))
    return hits / truth.size
