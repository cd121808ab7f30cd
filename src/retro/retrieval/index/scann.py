"""ScaNN, the paper's own index (extra `scann`): a tree of partitions over quantised keys.

What it proposes is ranked again from the stored keys.
"""

from pathlib import Path
from typing import Any

import numpy as np

from retro.errors import MissingExtraError
from retro.retrieval.index.exact import DenseIndex
from retro.retrieval.index.keys import Allowed, Keys
from retro.retrieval.index.protocol import Entries

FOLDER = "scann"
MIN_KEYS = 16
"""ScaNN's quantiser has 16 centres; fewer keys are searched exactly."""
MAX_TRAINING_KEYS = 262_144
OVERFETCH = 30
"""Candidates for each neighbour that is wanted, as quantised distances are rough."""


class ScannIndex(DenseIndex):
    """Built in one piece, as ScaNN has it: another `add` builds it anew.

    ScaNN knows no masks, so more is fetched and then dropped. Its training has a random start that cannot be
    set: two builds of the same keys differ a little.
    """

    kind = "scann"
    effort = 32

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self._searcher: Any = None

    def add(self, entries: Entries) -> None:
        super().add(entries)
        if len(self) < MIN_KEYS:
            return
        builder = scann_library().builder(self.keys[:].astype(np.float32), 10, "squared_l2")
        builder = builder.tree(
            self._num_leaves, self.effort, training_sample_size=min(len(self), MAX_TRAINING_KEYS)
        )
        self._searcher = builder.score_ah(2).set_n_training_threads(1).build()

    @property
    def _num_leaves(self) -> int:
        return int(len(self) ** 0.5)

    def efforts(self) -> list[int]:
        if not self._searcher:
            return []
        powers = range(int(np.log2(self._num_leaves)) + 1)
        return [*(2**power for power in powers), self._num_leaves]

    def _candidates(self, queries: np.ndarray, k: int, allowed: Allowed | None, share: float) -> np.ndarray:
        # The fewer rows are allowed, the more are fetched to have enough left after the others are dropped.
        reach = min(round(OVERFETCH * k / share), len(self))
        leaves = min(round(self.effort / share), self._num_leaves)
        rows, distances = self._searcher.search_batched(queries, reach, leaves_to_search=leaves)
        # ScaNN fills up with rows at an infinite distance where it found fewer.
        rows = np.where(np.isfinite(distances), rows.astype(np.int64), -1)
        return rows if allowed is None else np.where((rows >= 0) & allowed.mask[rows], rows, -1)

    def save(self, folder: Path) -> None:
        super().save(folder)
        if self._searcher:
            (folder / FOLDER).mkdir(exist_ok=True)
            self._searcher.serialize(str(folder / FOLDER), relative_path=True)

    def restore(self, folder: Path, keys: Keys, description: dict[str, Any]) -> None:
        super().restore(folder, keys, description)
        if description["approximate"]:
            if list((folder / FOLDER).glob("*.pkl")):
                raise ValueError("it holds a pickle, which we never write or read")
            self._searcher = scann_library().load_searcher(str(folder / FOLDER), assets_backcompat_shim=False)
            if self._searcher.size() != len(keys):
                raise ValueError(f"ScaNN holds {self._searcher.size()} keys")


def scann_library() -> Any:
    try:
        from scann import scann_ops_pybind
    except ImportError:
        raise MissingExtraError("scann", "scann") from None
    return scann_ops_pybind
