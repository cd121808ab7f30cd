"""Bits per byte over whole documents with sliding windows."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from retro.config import EvaluationConfig
from retro.corpus.tokenizers.tokenizer import Tokenizer
from retro.corpus.tokens import TokenStore
from retro.errors import ConfigError, DataError
from retro.model.protocol import LanguageModel
from retro.retrieval.chunks import ChunkTable
from retro.retrieval.neighbours import Neighbours
from retro.stages.progress import Progress

PART = 4
"""Batches that are scored before they are kept; as much is lost at most when scoring is interrupted."""

Keep = Callable[[int, Callable[[], np.ndarray]], np.ndarray]
"""Given the number of a part of the work and a function that does it, returns its bits; where they are known the function is not called."""


@dataclass(frozen=True)
class Window:
    """A stretch of one document that is fed to the model, and the tokens of it that are scored, as offsets into the store."""

    document: int
    start: int
    stop: int
    score_from: int
    score_to: int

    @property
    def num_tokens(self) -> int:
        return self.stop - self.start


def windows_of(store: TokenStore, length: int, stride: int) -> Iterator[Window]:
    """Windows at multiples of the stride. Together they score every token but the first of each document once.

    A window of tokens [w, w + length) predicts the tokens up to and with w + length; of these it scores the ones that the window
    before could not reach, so that each token has the longest context that a window gives it.
    """
    for document in range(len(store)):
        begin, end = int(store.starts[document]), int(store.ends[document])
        scored, start = begin + 1, begin
        while scored < end:
            stop = min(start + length, end - 1)
            yield Window(document, start, stop, scored, stop + 1)
            scored, start = stop + 1, start + stride


def batches_of(windows: Iterable[Window], num_tokens: int) -> Iterator[list[Window]]:
    """Windows of nearly equal length together, the longest first; as many as have `num_tokens` tokens with their padding, but at least one."""
    batch: list[Window] = []
    for window in sorted(windows, key=lambda window: -window.num_tokens):
        if batch and (len(batch) + 1) * batch[0].num_tokens > num_tokens:
            yield batch
            batch = []
        batch.append(window)
    if batch:
        yield batch


@dataclass(frozen=True)
class Scores:
    """Bits of every token of a store: −log2 p. The end token of a document carries no text and counts nothing."""

    store: TokenStore
    bits: np.ndarray

    @property
    def bits_per_byte(self) -> float:
        return float(self.bits.sum() / self.store.num_bytes.sum())

    def by_document(self) -> np.ndarray:
        """Bits of each document."""
        sums: np.ndarray = np.add.reduceat(self.bits, self.store.starts)
        return sums

    def by_chunk(self, table: ChunkTable) -> np.ndarray:
        """Bits of each chunk."""
        sums: np.ndarray = np.add.reduceat(self.bits, table.starts)
        return sums


def chunk_bytes(table: ChunkTable, tokenizer: Tokenizer) -> np.ndarray:
    """Bytes of text of each chunk."""
    sums: np.ndarray = np.add.reduceat(tokenizer.token_lengths[table.store.tokens], table.starts)
    return sums


def score(
    model: LanguageModel,
    store: TokenStore,
    config: EvaluationConfig,
    neighbours: Neighbours | None = None,
    k: int = 0,
    progress: Progress | None = None,
    keep: Keep | None = None,
) -> Scores:
    """Score every token of the store, with the first k neighbours of each chunk, or without retrieval.

    The first token of a document has no context and is charged the uniform log2 of the vocabulary. `keep` is where parts of the work
    survive an interruption.
    """
    m = model.facts.chunk_len
    if config.window % m or config.stride % m:
        raise ConfigError(
            f"window {config.window} and stride {config.stride} move the chunk grid; expected multiples of {m}"
        )
    if store.artifact.counts["vocab_size"] != model.facts.vocab_size:
        raise DataError(
            f"{store.artifact.path} has a vocabulary of {store.artifact.counts['vocab_size']}; expected the model's, {model.facts.vocab_size}"
        )
    table = neighbours.table if neighbours is not None else ChunkTable(store, m)
    bits = np.zeros(len(store.tokens), dtype=np.float64)
    bits[store.starts] = math.log2(model.facts.vocab_size)
    batches = list(
        batches_of(windows_of(store, config.window, config.stride), config.batch_size * config.window)
    )
    done, total = 0, sum(map(len, batches))
    for first in range(0, len(batches), PART):
        part = batches[first : first + PART]
        work = partial(_score_part, model, table, part, neighbours, k)
        bits[np.concatenate([scored_places(batch) for batch in part])] = (
            keep(first // PART, work) if keep else work()
        )
        done += sum(map(len, part))
        if progress:
            progress(done, total)
    bits[np.asarray(store.tokens) == store.end_id] = 0.0
    return Scores(store, bits)


def _score_part(
    model: LanguageModel, table: ChunkTable, part: list[list[Window]], neighbours: Neighbours | None, k: int
) -> np.ndarray:
    return np.concatenate([score_batch(model, table, batch, neighbours, k) for batch in part])


def scored_places(windows: list[Window]) -> np.ndarray:
    """The places in the store of the tokens that the windows score, one window after the other."""
    return np.concatenate([np.arange(window.score_from, window.score_to) for window in windows])


@torch.inference_mode()
def score_batch(
    model: LanguageModel,
    table: ChunkTable,
    windows: list[Window],
    neighbours: Neighbours | None = None,
    k: int = 0,
) -> np.ndarray:
    """−log2 p of the tokens at `scored_places`."""
    tokens, *retrieved = (tensor.to(model.device) for tensor in batch_inputs(table, windows, neighbours, k))
    targets = batch_targets(table.store, windows).to(model.device)
    nats = -model.score(tokens, targets, *retrieved).log_probs
    # Row by row and from left to right: the order of `scored_places`.
    wanted = nats[targets != model.facts.pad_id]
    return wanted.double().cpu().numpy() / math.log(2.0)


def batch_targets(store: TokenStore, windows: list[Window]) -> Tensor:
    """What the windows are to predict: the token after each position that is scored, padding elsewhere."""
    targets = np.full(
        (len(windows), max(window.num_tokens for window in windows)), store.pad_id, dtype=np.int64
    )
    for row, window in enumerate(windows):
        places = slice(window.score_from - 1 - window.start, window.score_to - 1 - window.start)
        targets[row, places] = store.tokens[window.score_from : window.score_to]
    return torch.from_numpy(targets)


def batch_inputs(
    table: ChunkTable, windows: list[Window], neighbours: Neighbours | None = None, k: int = 0
) -> list[Tensor]:
    """What the model reads: the windows' tokens, shorter windows padded on the right, and the neighbours of their complete chunks."""
    store, m = table.store, table.chunk_len
    length = max(window.num_tokens for window in windows)
    tokens = np.full((len(windows), length), store.pad_id, dtype=np.int64)
    for row, window in enumerate(windows):
        tokens[row, : window.num_tokens] = store.tokens[window.start : window.stop]
    if neighbours is None or not k:
        return [torch.from_numpy(tokens)]
    chunks = np.zeros((len(windows), length // m), dtype=np.int64)
    complete = np.zeros(chunks.shape, dtype=bool)
    for row, window in enumerate(windows):
        first = table.first[window.document] + (window.start - store.starts[window.document]) // m
        num_complete = window.num_tokens // m
        chunks[row, :num_complete] = np.arange(first, first + num_complete)
        complete[row, :num_complete] = True
    values, mask = neighbours.values(chunks, k)
    return [torch.from_numpy(array) for array in (tokens, values, mask & complete[..., None])]
