"""Bits per byte over whole documents with sliding windows."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from retro.artifacts import Progress
from retro.config import EvaluationConfig
from retro.corpus.tokenizer import Tokenizer
from retro.corpus.tokens import TokenStore
from retro.errors import ConfigError, DataError
from retro.model.retro import Retro
from retro.retrieval.chunks import ChunkTable
from retro.retrieval.neighbours import Neighbours


@dataclass(frozen=True)
class Window:
    """A stretch of one document that is fed to the model, and the tokens of it that are scored, as offsets into the store."""

    document: int
    start: int
    stop: int
    score_from: int
    score_to: int


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


@torch.inference_mode()
def score(
    model: Retro,
    store: TokenStore,
    config: EvaluationConfig,
    neighbours: Neighbours | None = None,
    k: int = 0,
    progress: Progress | None = None,
) -> Scores:
    """Score every token of the store, with the first k neighbours of each chunk, or without retrieval.

    The first token of a document has no context and is charged the uniform log2 of the vocabulary.
    """
    m = model.config.chunk_len
    if config.window % m or config.stride % m:
        raise ConfigError(f"window {config.window} and stride {config.stride} move the chunk grid; expected multiples of {m}")
    if store.artifact.counts["vocab_size"] != model.config.vocab_size:
        raise DataError(
            f"{store.artifact.path} has a vocabulary of {store.artifact.counts['vocab_size']}; expected the model's, {model.config.vocab_size}"
        )
    table = neighbours.table if neighbours is not None else ChunkTable(store, m)
    bits = np.zeros(len(store.tokens), dtype=np.float64)
    bits[store.starts] = math.log2(model.config.vocab_size)
    windows = sorted(windows_of(store, config.window, config.stride), key=lambda window: window.start - window.stop)
    for first in range(0, len(windows), config.batch_size):
        batch = windows[first : first + config.batch_size]
        for window, window_bits in zip(batch, _score_batch(model, table, batch, neighbours, k), strict=True):
            bits[window.score_from : window.score_to] = window_bits
        if progress:
            progress(first + len(batch), len(windows))
    bits[np.asarray(store.tokens) == store.end_id] = 0.0
    return Scores(store, bits)


def _score_batch(model: Retro, table: ChunkTable, windows: list[Window], neighbours: Neighbours | None, k: int) -> Iterator[np.ndarray]:
    """−log2 p of the scored tokens of each window; shorter windows are padded on the right."""
    store, m = table.store, model.config.chunk_len
    length = max(window.stop - window.start for window in windows)
    tokens = np.full((len(windows), length), store.pad_id, dtype=np.int64)
    for row, window in enumerate(windows):
        tokens[row, : window.stop - window.start] = store.tokens[window.start : window.stop]
    inputs = [torch.from_numpy(tokens)]
    if neighbours is not None and k:
        chunks = np.zeros((len(windows), length // m), dtype=np.int64)
        complete = np.zeros(chunks.shape, dtype=bool)
        for row, window in enumerate(windows):
            first = table.first[window.document] + (window.start - store.starts[window.document]) // m
            num_complete = (window.stop - window.start) // m
            chunks[row, :num_complete] = np.arange(first, first + num_complete)
            complete[row, :num_complete] = True
        values, mask = neighbours.values(chunks, k)
        inputs += [torch.from_numpy(values), torch.from_numpy(mask & complete[..., None])]
    hidden = model.hidden(*inputs)
    for row, window in enumerate(windows):
        targets = torch.from_numpy(store.tokens[window.score_from : window.score_to].astype(np.int64))
        states = hidden[row, window.score_from - 1 - window.start : window.score_to - 1 - window.start]
        losses = torch.nn.functional.cross_entropy(model.read_out(states), targets, reduction="none")
        yield losses.double().numpy() / math.log(2.0)
