"""A model's state at every token of a store, and how a second distribution is mixed with the model's.

A state is the key of kNN-LM and of the continuous cache. Each of them gives a second
distribution p_other beside the model's p_LM, and the two are mixed: p = λ p_other + (1 − λ)
p_LM. The weight λ and the sharpness of p_other are tuned on separate documents.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from retro.config import EvaluationConfig
from retro.corpus.tokens import TokenStore
from retro.errors import DataError
from retro.machine import product_dtype, products_in
from retro.model.protocol import KeyedModel
from retro.scoring.bits_per_byte import Scores, expect_same_vocabulary
from retro.scoring.windows import (
    batch_targets,
    batch_tokens,
    batches_of,
    expect_context,
    longest_first,
    windows_of,
)
from retro.stages.arrays import Filling
from retro.stages.progress import Progress, no_progress
from retro.stages.stage import Artifact, Stage, run_stage
from retro.wording import counted

COMMAND = "retro knn WORK RUN"
KEEP_EVERY = 64
"""Batches between two saves."""
WEIGHTS = tuple(np.round(np.arange(0.0, 0.99, 0.02), 2).tolist())
"""The values of λ that are tried. 0 is the model alone, so on the tuning data mixing never
loses."""

LogProbs = Callable[[float], np.ndarray]
"""log2 p_other of every row's value, given the sharpness."""


class TokenStates:
    """One row for every token but the first of each document, in the store's order.

    The key is the state that the token is predicted from; the value is the token itself.
    """

    def __init__(self, artifact: Artifact, store: TokenStore) -> None:
        self.artifact = artifact
        self.store = store
        self.keys: np.ndarray = np.load(artifact.file("keys.npy"), mmap_mode="r")
        self.values: np.ndarray = np.load(artifact.file("values.npy"), mmap_mode="r")
        self.bits: np.ndarray = np.zeros(0)
        """−log2 p of the values by the model alone; empty if they were not computed."""
        if artifact.config["scored"]:
            self.bits = np.load(artifact.file("bits.npy"), mmap_mode="r")
        # Every earlier document has one row fewer than tokens, so its number is the shift.
        self.firsts: np.ndarray = store.starts - np.arange(len(store))
        """The first row of every document."""

    def scores(self, bits: np.ndarray) -> Scores:
        """Turn the bits of the rows into the bits of all tokens, as `bits_per_byte.score` counts them.

        A document's first token costs log2 of the vocabulary size, and its end token nothing.
        """
        tokens = np.asarray(self.store.tokens)
        scored = np.full(len(tokens), math.log2(self.store.artifact.counts["vocab_size"]))
        scored[predicted(self.store)] = bits
        scored[tokens == self.store.end_id] = 0.0
        return Scores(self.store, scored)


def predicted(store: TokenStore) -> np.ndarray:
    """Which tokens have a row."""
    mask = np.ones(len(store.tokens), dtype=bool)
    mask[store.starts] = False
    return mask


def write_states(
    model: KeyedModel,
    model_fingerprint: str,
    store: TokenStore,
    path: Path,
    config: EvaluationConfig,
    scored: bool = True,
    progress: Progress = no_progress,
) -> TokenStates:
    """Run the model, without retrieval, over a store in sliding windows.

    After an interruption it resumes at the last save. A memory needs no bits: unless `scored`,
    the logits are not computed, which are most of a small model's work.
    """
    expect_same_vocabulary(model, store)
    expect_context(config, model.facts)

    def work(stage: Stage) -> None:
        # The first token of each document has no row.
        num_rows = len(store.tokens) - len(store)
        bits = {"bits": (np.float64, (num_rows,))} if scored else {}
        keys = (np.float16, (num_rows, model.key_width))
        values = (store.tokens.dtype, (num_rows,))
        filling = Filling(stage, keys=keys, values=values, **bits)
        _fill(model, store, config, filling, progress)
        filling.finish()
        stage.counts.update(keys=num_rows, width=model.key_width, tokens=len(store.tokens))

    settings: dict[str, Any] = {"window": config.window, "stride": config.stride, "scored": scored}
    if config.precision != "float32":
        settings["precision"] = config.precision
    inputs = {"model": model_fingerprint, "tokens": store.fingerprint}
    return TokenStates(run_stage(path, "token states", settings, inputs, work, COMMAND), store)


