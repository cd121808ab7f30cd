"""What a model computes at every token of a store: the key of kNN-LM and of the continuous cache, and the model's own bits."""

import math
from pathlib import Path

import numpy as np
import torch

from retro.config import EvaluationConfig
from retro.corpus.tokens import TokenStore
from retro.errors import DataError
from retro.model.protocol import KeyedModel
from retro.retrieval.chunks import ChunkTable
from retro.scoring.bits_per_byte import Scores, batch_inputs, batch_targets, windows_of
from retro.stages.arrays import Filling
from retro.stages.progress import Progress
from retro.stages.stage import Artifact, Stage, run_stage

KEEP_EVERY = 64
"""Batches between two saves."""


class TokenStates:
    """A row for every token but the first of each document, in the order of the store.

    The key is the state that the token is predicted from; the token itself is the value.
    """

    def __init__(self, artifact: Artifact, store: TokenStore) -> None:
        self.artifact, self.store = artifact, store
        self.keys: np.ndarray = np.load(artifact.file("keys.npy"), mmap_mode="r")
        self.values: np.ndarray = np.load(artifact.file("values.npy"), mmap_mode="r")
        self.bits: np.ndarray = (
            np.load(artifact.file("bits.npy"), mmap_mode="r") if artifact.config["scored"] else np.zeros(0)
        )
        """−log2 p of the values by the model alone; empty where they were not asked for."""
        self.firsts: np.ndarray = store.starts - np.arange(len(store))
        """The first row of every document."""

    def scores(self, bits: np.ndarray) -> Scores:
        """Bits of the rows as those of all tokens: a document's first is charged the uniform log2 of the vocabulary, its end nothing."""
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
    progress: Progress | None = None,
) -> TokenStates:
    """Run the model, without retrieval, over a store in sliding windows; interrupted, it goes on at the last save.

    A memory needs no bits: unless `scored`, the logits are not computed, which is the larger part of a small model's work.
    """
    if store.artifact.counts["vocab_size"] != model.facts.vocab_size:
        raise DataError(
            f"{store.artifact.path} has a vocabulary of {store.artifact.counts['vocab_size']}; expected the model's, {model.facts.vocab_size}"
        )

    def work(stage: Stage) -> None:
        num_rows = len(store.tokens) - len(store)
        bits = {"bits": (np.float64, (num_rows,))} if scored else {}
        filling = Filling(
            stage,
            keys=(np.float16, (num_rows, model.key_width)),
            values=(store.tokens.dtype, (num_rows,)),
            **bits,
        )
        _fill(model, store, config, filling, progress)
        filling.finish()
        stage.counts.update(keys=num_rows, width=model.key_width, tokens=len(store.tokens))

    settings = {"window": config.window, "stride": config.stride, "scored": scored}
    inputs = {"model": model_fingerprint, "tokens": store.fingerprint}
    return TokenStates(
        run_stage(path, "token states", settings, inputs, work, "retro knn WORK BASELINE"), store
    )


@torch.inference_mode()
def _fill(
    model: KeyedModel,
    store: TokenStore,
    config: EvaluationConfig,
    filling: Filling,
    progress: Progress | None,
) -> None:
    windows = sorted(
        windows_of(store, config.window, config.stride), key=lambda window: window.start - window.stop
    )
    arrays, scored = filling.arrays, "bits" in filling.arrays
    table = ChunkTable(store, model.facts.chunk_len)
    for first in range(filling.done, len(windows), config.batch_size):
        batch = windows[first : first + config.batch_size]
        tokens, *_ = batch_inputs(table, batch)
        targets = batch_targets(store, batch)
        keys, log_probs = model.keys(tokens.to(model.device), targets.to(model.device) if scored else None)
        for row, window in enumerate(batch):
            places = slice(window.score_from - 1 - window.start, window.score_to - 1 - window.start)
            # Each document up to this one has one row less than it has tokens.
            before = window.document + 1
            rows = slice(window.score_from - before, window.score_to - before)
            arrays["keys"][rows] = keys[row, places].cpu().numpy()
            arrays["values"][rows] = store.tokens[window.score_from : window.score_to]
            if log_probs is not None:
                arrays["bits"][rows] = -log_probs[row, places].double().cpu().numpy() / math.log(2.0)
        done = first + len(batch)
        if done - filling.done >= KEEP_EVERY * config.batch_size:
            filling.keep(done)
        if progress:
            progress(done, len(windows))
