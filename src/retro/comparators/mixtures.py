"""kNN-LM and the continuous cache window by window, on any model that shows its states.

`knn_lm.py` and `cache.py` do the same for whole stores, with an index and every training token. Here a memory
holds as much as is read in a given time, and is searched exactly: a row beside others at equal cost.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from retro.comparators.cache import SHARPNESSES as THETAS
from retro.comparators.cache import cache_log_probs
from retro.comparators.knn_lm import SHARPNESSES as ALPHAS
from retro.comparators.knn_lm import neighbour_log_probs
from retro.comparators.token_states import WEIGHTS, mix
from retro.model.protocol import KeyedModel
from retro.retrieval.chunks import ChunkTable
from retro.scoring.windows import Window, batch_inputs, batch_targets

NEAREST = 64
"""Keys of the memory that vote."""
BLOCK = 65_536
"""Keys of the memory that are compared at once, so that no table of all distances is held."""


@dataclass(frozen=True)
class ReadWindow:
    """What each token of a window is predicted from, the tokens, and their bits by the model alone."""

    keys: Tensor
    values: Tensor
    bits: np.ndarray


Other = Callable[[ReadWindow], np.ndarray]
"""log2 p of each token (row) by another distribution, for each sharpness (column)."""


@torch.inference_mode()
def read_window(model: KeyedModel, table: ChunkTable, window: Window) -> ReadWindow:
    tokens = batch_inputs(table, [window])[0].to(model.device)
    targets = batch_targets(table.store, [window]).to(model.device)
    keys, log_probs = model.keys(tokens, targets)
    assert log_probs is not None
    wanted = targets[0] != model.facts.pad_id
    bits = -log_probs[0][wanted].double().cpu().numpy() / np.log(2)
    return ReadWindow(keys[0][wanted].float().cpu(), targets[0][wanted].cpu(), bits)


@dataclass(frozen=True)
class Memory:
    """Keys of tokens that were read, and the tokens themselves."""

    keys: Tensor
    values: Tensor

    @staticmethod
    def of(windows: Iterable[ReadWindow], most: int | None = None) -> "Memory":
        """Of the windows until `most` tokens are there, or of all."""
        parts, count = [], 0
        for part in windows:
            parts.append(part)
            count += len(part.values)
            if most is not None and count >= most:
                break
        return Memory(torch.cat([part.keys for part in parts]), torch.cat([part.values for part in parts]))

    def nearest(self, keys: Tensor) -> tuple[Tensor, Tensor]:
        """The squared distances of the keys nearest to each of these, nearest first, and their rows."""
        distances, rows = torch.empty(len(keys), 0), torch.empty(len(keys), 0, dtype=torch.long)
        for start in range(0, len(self.keys), BLOCK):
            found = torch.cdist(keys, self.keys[start : start + BLOCK]).square()
            near, places = found.topk(min(NEAREST, found.shape[1]), largest=False)
            distances = torch.cat([distances, near], dim=1)
            rows = torch.cat([rows, places + start], dim=1)
            # The nearest of those kept so far and of this block's.
            distances, kept = distances.topk(min(NEAREST, distances.shape[1]), largest=False)
            rows = rows.gather(1, kept)
        return distances, rows

    def log_probs(self, read: ReadWindow) -> np.ndarray:
        """log2 p_kNN of the tokens for each α; −inf where the token follows none of the nearest keys."""
        nearest, rows = self.nearest(read.keys)
        values = (nearest.numpy(), self.values[rows].numpy(), read.values.numpy())
        return np.stack([neighbour_log_probs(*values, alpha) for alpha in ALPHAS], axis=1)


def cached(read: ReadWindow) -> np.ndarray:
    """log2 p_cache of the tokens for each θ, from all that come before in the window.

    The first has none before it, and keeps the model's own probability.
    """
    found = cache_log_probs(read.keys, read.values, 0, len(read.keys), torch.tensor(THETAS))
    other = found.double().numpy()
    return np.where(np.isnan(other), -read.bits[:, None], other)


@dataclass(frozen=True)
class Mixture:
    """How another distribution is mixed in: the column of its sharpness, and its weight λ."""

    column: int
    weight: float

    def arrays(self) -> dict[str, np.ndarray]:
        """As it is kept."""
        return {"column": np.array(self.column), "weight": np.array(self.weight)}

    @staticmethod
    def read(arrays: Mapping[str, np.ndarray]) -> "Mixture":
        return Mixture(int(arrays["column"]), float(arrays["weight"]))

    def in_words(self, sharpnesses: Sequence[float]) -> str:
        return f"sharpness {sharpnesses[self.column]:g}, weight {self.weight:g}"

    @staticmethod
    def chosen(reads: Sequence[ReadWindow], other: Other) -> "Mixture":
        """With the fewest bits on windows that are not reported."""
        bits = np.concatenate([read.bits for read in reads])
        columns = np.concatenate([other(read) for read in reads]).T
        totals = np.array([[mix(bits, column, weight).sum() for weight in WEIGHTS] for column in columns])
        row, column = divmod(int(totals.argmin()), len(WEIGHTS))
        return Mixture(row, WEIGHTS[column])

    def bits(self, read: ReadWindow, other: Other) -> np.ndarray:
        return mix(read.bits, other(read)[:, self.column], self.weight)
