"""Sliding windows: which tokens a model reads together, and which of them are scored.

Everything that scores text uses these windows: whole documents (`bits_per_byte.py`), targets
after prompts (`targets.py`), and the states of kNN-LM and the cache
(`comparators/token_states.py`).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from retro.config import EvaluationConfig
from retro.errors import ConfigError
from retro.model.protocol import ModelFacts
from retro.retrieval.chunks import ChunkTable
from retro.retrieval.neighbours import Neighbours
from retro.stages.shards import Rows


class Texts(Protocol):
    """Token sequences end to end in a flat array, as a token store holds its documents.

    Sequence i is `tokens[starts[i]:ends[i]]`.
    """

    @property
    def tokens(self) -> Rows: ...

    @property
    def starts(self) -> np.ndarray: ...

    @property
    def ends(self) -> np.ndarray: ...

    @property
    def pad_id(self) -> int: ...


@dataclass(frozen=True)
class Window:
    """A stretch of a document that a model reads, and which tokens are scored, as offsets into `tokens`."""

    document: int
    start: int
    stop: int
    score_from: int
    score_to: int

    @property
    def num_tokens(self) -> int:
        return self.stop - self.start

    @property
    def positions(self) -> slice:
        """The positions in the window that predict the scored tokens; each predicts the token after it."""
        return slice(self.score_from - 1 - self.start, self.score_to - 1 - self.start)


def windows_of(
    texts: Texts, length: int, stride: int, wanted_from: np.ndarray | None = None
) -> Iterator[Window]:
    """Windows at multiples of the stride. Together they score every token but a document's first once.

    A window of tokens [w, w + length) predicts the tokens up to and including w + length. It
    scores those that the window before could not reach, so that each token gets the longest
    context that any window gives it. `wanted_from` is the offset, for each document, from which
    on tokens are scored; windows that do not reach it are left out.
    """
    wanted = texts.starts if wanted_from is None else wanted_from
    for document in range(len(texts.ends)):
        start = int(texts.starts[document])
        end = int(texts.ends[document])
        first_wanted = int(wanted[document])
        # The first token has nothing before it that could predict it.
        scored = start + 1
        while scored < end:
            # A document's last token is predicted but predicts nothing, so it is not read.
            stop = min(start + length, end - 1)
            if stop >= first_wanted:
                yield Window(document, start, stop, max(scored, first_wanted), stop + 1)
            scored = stop + 1
            start += stride


def beginnings(table: ChunkTable, num_documents: int, length: int, each: bool = False) -> list[Window]:
    """The first windows of documents that are drawn by chance, each of at least two chunks, in their order.

    With `each`, so many of every source. A document of one chunk reads no neighbours.
    """
    store = table.store
    firsts = [
        window
        for window in windows_of(store, length, length)
        if window.start == store.starts[window.document] and window.num_tokens >= 2 * table.chunk_len
    ]
    names, codes = store.documents.coded("source")
    sources = [names[codes[window.document]] for window in firsts]
    drawn: list[int] = []
    for source in sorted(set(sources)) if each else [None]:
        numbers = [number for number, name in enumerate(sources) if source in (None, name)]
        drawn += np.random.default_rng(0).permutation(numbers)[:num_documents].tolist()
    return [firsts[number] for number in sorted(drawn)]


def expect_on_grid(config: EvaluationConfig, chunk_len: int) -> None:
    """Refuse windows that begin inside a chunk: their chunks would get the neighbours of other tokens."""
    if config.window % chunk_len or config.stride % chunk_len:
        raise ConfigError(
            f"window {config.window} and stride {config.stride} move the chunk grid; "
            f"expected multiples of {chunk_len}"
        )


def expect_readable(config: EvaluationConfig, facts: ModelFacts) -> None:
    """Refuse windows that the model cannot read, or that begin inside a chunk."""
    expect_context(config, facts)
    expect_on_grid(config, facts.chunk_len)


def expect_context(config: EvaluationConfig, facts: ModelFacts) -> None:
    """Refuse windows that are longer than what the model reads."""
    facts.expect_context(config.window, "the window has", "shorten it, and the stride: --window, --stride")


def longest_first(windows: Iterable[Window]) -> list[Window]:
    """Windows by falling length, so that batches hold little padding. Equal ones keep the text's order."""
    # `sorted` is stable, and the order must be: resumed work counts on finding the same one.
    return sorted(windows, key=lambda window: -window.num_tokens)


