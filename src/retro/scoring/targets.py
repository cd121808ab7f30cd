"""A prompt and the target after it, of which only the target is scored.

Last words, summaries and the harness's requests are all scored this way.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from retro.config import EvaluationConfig
from retro.corpus.tokenizers.tokenizer import Tokenizer
from retro.errors import ConfigError
from retro.machine import product_dtype, products_in
from retro.model.protocol import LanguageModel, score_each
from retro.retrieval.retriever import Retriever
from retro.scoring.intervals import Interval, bootstrap_ratio
from retro.scoring.windows import (
    Window,
    batch_targets,
    batch_tokens,
    batches_of,
    complete_chunks,
    expect_readable,
    windows_of,
)
from retro.stages.progress import Progress, no_progress


@dataclass(frozen=True)
class Prompted:
    """The tokens of a prompt and its target."""

    tokens: np.ndarray
    start: int
    """The offset of the target's first token."""
    num_bytes: int
    """Bytes of the target's text."""


def encode_pair(tokenizer: Tokenizer, prompt: str, target: str) -> Prompted:
    """Encode both as one text, as in training. A token across the border belongs to the target."""
    tokens = np.array(tokenizer.encode(prompt + target), dtype=np.int64)
    # `ends` is where the bytes of each token end. The target begins with the first token that
    # ends after the prompt.
    ends = np.cumsum(tokenizer.token_lengths[tokens])
    start = int(np.searchsorted(ends, len(prompt.encode()), side="right"))
    return Prompted(tokens, start, len(target.encode()))


@dataclass(frozen=True)
class TargetScores:
    """One entry for each target."""

    bits: np.ndarray
    """−log2 p of the target's tokens, given everything before them."""
    greedy: np.ndarray
    """Whether every token of the target is the most probable one: greedy generation would write
    it."""
    num_tokens: np.ndarray
    num_bytes: np.ndarray

    @property
    def bits_per_byte(self) -> Interval:
        return bootstrap_ratio(self.bits, self.num_bytes)

    def perplexity(self, units: np.ndarray) -> Interval:
        """Perplexity per unit; `units` is the number of tokens, or words, in each target."""
        bits = bootstrap_ratio(self.bits, units)
        return Interval(2.0**bits.estimate, 2.0**bits.low, 2.0**bits.high)


class _FlatItems:
    """The tokens of all items in one flat array, as `windows_of` expects them."""

    def __init__(self, items: Sequence[Prompted], pad_id: int) -> None:
        lengths = np.array([len(item.tokens) for item in items], dtype=np.int64)
        self.tokens = np.concatenate([np.zeros(0, dtype=np.int64), *(item.tokens for item in items)])
        self.ends = np.cumsum(lengths)
        self.starts = self.ends - lengths
        self.pad_id = pad_id
        self.target_starts = self.starts + np.array([item.start for item in items], dtype=np.int64)


@torch.inference_mode()
def score_targets(
    model: LanguageModel,
    items: Sequence[Prompted],
    config: EvaluationConfig,
    ks: Sequence[int] = (0,),
    retriever: Retriever | None = None,
    progress: Progress = no_progress,
) -> Mapping[int, TargetScores]:
    """Score every target without retrieval (k = 0) and with each other k; one search serves them all.

    Every complete chunk before the scored token retrieves; an incomplete one does not. A
    target's token with nothing before it is charged log2 of the vocabulary size, and never
    counts as the most probable.
    """
    if max(ks, default=0) and (retriever is None or not model.facts.retrieves):
        missing = "a datastore" if model.facts.retrieves else "a model with cross-attention"
        raise ConfigError(
            f"{max(ks)} neighbours were asked for without {missing}; expected it, or no neighbours"
        )
    expect_readable(config, model.facts)
    texts = _FlatItems(items, model.facts.pad_id)
    # Targets whose first token has nothing before it: no window scores that token.
    alone = np.array([item.start == 0 and len(item.tokens) > 0 for item in items], dtype=bool)
    bits = {k: np.where(alone, math.log2(model.facts.vocab_size), 0.0) for k in ks}
    greedy = {k: np.logical_not(alone) for k in ks}
    windows = list(windows_of(texts, config.window, config.stride, texts.target_starts))
    done = 0
    dtype = product_dtype(config.precision, model.device)
    for batch in batches_of(windows, max_windows=config.batch_size):
        for k, window, window_bits, is_greedy in _score_batch(model, texts, batch, ks, retriever, dtype):
            # A long target has several windows: their bits add up, and all of them must be
            # greedy.
            bits[k][window.document] += window_bits
            greedy[k][window.document] &= is_greedy
        done += len(batch)
        progress(done, len(windows))
    num_tokens = np.array([len(item.tokens) - item.start for item in items])
    num_bytes = np.array([item.num_bytes for item in items])
    return {k: TargetScores(bits[k], greedy[k], num_tokens, num_bytes) for k in ks}


def _score_batch(
    model: LanguageModel,
    texts: _FlatItems,
    windows: list[Window],
    ks: Sequence[int],
    retriever: Retriever | None,
    dtype: torch.dtype,
) -> Iterator[tuple[int, Window, float, bool]]:
    """For each k and window, the bits of the scored tokens, and whether all of them are the most probable."""
    tokens = batch_tokens(texts, windows)
    read, targets = torch.from_numpy(tokens).to(model.device), batch_targets(texts, windows).to(model.device)
    most = max(ks)
    retrieved: tuple[np.ndarray, ...] = ()
    if retriever is not None and most:
        retrieved = _retrieve(model, tokens, windows, retriever, most)
    given = [torch.from_numpy(array).to(model.device) for array in retrieved]
    with products_in(dtype, model.device):
        # Neighbours are sorted by distance, so the first k of a larger search are those a
        # search for k finds.
        found = score_each(model, read, targets, ks, *given, greedy=True)
    for k, scored in zip(ks, found, strict=True):
        assert scored.greedy is not None
        # Positions that are not scored have log-probability 0 and count as greedy, so they
        # change nothing.
        bits = (-scored.log_probs.double().sum(-1) / math.log(2.0)).cpu()
        greedy = scored.greedy.all(-1).cpu()
        for row, window in enumerate(windows):
            yield k, window, float(bits[row]), bool(greedy[row])


def _retrieve(
    model: LanguageModel, tokens: np.ndarray, windows: list[Window], retriever: Retriever, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """[N, F] of the neighbours of complete chunks, and the mask of real ones. Other chunks have none."""
    facts = model.facts
    num_chunks = tokens.shape[1] // facts.chunk_len
    shape = (len(windows), num_chunks, k)
    values = np.full((*shape, facts.retrieved_len), facts.pad_id, dtype=np.int64)
    mask = np.zeros(shape, dtype=bool)
    complete = complete_chunks(windows, num_chunks, facts.chunk_len)
    # One search for all complete chunks of the batch.
    if complete.any():
        # Tokens after the last whole chunk are cut off, so that the rest can be reshaped into
        # chunks.
        whole = tokens[:, : num_chunks * facts.chunk_len]
        chunks = whole.reshape(len(windows), num_chunks, facts.chunk_len)[complete]
        values[complete], mask[complete] = retriever.values(list(chunks), k)
    return values, mask
