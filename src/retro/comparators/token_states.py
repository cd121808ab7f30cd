"""What a model computes at every token of a store, and how another opinion is mixed with the model's own.

A state is the key of kNN-LM and of the continuous cache. Either gives a second distribution p_other beside
the model's p_LM, and the two are mixed: p = λ p_other + (1 − λ) p_LM. The weight λ and the sharpness of
p_other are tuned on documents of their own.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from retro.config import EvaluationConfig
from retro.corpus.tokens import TokenStore
from retro.errors import DataError
from retro.model.protocol import KeyedModel
from retro.scoring.bits_per_byte import Scores, expect_same_vocabulary
from retro.scoring.windows import batch_targets, batch_tokens, batches_of, longest_first, windows_of
from retro.stages.arrays import Filling
from retro.stages.progress import Progress, no_progress
from retro.stages.stage import Artifact, Stage, run_stage

COMMAND = "retro knn WORK BASELINE"
KEEP_EVERY = 64
"""Batches between two saves."""
WEIGHTS = tuple(np.round(np.arange(0.0, 0.99, 0.02), 2).tolist())
"""The λ that are tried, from 0, the model alone, so that on the tuning data mixing never loses."""

LogProbs = Callable[[float], np.ndarray]
"""log2 p_other of every row's value, given the sharpness."""


class TokenStates:
    """A row for every token but the first of each document, in the order of the store.

    The key is the state that the token is predicted from; the token itself is the value.
    """

    def __init__(self, artifact: Artifact, store: TokenStore) -> None:
        self.artifact = artifact
        self.store = store
        self.keys: np.ndarray = np.load(artifact.file("keys.npy"), mmap_mode="r")
        self.values: np.ndarray = np.load(artifact.file("values.npy"), mmap_mode="r")
        self.bits: np.ndarray = np.zeros(0)
        """−log2 p of the values by the model alone; empty where they were not asked for."""
        if artifact.config["scored"]:
            self.bits = np.load(artifact.file("bits.npy"), mmap_mode="r")
        # Every document before has one row less than it has tokens.
        self.firsts: np.ndarray = store.starts - np.arange(len(store))
        """The first row of every document."""

    def scores(self, bits: np.ndarray) -> Scores:
        """The bits of the rows as those of all tokens, charged as `bits_per_byte.score` charges them.

        A document's first token costs the uniform log2 of the vocabulary, its end nothing.
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

    Interrupted, it goes on at the last save. A memory needs no bits: unless `scored`, the logits are not
    computed, which is most of a small model's work.
    """
    expect_same_vocabulary(model, store)

    def work(stage: Stage) -> None:
        num_rows = len(store.tokens) - len(store)
        bits = {"bits": (np.float64, (num_rows,))} if scored else {}
        keys = (np.float16, (num_rows, model.key_width))
        values = (store.tokens.dtype, (num_rows,))
        filling = Filling(stage, keys=keys, values=values, **bits)
        _fill(model, store, config, filling, progress)
        filling.finish()
        stage.counts.update(keys=num_rows, width=model.key_width, tokens=len(store.tokens))

    settings = {"window": config.window, "stride": config.stride, "scored": scored}
    inputs = {"model": model_fingerprint, "tokens": store.fingerprint}
    return TokenStates(run_stage(path, "token states", settings, inputs, work, COMMAND), store)


@torch.inference_mode()
def _fill(
    model: KeyedModel, store: TokenStore, config: EvaluationConfig, filling: Filling, progress: Progress
) -> None:
    arrays = filling.arrays
    # What is done is counted in windows of this order, so that another batch size can go on behind it.
    windows = longest_first(windows_of(store, config.window, config.stride))
    done = filling.done
    for batch in batches_of(windows[done:], max_windows=config.batch_size):
        tokens = torch.from_numpy(batch_tokens(store, batch)).to(model.device)
        targets = batch_targets(store, batch).to(model.device) if "bits" in arrays else None
        keys, log_probs = model.keys(tokens, targets)
        keys = keys.cpu()
        for row, window in enumerate(batch):
            # Each document up to this one has one row less than it has tokens.
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
    """Refuse two stores that have a document in common; `why` says what is wrong with that."""
    hashes, others = ({row["content_hash"] for row in store.documents} for store in (one, other))
    shared = hashes & others
    if shared:
        raise DataError(
            f"{one.artifact.path} and {other.artifact.path} share {len(shared)} documents; "
            f"expected none, as {why}; name another split"
        )


@dataclass(frozen=True)
class Tuned:
    """What was found best, and on what."""

    weight: float
    """λ."""
    sharpness: float
    """α of kNN-LM, θ of the cache."""
    bits_per_byte: float
    """On the data of the tuning."""
    tuned_on: str
    """Fingerprint of that token store."""
    at_edge: bool
    """Whether the best sharpness or λ is the last of those tried, so that a better one may lie beyond."""


def mix(bits: np.ndarray, log_probs: np.ndarray, weight: float) -> np.ndarray:
    """Bits of the mixture; with a weight of 0 exactly the model's own."""
    # Added as logarithms to base 2: a weight of 0 becomes −inf, and what it multiplies vanishes from the sum.
    with np.errstate(divide="ignore"):
        mixed: np.ndarray = -np.logaddexp2(np.log2(weight) + log_probs, np.log2(1.0 - weight) - bits)
    return mixed


def tune(
    states: TokenStates, log_probs: LogProbs, sharpnesses: Sequence[float], weights: Sequence[float] = WEIGHTS
) -> Tuned:
    """The best pair of a grid, over the tokens that carry text."""
    # As in the scores: the end of a document costs nothing, and must not count for the choice.
    counted = np.asarray(states.values) != states.store.end_id
    bits = states.bits[counted]
    totals = np.empty((len(sharpnesses), len(weights)))
    for row, sharpness in enumerate(sharpnesses):
        other = log_probs(sharpness)[counted]
        totals[row] = [mix(bits, other, weight).sum() for weight in weights]
    row, column = divmod(int(totals.argmin()), len(weights))
    weight = weights[column]
    sharpness = sharpnesses[row]
    # With a weight of 0 no sharpness matters, and 0 itself is no edge, as there is no weight below it.
    at_edge = weight > 0 and (row in (0, len(sharpnesses) - 1) or column == len(weights) - 1)
    best = states.scores(mix(states.bits, log_probs(sharpness), weight)).bits_per_byte
    return Tuned(weight, sharpness, best, states.store.fingerprint, at_edge)
