"""Bits per byte of whole documents, and the perplexities that follow from the same bits."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from retro.config import EvaluationConfig
from retro.corpus.tokenizers.tokenizer import Tokenizer
from retro.corpus.tokens import TokenStore
from retro.errors import ConfigError, DataError
from retro.model.protocol import LanguageModel
from retro.retrieval.chunks import ChunkTable
from retro.retrieval.neighbours import Neighbours
from retro.scoring.intervals import Interval, bootstrap
from retro.scoring.windows import (
    Window,
    batch_inputs,
    batch_targets,
    batches_of,
    expect_on_grid,
    scored_places,
    windows_of,
)
from retro.stages.progress import Progress, no_progress

PART = 4
"""Batches that are scored before they are kept; as much is lost at most when scoring is interrupted."""

Keep = Callable[[str, Callable[[], np.ndarray]], np.ndarray]
"""`Parts.keep`, or what does the same: it gives the bits of a part by its name, and calls the function that
makes them only if they are not kept yet. So parts of the work survive an interruption."""


def _keep_nothing(name: str, make: Callable[[], np.ndarray]) -> np.ndarray:
    return make()


@dataclass(frozen=True)
class Scores:
    """Bits of every token of a store, −log2 p. The end of a document carries no text and counts nothing."""

    store: TokenStore
    bits: np.ndarray

    @property
    def bits_per_byte(self) -> float:
        return float(self.bits.sum() / self.store.num_bytes.sum())

    def by_document(self) -> np.ndarray:
        """Bits of each document."""
        # Sums from each start to the next; every document has a token, its end, so that none is empty.
        sums: np.ndarray = np.add.reduceat(self.bits, self.store.starts)
        return sums

    def by_chunk(self, table: ChunkTable) -> np.ndarray:
        """Bits of each chunk."""
        sums: np.ndarray = np.add.reduceat(self.bits, table.starts)
        return sums


def chunk_bytes(table: ChunkTable, tokenizer: Tokenizer) -> np.ndarray:
    """Bytes of text of each chunk."""
    # By the bytes that each token stands for: a character split across two chunks counts in both.
    sums: np.ndarray = np.add.reduceat(tokenizer.token_lengths[table.store.tokens], table.starts)
    return sums


def score(
    model: LanguageModel,
    store: TokenStore,
    config: EvaluationConfig,
    neighbours: Neighbours | None = None,
    k: int = 0,
    progress: Progress = no_progress,
    keep: Keep = _keep_nothing,
) -> Scores:
    """Score every token of the store, with the first k neighbours of each chunk, or without retrieval.

    The first token of a document has no context and is charged the uniform log2 of the vocabulary.
    """
    expect_on_grid(config, model.facts.chunk_len)
    expect_same_vocabulary(model, store)
    if neighbours is not None:
        expect_saved(neighbours, k)
    table = neighbours.table if neighbours is not None else ChunkTable(store, model.facts.chunk_len)
    # In float64: a corpus has more tokens than float32 could sum without loss.
    bits = np.zeros(len(store.tokens), dtype=np.float64)
    bits[store.starts] = math.log2(model.facts.vocab_size)
    windows = windows_of(store, config.window, config.stride)
    batches = list(batches_of(windows, max_tokens=config.batch_size * config.window))
    total = sum(map(len, batches))
    done = 0
    for first in range(0, len(batches), PART):
        part = batches[first : first + PART]
        # The bits of a part are in the order of its windows, and go where their tokens are in the store.
        places = np.concatenate([scored_places(batch) for batch in part])
        bits[places] = keep(f"{first // PART:06}", partial(_score_part, model, table, part, neighbours, k))
        done += sum(map(len, part))
        progress(done, total)
    # Windows know nothing of end tokens and score them with the rest; their bits are taken out here.
    bits[np.asarray(store.tokens) == store.end_id] = 0.0
    return Scores(store, bits)


def expect_same_vocabulary(model: LanguageModel, store: TokenStore) -> None:
    found = store.artifact.counts["vocab_size"]
    if found != model.facts.vocab_size:
        raise DataError(
            f"{store.artifact.path} has a vocabulary of {found}; "
            f"expected the model's {model.facts.vocab_size}; name a run with the same tokenizer"
        )


def expect_saved(neighbours: Neighbours, k: int) -> None:
    """Refuse more neighbours than there are: scores of fewer would bear the name of more."""
    saved = neighbours.max_neighbours
    if k > saved:
        raise ConfigError(
            f"num_neighbours is {k}, and {neighbours.artifact.path} has {saved} saved for each chunk; "
            f"expected at most {saved}; "
            f"run: retro build WORK --num-neighbours {k}, and then: retro neighbours WORK"
        )


def _score_part(
    model: LanguageModel, table: ChunkTable, part: list[list[Window]], neighbours: Neighbours | None, k: int
) -> np.ndarray:
    return np.concatenate([score_batch(model, table, batch, neighbours, k) for batch in part])


@torch.inference_mode()
def score_batch(
    model: LanguageModel,
    table: ChunkTable,
    windows: list[Window],
    neighbours: Neighbours | None = None,
    k: int = 0,
) -> np.ndarray:
    """−log2 p of the tokens at `scored_places`, read on the model's device and brought back to the CPU."""
    tokens, *retrieved = (tensor.to(model.device) for tensor in batch_inputs(table, windows, neighbours, k))
    targets = batch_targets(table.store, windows).to(model.device)
    nats = -model.score(tokens, targets, *retrieved).log_probs
    # Row by row and from left to right: the order of `scored_places`.
    wanted = nats[targets != model.facts.pad_id]
    return wanted.double().cpu().numpy() / math.log(2.0)


@dataclass(frozen=True)
class Sizes:
    """How long every document is.

    A token is one of the tokenizer's; the end of a document carries no text and is none. A word is what
    stands between white space in the text as it was ingested, whatever the tokenizer makes of it. Published
    word-level perplexities of Wikitext103 count the end of every line as one word more and are the lower
    for it.
    """

    num_bytes: np.ndarray
    num_tokens: np.ndarray
    num_words: np.ndarray

    @staticmethod
    def of(store: TokenStore, tokenizer: Tokenizer) -> "Sizes":
        texts = (tokenizer.decode(store.document(number).tolist()) for number in range(len(store)))
        words = np.array([len(text.split()) for text in texts], dtype=np.int64)
        return Sizes(store.num_bytes, store.ends - store.starts - 1, words)


@dataclass(frozen=True)
class Metrics:
    """Three views of the same bits. A perplexity is 2 to the mean bits of a token or word."""

    bits_per_byte: Interval
    perplexity_per_token: Interval
    perplexity_per_word: Interval

    @staticmethod
    def read(values: dict[str, dict[str, float]]) -> "Metrics":
        """Back from JSON."""
        return Metrics(**{name: Interval(**value) for name, value in values.items()})


def measure(bits: np.ndarray, sizes: Sizes, documents: np.ndarray | slice = slice(None)) -> Metrics:
    """Metrics from the bits of each document, of all or of the chosen ones; intervals are over documents."""
    # Each statistic is the sum of the first column by the sum of another, over the same draws of documents.
    columns = np.stack([bits, sizes.num_bytes, sizes.num_tokens, sizes.num_words], axis=1)[documents]
    per_byte, per_token, per_word = bootstrap(columns, lambda sums: sums[:, :1] / sums[:, 1:])
    return Metrics(per_byte, _perplexity(per_token), _perplexity(per_word))


def _perplexity(bits: Interval) -> Interval:
    return Interval(*(float(np.exp2(value)) for value in (bits.estimate, bits.low, bits.high)))
