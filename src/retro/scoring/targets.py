"""A prompt and the target behind it, of which only the target is scored: the one mechanism of last words, summaries and harness requests."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from retro.config import EvaluationConfig
from retro.corpus.tokenizers.tokenizer import Tokenizer
from retro.errors import ConfigError
from retro.model.protocol import LanguageModel
from retro.retrieval.retriever import Retriever
from retro.scoring.intervals import Interval, bootstrap_ratio
from retro.stages.progress import Progress


@dataclass(frozen=True)
class Prompted:
    """The tokens of a prompt and its target. `start` is the target's first token, `num_bytes` the bytes of the target's text."""

    tokens: np.ndarray
    start: int
    num_bytes: int


def encode_pair(tokenizer: Tokenizer, prompt: str, target: str) -> Prompted:
    """Both as one text, as the model was trained on it; a token that lies across the border is the target's."""
    tokens = np.array(tokenizer.encode(prompt + target), dtype=np.int64)
    ends = np.cumsum(tokenizer.token_lengths[tokens])
    return Prompted(
        tokens, int(np.searchsorted(ends, len(prompt.encode()), side="right")), len(target.encode())
    )


@dataclass(frozen=True)
class TargetScores:
    """One entry for each target."""

    bits: np.ndarray
    """−log2 p of the target's tokens, given all before them."""
    greedy: np.ndarray
    """Whether every token of the target is the most probable one, which is to say that greedy generation writes the target."""
    num_tokens: np.ndarray
    num_bytes: np.ndarray

    @property
    def bits_per_byte(self) -> Interval:
        return bootstrap_ratio(self.bits, self.num_bytes)

    def perplexity(self, units: np.ndarray) -> Interval:
        """By units of each target, as tokens or words."""
        bits = bootstrap_ratio(self.bits, units)
        return Interval(2.0**bits.estimate, 2.0**bits.low, 2.0**bits.high)


@dataclass(frozen=True)
class _Window:
    """A stretch of one item's tokens that is fed to the model, and the tokens of it that are scored."""

    item: int
    start: int
    stop: int
    score_from: int
    score_to: int


def _windows(items: Sequence[Prompted], config: EvaluationConfig) -> Iterator[_Window]:
    """Windows as in `bits_per_byte.py`, those alone that reach into the target: all of it in one, unless the tokens are many."""
    for number, item in enumerate(items):
        scored, start, end = 1, 0, len(item.tokens)
        while scored < end:
            stop = min(start + config.window, end - 1)
            if stop >= item.start:
                yield _Window(number, start, stop, max(scored, item.start), stop + 1)
            scored, start = stop + 1, start + config.stride


@torch.inference_mode()
def score_targets(
    model: LanguageModel,
    items: Sequence[Prompted],
    config: EvaluationConfig,
    ks: Sequence[int] = (0,),
    retriever: Retriever | None = None,
    progress: Progress | None = None,
) -> Mapping[int, TargetScores]:
    """Score every target without retrieval (k = 0) and with each other k; the datastore is searched once for all of them.

    Every complete chunk before the scored token retrieves, an incomplete one does not. A target's token without anything before it
    is charged the uniform log2 of the vocabulary, and is never the most probable one.
    """
    if max(ks, default=0) and (retriever is None or not model.facts.retrieves):
        missing = "a datastore" if model.facts.retrieves else "a model with cross-attention"
        raise ConfigError(
            f"{max(ks)} neighbours were asked for without {missing}; expected it, or no neighbours"
        )
    m = model.facts.chunk_len
    if config.window % m or config.stride % m:
        raise ConfigError(
            f"window {config.window} and stride {config.stride} move the chunk grid; expected multiples of {m}"
        )
    alone = np.array([item.start == 0 and len(item.tokens) > 0 for item in items], dtype=bool)
    bits = {k: np.where(alone, math.log2(model.facts.vocab_size), 0.0) for k in ks}
    greedy = {k: np.logical_not(alone) for k in ks}
    windows = sorted(_windows(items, config), key=lambda window: window.start - window.stop)
    for first in range(0, len(windows), config.batch_size):
        batch = windows[first : first + config.batch_size]
        for k, window, window_bits, is_greedy in _score_batch(model, items, batch, ks, retriever):
            bits[k][window.item] += window_bits
            greedy[k][window.item] &= is_greedy
        if progress:
            progress(first + len(batch), len(windows))
    num_tokens = np.array([len(item.tokens) - item.start for item in items])
    num_bytes = np.array([item.num_bytes for item in items])
    return {k: TargetScores(bits[k], greedy[k], num_tokens, num_bytes) for k in ks}


def _score_batch(
    model: LanguageModel,
    items: Sequence[Prompted],
    windows: list[_Window],
    ks: Sequence[int],
    retriever: Retriever | None,
) -> Iterator[tuple[int, _Window, float, bool]]:
    """For each k and window, the bits of the scored tokens and whether all of them are the most probable ones."""
    device = model.device
    tokens = np.full(
        (len(windows), max(window.stop - window.start for window in windows)),
        model.facts.pad_id,
        dtype=np.int64,
    )
    for row, window in enumerate(windows):
        tokens[row, : window.stop - window.start] = items[window.item].tokens[window.start : window.stop]
    retrieved = (
        _retrieve(model, tokens, windows, retriever, max(ks)) if retriever is not None and max(ks) else None
    )
    targets = np.full(tokens.shape, model.facts.pad_id, dtype=np.int64)
    for row, window in enumerate(windows):
        places = slice(window.score_from - 1 - window.start, window.score_to - 1 - window.start)
        targets[row, places] = items[window.item].tokens[window.score_from : window.score_to]
    inputs = [torch.from_numpy(array).to(device) for array in (tokens, targets)]
    for k in ks:
        given = []
        if k and retrieved is not None:
            given = [torch.from_numpy(array[:, :, :k]).to(device) for array in retrieved]
        scored = model.score(*inputs, *given, greedy=True)
        assert scored.greedy is not None
        bits = -scored.log_probs.double().sum(-1) / math.log(2.0)
        greedy = scored.greedy.all(-1)
        for row, window in enumerate(windows):
            yield k, window, float(bits[row]), bool(greedy[row])


def _retrieve(
    model: LanguageModel, tokens: np.ndarray, windows: list[_Window], retriever: Retriever, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """[N, F] of the neighbours of every complete chunk, and the mask of the real ones; an incomplete chunk has none."""
    m, num_chunks = model.facts.chunk_len, tokens.shape[1] // model.facts.chunk_len
    values = np.full(
        (len(windows), num_chunks, k, model.facts.retrieved_len), model.facts.pad_id, dtype=np.int64
    )
    mask = np.zeros((len(windows), num_chunks, k), dtype=bool)
    complete = (
        np.arange(num_chunks) < np.array([(window.stop - window.start) // m for window in windows])[:, None]
    )
    if complete.any():
        chunks = tokens[:, : num_chunks * m].reshape(len(windows), num_chunks, m)[complete]
        values[complete], mask[complete] = retriever.values(list(chunks), k)
    return values, mask