def batches_of(
    windows: Iterable[Window], max_tokens: int | None = None, max_windows: int | None = None
) -> Iterator[list[Window]]:
    """Batches of windows of similar length, longest first, as large as the limits allow, at least one.

    `max_tokens` limits the tokens of a batch including padding, `max_windows` its number of
    windows.
    """
    batch: list[Window] = []
    for window in longest_first(windows):
        grown = len(batch) + 1
        # The first window of a batch is its longest, and all others are padded to its length.
        too_long = max_tokens is not None and bool(batch) and grown * batch[0].num_tokens > max_tokens
        too_many = max_windows is not None and grown > max_windows
        if batch and (too_long or too_many):
            yield batch
            batch = []
        batch.append(window)
    if batch:
        yield batch


def scored_places(windows: list[Window]) -> np.ndarray:
    """The offsets of the tokens that the windows score, window by window."""
    return np.concatenate([np.arange(window.score_from, window.score_to) for window in windows])


def batch_tokens(texts: Texts, windows: list[Window]) -> np.ndarray:
    """The tokens of the windows (window, token), shorter windows padded on the right."""
    tokens = _padding(texts, windows)
    for row, window in enumerate(windows):
        tokens[row, : window.num_tokens] = texts.tokens[window.start : window.stop]
    return tokens


def batch_targets(texts: Texts, windows: list[Window]) -> Tensor:
    """What the windows must predict: the token after each scored position, and padding elsewhere."""
    targets = _padding(texts, windows)
    for row, window in enumerate(windows):
        targets[row, window.positions] = texts.tokens[window.score_from : window.score_to]
    return torch.from_numpy(targets)


def complete_chunks(windows: list[Window], num_chunks: int, chunk_len: int) -> np.ndarray:
    """Which chunks of a batch (window, chunk) hold no padding; only their neighbours are read."""
    # A window's complete chunks come first, so comparing chunk numbers with their count gives
    # the mask.
    complete = np.array([window.num_tokens // chunk_len for window in windows])
    mask: np.ndarray = np.arange(num_chunks) < complete[:, None]
    return mask


def batch_inputs(
    table: ChunkTable, windows: list[Window], neighbours: Neighbours | None = None, k: int = 0
) -> list[Tensor]:
    """What the model reads: tokens, and for complete chunks the neighbours' [N, F] and mask."""
    tokens = batch_tokens(table.store, windows)
    if neighbours is None or not k:
        return [torch.from_numpy(tokens)]
    m = table.chunk_len
    complete = complete_chunks(windows, tokens.shape[1] // m, m)
    # Windows start on their document's chunk grid, so a window's chunks are consecutive in the
    # table.
    starts = np.array([window.start for window in windows])
    documents = np.array([window.document for window in windows])
    firsts = table.first[documents] + (starts - table.store.starts[documents]) // m
    chunks = firsts[:, None] + np.arange(complete.shape[1])
    # An incomplete chunk is masked, so any chunk that exists may stand in for it: here chunk 0.
    values, mask = neighbours.values(np.where(complete, chunks, 0), k)
    return [torch.from_numpy(array) for array in (tokens, values, mask & complete[..., None])]


def _padding(texts: Texts, windows: list[Window]) -> np.ndarray:
    """A batch that is all padding, as long as its longest window."""
    length = max(window.num_tokens for window in windows)
    return np.full((len(windows), length), texts.pad_id, dtype=np.int64)
