"""Any FAISS index by its factory string; candidates are ranked again from the stored keys."""

from pathlib import Path
from typing import Any

import faiss
import numpy as np

from retro.errors import ConfigError
from retro.retrieval.index.exact import DenseIndex, selector
from retro.retrieval.index.keys import Allowed, Keys
from retro.retrieval.index.protocol import Entries

FILE = "index.faiss"
ADD_BLOCK = 65_536
MAX_TRAINING_KEYS = 262_144
LOSSLESS = ("Flat", "SQfp16")
ROTATION_ROUNDS = 8
"""Rounds of training OPQ's rotation; FAISS's own default of fifty takes many minutes."""


class FactoryIndex(DenseIndex):
    """`IVF1024,Flat`, `OPQ32_128,IVF8192_HNSW32,PQ32` and so on; exact if there are too few keys to train."""

    effort = 16

    def __init__(self, width: int, kind: str) -> None:
        super().__init__(width)
        self.kind = kind
        try:
            self._index: faiss.Index | None = faiss.index_factory(width, kind, faiss.METRIC_L2)
        except (RuntimeError, TypeError):  # the latter for a string that is not UTF-8
            raise ConfigError(
                f"{kind!r} is no index of keys of {width} numbers; expected auto, exact, scann, bm25, hybrid "
                "or a FAISS factory string such as HNSW24"
            ) from None

    def add(self, entries: Entries) -> None:
        if self._index is not None and not self._index.is_trained:
            self._train(entries.keys)
        super().add(entries)
        if self._index is not None:
            for start in range(0, len(entries.keys), ADD_BLOCK):
                self._index.add(entries.keys[start : start + ADD_BLOCK].astype(np.float16).astype(np.float32))

    def _train(self, keys: np.ndarray) -> None:
        """Train on a sample, with one thread: sums in another order would give another index."""
        assert self._index is not None
        sample = np.arange(len(keys))
        if len(keys) > MAX_TRAINING_KEYS:
            sample = np.sort(np.random.default_rng(0).choice(len(keys), MAX_TRAINING_KEYS, replace=False))
        for rotation in rotations(self._index):
            rotation.niter = ROTATION_ROUNDS
        threads = faiss.omp_get_max_threads()
        faiss.omp_set_num_threads(1)
        try:
            self._index.train(keys[sample].astype(np.float16).astype(np.float32))
        except RuntimeError:  # fewer keys than centroids
            self._index = None
        finally:
            faiss.omp_set_num_threads(threads)

    def efforts(self) -> list[int]:
        if self._index is None:
            return []
        lists = faiss.try_extract_index_ivf(self._index)
        num_powers = int(np.log2(lists.nlist)) + 1 if lists else 10
        return [2**power for power in range(num_powers)]

    def _candidates(self, queries: np.ndarray, k: int, allowed: Allowed | None, share: float) -> np.ndarray:
        assert self._index is not None
        # Compressed keys rank roughly: fetch several times k and rank the candidates from the stored keys.
        factor = 1 if self.kind.endswith(LOSSLESS) else max(8, min(self.effort, 128))
        # The fewer rows are allowed, the further the search must go to meet as many of them.
        parameters = parameters_for(self._index, round(max(self.effort, 1) / share), allowed)
        if parameters is None:  # it takes no mask: fetch more and drop
            factor = round(factor / share)
        rows = self._index.search(queries, min(factor * k, len(self)), params=parameters)[1]
        return rows if allowed is None else np.where((rows >= 0) & allowed.mask[rows], rows, -1)

    def save(self, folder: Path) -> None:
        super().save(folder)
        if self._index is not None:
            faiss.write_index(self._index, str(folder / FILE))

    def restore(self, folder: Path, keys: Keys, description: dict[str, Any]) -> None:
        super().restore(folder, keys, description)
        self._index = faiss.read_index(str(folder / FILE)) if description["approximate"] else None
        if self._index is not None and (self._index.ntotal, self._index.d) != keys.shape:
            raise ValueError(f"an index of {self._index.ntotal} keys of width {self._index.d}")


def rotations(index: faiss.Index | None) -> list[faiss.OPQMatrix]:
    """The rotations that an index applies to keys before it compresses them."""
    index = faiss.downcast_index(index)
    if not isinstance(index, faiss.IndexPreTransform):
        return []
    transforms = [
        faiss.downcast_VectorTransform(index.chain.at(number)) for number in range(index.chain.size())
    ]
    return [transform for transform in transforms if isinstance(transform, faiss.OPQMatrix)]


def parameters_for(index: faiss.Index, effort: int, allowed: Allowed | None) -> faiss.SearchParameters | None:
    """FAISS has a class of parameters for each kind of index, and none for some.

    The effort is how many lists or nodes are visited.
    """
    index = faiss.downcast_index(index)
    options: dict[str, Any] = {} if allowed is None else {"sel": selector(allowed)}
    if isinstance(index, faiss.IndexPreTransform):
        inner = parameters_for(index.index, effort, allowed)
        return inner and faiss.SearchParametersPreTransform(index_params=inner)
    if isinstance(index, faiss.IndexIVF):
        return faiss.SearchParametersIVF(nprobe=min(effort, index.nlist), **options)
    if isinstance(index, faiss.IndexHNSW):
        return faiss.SearchParametersHNSW(efSearch=effort, **options)
    return None
