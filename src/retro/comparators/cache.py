"""The continuous cache (Grave et al., 2016): kNN-LM over the recent past of the same document.

There is nothing to build: the keys are those of the tokens just read.
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from retro.comparators.token_states import COMMAND, TokenStates
from retro.errors import ConfigError
from retro.stages.arrays import Filling
from retro.stages.progress import Progress, no_progress
from retro.stages.stage import Artifact, Stage, run_stage

SHARPNESSES = tuple(2.0**power for power in range(-10, 2))
"""The values of θ that are tried."""
BLOCK = 256
"""Rows that are compared with their pasts together; this bounds the memory."""
KEEP_EVERY = 256
"""Documents between two saves."""


class Cache:
    """log2 p_cache of every row's value, for each θ that was computed."""

    def __init__(self, artifact: Artifact) -> None:
        self.artifact = artifact
        self._log_probs: np.ndarray = np.load(artifact.file("log_probs.npy"), mmap_mode="r")

    def log_probs(self, theta: float) -> np.ndarray:
        thetas = self.artifact.config["sharpnesses"]
        if theta not in thetas:
            raise ConfigError(f"the cache was not computed with θ = {theta}; expected one of {thetas}")
        column: np.ndarray = self._log_probs[:, thetas.index(theta)].astype(np.float64)
        return column


def fill_cache(
    states: TokenStates,
    path: Path,
    length: int,
    sharpnesses: Sequence[float] = SHARPNESSES,
    progress: Progress = no_progress,
) -> Cache:
    """Compare every row with the `length` rows before it in its document.

    p_cache(w) ∝ Σ exp(θ h·h') over the earlier rows whose value is w, where h are the keys of
    kNN-LM. The value of the row before is the last token that was read, so no row sees a later
    token. A document's first row has no past; there the cache gives the model's own
    probability.
    """

    def work(stage: Stage) -> None:
        filling = Filling(stage, log_probs=(np.float32, (len(states.keys), len(sharpnesses))))
        filled = filling.arrays["log_probs"]
        thetas = torch.tensor(sharpnesses)
        for document in range(filling.done, len(states.store)):
            for rows, past in _blocks(states, document, length):
                filled[rows] = _cached(states, rows, past, length, thetas).numpy()
            # `filling.done` moves with each save, so this counts the documents since the last
            # one.
            if document + 1 - filling.done >= KEEP_EVERY:
                filling.keep(document + 1)
            progress(document + 1, len(states.store))
        # The first row of each document, which is NaN so far, gets the model's bits. A document
        # of one token has no row.
        firsts = states.firsts[states.store.ends - states.store.starts > 1]
        filled[firsts] = -states.bits[firsts, None]
        filling.finish()

    settings = {"length": length, "sharpnesses": list(sharpnesses)}
    inputs = {"states": states.artifact.fingerprint}
    return Cache(run_stage(path, "token cache", settings, inputs, work, COMMAND))


def _blocks(states: TokenStates, document: int, length: int) -> Iterator[tuple[slice, slice]]:
    """Blocks of a document's rows, each with the rows that may be in the cache of any of them."""
    first = int(states.firsts[document])
    # One row less than tokens: the first token is not predicted.
    end = first + int(states.store.ends[document] - states.store.starts[document]) - 1
    for start in range(first, end, BLOCK):
        stop = min(start + BLOCK, end)
        # Rows of a block vote for each other too: each for the ones after it.
        yield slice(start, stop), slice(max(first, start - length), stop)


def _cached(states: TokenStates, rows: slice, past: slice, length: int, thetas: Tensor) -> Tensor:
    keys = torch.from_numpy(states.keys[past].astype(np.float32))
    values = torch.from_numpy(states.values[past].astype(np.int64))
    return cache_log_probs(keys, values, rows.start - past.start, length, thetas)


def cache_log_probs(
    keys: Float[Tensor, "past width"],
    values: Int[Tensor, " past"],
    first: int,
    length: int,
    thetas: Float[Tensor, " theta"],
) -> Float[Tensor, "row theta"]:
    """log2 p_cache of the values from row `first` on, each from the `length` rows before it.

    A row with none before it gets NaN.
    """
    likeness = keys[first:] @ keys.T
    # age[i, j] is how many rows row first + i comes after row j. Only ages from 1 to `length`
    # are in the cache: a row must not see itself or what follows.
    age = torch.arange(first, len(keys))[:, None] - torch.arange(len(keys))
    likeness.masked_fill_((age < 1) | (age > length), -torch.inf)
    # The rows that vote for the row's own value. If there is none, the sum is log 0 = −inf.
    hits = likeness.masked_fill(values[first:, None] != values, -torch.inf)
    columns = [
        torch.logsumexp(theta * hits, dim=1) - torch.logsumexp(theta * likeness, dim=1) for theta in thetas
    ]
    return torch.stack(columns, dim=1) / math.log(2.0)
