"""Parts of an evaluation: batches with all that the model reads of them, scored wherever they are sent.

A worker opens the model and nothing else: what is retrieved comes with the batch, so it is the same for every
worker, whatever becomes of the datastore meanwhile.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import torch

from retro.machine import products_in
from retro.model.protocol import LanguageModel, score_each
from retro.retrieval.chunks import ChunkTable
from retro.retrieval.neighbours import Neighbours
from retro.scoring.windows import Window, batch_inputs, batch_targets


@dataclass(frozen=True)
class Inputs:
    """What a model reads of a batch, and what it must predict; token ids are kept small to be sent."""

    tokens: np.ndarray
    targets: np.ndarray
    retrieved: tuple[np.ndarray, ...]
    """The neighbours' tokens and their mask; none without retrieval."""


class Opening(Protocol):
    """Opens a model in a worker. Equal ones open the same, so that a worker keeps what it has opened."""

    def __call__(self) -> LanguageModel: ...

    def __hash__(self) -> int: ...


def inputs_of(
    table: ChunkTable, windows: list[Window], neighbours: Neighbours | None = None, k: int = 0
) -> Inputs:
    """The inputs of a batch of windows, with the first k neighbours of each chunk or without retrieval."""
    tokens, *retrieved = (tensor.numpy() for tensor in batch_inputs(table, windows, neighbours, k))
    targets = batch_targets(table.store, windows).numpy()
    return Inputs(_small(tokens), _small(targets), tuple(map(_small, retrieved)))


def _small(array: np.ndarray) -> np.ndarray:
    return array.astype(np.int32) if array.dtype == np.int64 else array


@torch.inference_mode()
def score_inputs(
    model: LanguageModel, inputs: Inputs, ks: Sequence[int], dtype: torch.dtype = torch.float32
) -> np.ndarray:
    """−log2 p of the targets that are no padding (k, target), computed on the model's device and moved to the
    CPU: for each k with the first k neighbours, and for 0 without retrieval.

    With another `dtype` the matrix products are computed in that.
    """
    tokens, targets, *retrieved = (
        _tensor(array).to(model.device) for array in (inputs.tokens, inputs.targets, *inputs.retrieved)
    )
    with products_in(dtype, model.device):
        found = score_each(model, tokens, targets, ks, *retrieved)
    # A boolean mask reads row by row and left to right, which is the order of `scored_places`.
    wanted = targets != model.facts.pad_id
    bits = [-scored.log_probs[wanted].double().cpu().numpy() / math.log(2.0) for scored in found]
    return np.stack(bits)


def _tensor(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(array if array.dtype == np.bool_ else array.astype(np.int64))


class PartScorer:
    """Scores a part with each k, wherever it is sent. The model stays behind: every worker opens its own."""

    def __init__(
        self,
        model: LanguageModel,
        ks: Sequence[int],
        opening: Opening | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.model: LanguageModel | None = model
        self.ks = tuple(ks)
        self.opening = opening
        self.dtype = dtype

    def __getstate__(self) -> dict[str, Any]:
        assert self.opening is not None, "a model that cannot be opened elsewhere is scored by this process"
        return {**vars(self), "model": None}

    def __call__(self, part: list[Inputs]) -> np.ndarray:
        if self.model is None:
            assert self.opening is not None
            self.model = _open_in_worker(self.opening)
        return np.concatenate(
            [score_inputs(self.model, inputs, self.ks, self.dtype) for inputs in part], axis=1
        )


# One for each worker process, kept from part to part.
@lru_cache(maxsize=1)
def _open_in_worker(opening: Opening) -> LanguageModel:
    torch.set_num_threads(1)  # there is a worker a core
    return opening()