@torch.inference_mode()
def _fill(
    model: KeyedModel, store: TokenStore, config: EvaluationConfig, filling: Filling, progress: Progress
) -> None:
    arrays = filling.arrays
    # Progress is counted in windows of this order, so work can resume with another batch size.
    windows = longest_first(windows_of(store, config.window, config.stride))
    done = filling.done
    dtype = product_dtype(config.precision, model.device)
    for batch in batches_of(windows[done:], max_windows=config.batch_size):
        tokens = torch.from_numpy(batch_tokens(store, batch)).to(model.device)
        targets = batch_targets(store, batch).to(model.device) if "bits" in arrays else None
        with products_in(dtype, model.device):
            keys, log_probs = model.keys(tokens, targets)
        keys = keys.float().cpu()
        for row, window in enumerate(batch):
            # Each document up to and including this one has one row fewer than tokens.
            before = window.document + 1
            rows = slice(window.score_from - before, window.score_to - before)
            arrays["keys"][rows] = keys[row, window.positions].numpy()
            arrays["values"][rows] = store.tokens[window.score_from : window.score_to]
            if log_probs is not None:
                nats = -log_probs[row, window.positions].double().cpu().numpy()
                arrays["bits"][rows] = nats / math.log(2.0)
        done += len(batch)
        if done - filling.done >= KEEP_EVERY * config.batch_size:
            filling.keep(done)
        progress(done, len(windows))


def expect_apart(one: TokenStore, other: TokenStore, why: str) -> None:
    """Refuse two stores that have a document in common; `why` says what would be wrong with that."""
    # Compared by content: the same text may have different ids in the two stores.
    hashes, others = (set(store.documents.column("content_hash")) for store in (one, other))
    shared = hashes & others
    if shared:
        raise DataError(
            f"{one.artifact.path} and {other.artifact.path} share {counted(len(shared), 'document')}; "
            f"expected none, as {why}; name another split"
        )


@dataclass(frozen=True)
class Tuned:
    """The best settings, and what they were tuned on."""

    weight: float
    """λ."""
    sharpness: float
    """α of kNN-LM, θ of the cache."""
    bits_per_byte: float
    """On the tuning data."""
    tuned_on: str
    """Fingerprint of that token store."""
    at_edge: bool
    """Whether the best sharpness or λ is at the edge of the grid, so that a better one may lie
    beyond."""


def mix(bits: np.ndarray, log_probs: np.ndarray, weight: float | np.ndarray) -> np.ndarray:
    """Bits of the mixture, with one weight or one for each token. With 0 they are exactly the model's own."""
    # The terms are added as base-2 logarithms. A weight of 0 becomes −inf, and its term drops
    # out of the sum.
    with np.errstate(divide="ignore"):
        mixed: np.ndarray = -np.logaddexp2(np.log2(weight) + log_probs, np.log2(1.0 - weight) - bits)
    return mixed


def tune(
    states: TokenStates, log_probs: LogProbs, sharpnesses: Sequence[float], weights: Sequence[float] = WEIGHTS
) -> Tuned:
    """The pair of sharpness and weight in the grid with the fewest bits on tokens that carry text."""
    # End tokens cost nothing in the scores, so they must not influence the choice.
    counted = np.asarray(states.values) != states.store.end_id
    bits = states.bits[counted]
    totals = np.empty((len(sharpnesses), len(weights)))
    for row, sharpness in enumerate(sharpnesses):
        other = log_probs(sharpness)[counted]
        totals[row] = [mix(bits, other, weight).sum() for weight in weights]
    # `argmin` gives a flat position in the grid.
    row, column = divmod(int(totals.argmin()), len(weights))
    weight = weights[column]
    sharpness = sharpnesses[row]
    # With a weight of 0 the sharpness has no effect, and 0 is not an edge: no weight lies below
    # it.
    at_edge = weight > 0 and (row in (0, len(sharpnesses) - 1) or column == len(weights) - 1)
    best = states.scores(mix(states.bits, log_probs(sharpness), weight)).bits_per_byte
    return Tuned(weight, sharpness, best, states.store.fingerprint, at_edge)
