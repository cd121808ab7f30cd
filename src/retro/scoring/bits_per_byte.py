"""Bits per byte of whole documents, and the perplexities that follow from the same bits."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from retro.config import EvaluationConfig
from retro.corpus.tokenizers.tokenizer import Tokenizer
from retro.corpus.tokens import TokenStore
from retro.errors import ConfigError, DataError
from retro.machine import keep_freed_memory, product_dtype
from retro.model.protocol import LanguageModel
from retro.retrieval.chunks import ChunkTable
from retro.retrieval.neighbours import Neighbours
from retro.scoring.intervals import Interval, bootstrap
from retro.scoring.parts import Opening, PartScorer, inputs_of, score_inputs
from retro.scoring.windows import Window, batches_of, expect_readable, scored_places, windows_of
from retro.stages.executor import Executor, LocalExecutor
from retro.stages.hints import with_paths
from retro.stages.parts import Parts
from retro.stages.progress import Progress, no_progress

PART = 4
"""Batches in a part. A part is saved when it is scored, so an interruption loses at most
one."""


@dataclass(frozen=True)
class Scores:
    """Bits, −log2 p, of every token of a store. End tokens carry no text and cost 0 bits."""

    store: TokenStore
    bits: np.ndarray

    @property
    def bits_per_byte(self) -> float:
        return float(self.bits.sum() / self.store.num_bytes.sum())

    def by_document(self) -> np.ndarray:
        """Bits of each document."""
        # `reduceat` sums from each start to the next. It needs every document to have a token,
        # and every document has one: its end.
        sums: np.ndarray = np.add.reduceat(self.bits, self.store.starts)
        return sums

    def by_chunk(self, table: ChunkTable) -> np.ndarray:
        """Bits of each chunk."""
        # Chunks cover the store without gaps, so each sum ends where the next chunk starts.
        sums: np.ndarray = np.add.reduceat(self.bits, table.starts)
        return sums


def chunk_bytes(table: ChunkTable, tokenizer: Tokenizer) -> np.ndarray:
    """Bytes of text of each chunk."""
    # Bytes are counted by token, so a character split across two chunks counts by its bytes in
    # both.
    sums: np.ndarray = np.add.reduceat(tokenizer.token_lengths[np.asarray(table.store.tokens)], table.starts)
    return sums


def score(
    model: LanguageModel,
    store: TokenStore,
    config: EvaluationConfig,
    neighbours: Neighbours | None = None,
    k: int = 0,
    progress: Progress = no_progress,
) -> Scores:
    """Score every token of the store, with the first k neighbours of each chunk or without retrieval."""
    return score_modes(model, store, config, neighbours, (k,), progress)[k]


def score_modes(
    model: LanguageModel,
    store: TokenStore,
    config: EvaluationConfig,
    neighbours: Neighbours | None,
    ks: Sequence[int],
    progress: Progress = no_progress,
    parts: Parts[np.ndarray] | None = None,
    executor: Executor | None = None,
    opening: Opening | None = None,
) -> dict[int, Scores]:
    """Score every token of the store with the first k neighbours of each chunk, for each k; 0 is without
    retrieval.

    Every window is read with all k in turn, so that a model can share what they have in common. The first
    token of a document has no context. It is charged log2 of the vocabulary size. What is scored is kept in
    `parts`, if they are given, and not scored again. Where the executor has processes of its own, `opening`
    opens the model there.
    """
    expect_readable(config, model.facts)
    expect_same_vocabulary(model, store)
    dtype = product_dtype(config.precision, model.device)
    most = max(ks)
    if neighbours is not None:
        expect_saved(neighbours, most)
    keep_freed_memory()
    table = neighbours.table if neighbours is not None else ChunkTable(store, model.facts.chunk_len)
    # float64, because a corpus has more tokens than float32 can sum without loss.
    bits = np.zeros((len(ks), len(store.tokens)), dtype=np.float64)
    bits[:, store.starts] = math.log2(model.facts.vocab_size)
    windows = windows_of(store, config.window, config.stride)
    batches = list(batches_of(windows, max_tokens=config.batch_size * config.window))
    total = sum(map(len, batches))
    done = 0
    numbers = range(0, len(batches), PART)
    named = [(f"{first // PART:06}", batches[first : first + PART]) for first in numbers]
    scorer = PartScorer(model, ks, opening, dtype)

    def run(missing: Iterable[list[list[Window]]]) -> Iterator[np.ndarray]:
        # What a part reads is gathered when its turn comes, so that few parts are held at once.
        inputs = ([inputs_of(table, batch, neighbours, most) for batch in part] for part in missing)
        return (executor or LocalExecutor(1)).map(scorer, inputs)

    found = parts.map(run, named) if parts is not None else run(part for _, part in named)
    for (_, part), part_bits in zip(named, found, strict=True):
        # A part's bits come in the order of its windows; the places put them back in the store's order.
        bits[:, np.concatenate([scored_places(batch) for batch in part])] = part_bits
        done += sum(map(len, part))
        progress(done, total)
    # Windows score end tokens like any other token, so their bits are removed here.
    bits[:, np.asarray(store.tokens) == store.end_id] = 0.0
    return {k: Scores(store, of_k) for k, of_k in zip(ks, bits, strict=True)}


def expect_same_vocabulary(model: LanguageModel, store: TokenStore) -> None:
    found = store.artifact.counts["vocab_size"]
    if not model.facts.fits(found):
        raise DataError(
            f"{store.artifact.path} has a vocabulary of {found}; "
            f"expected the model's {model.facts.num_ids}; name a run with the same tokenizer"
        )


def expect_saved(neighbours: Neighbours, k: int) -> None:
    """Refuse more neighbours than are saved: the scores would be labelled with a k they do not have."""
    saved = neighbours.max_neighbours
    if k > saved:
        place = neighbours.artifact.path
        build, find = f"retro build WORK --num-neighbours {k}", "retro neighbours WORK"
        raise ConfigError(
            f"num_neighbours is {k}, and {place} has {saved} saved for each chunk; expected at most {saved}; "
            f"run: {with_paths(build, place)}, and then: {with_paths(find, place)}"
        )


def score_batch(
    model: LanguageModel,
    table: ChunkTable,
    windows: list[Window],
    neighbours: Neighbours | None = None,
    k: int = 0,
    dtype: torch.dtype = torch.float32,
) -> np.ndarray:
    """−log2 p of the tokens at `scored_places`, computed on the model's device and moved to the CPU.

    With another `dtype` the matrix products are computed in that.
    """
    bits: np.ndarray = score_inputs(model, inputs_of(table, windows, neighbours, k), (k,), dtype)[0]
    return bits


@dataclass(frozen=True)
class Sizes:
    """How long every document is.

    Tokens are the tokenizer's, without the end token, which carries no text. Words are
    separated by white space in the text as it was ingested, whatever the tokenizer makes of
    them. Published word-level perplexities of Wikitext103 also count the end of every line as a
    word, and are lower for it.
    """

    num_bytes: np.ndarray
    num_tokens: np.ndarray
    num_words: np.ndarray

    @staticmethod
    def of(store: TokenStore, tokenizer: Tokenizer) -> "Sizes":
        texts = (tokenizer.decode(store.document(number).tolist()) for number in range(len(store)))
        words = np.array([len(text.split()) for text in texts], dtype=np.int64)
        # One less than the stored length: the end token is not counted.
        return Sizes(store.num_bytes, store.ends - store.starts - 1, words)


@dataclass(frozen=True)
class Metrics:
    """Three views of the same bits. A perplexity is 2 to the power of the mean bits per token or word."""

    bits_per_byte: Interval
    perplexity_per_token: Interval
    perplexity_per_word: Interval

    @staticmethod
    def read(values: dict[str, dict[str, float]]) -> "Metrics":
        """Read metrics back from JSON."""
        return Metrics(**{name: Interval(**value) for name, value in values.items()})


def measure(bits: np.ndarray, sizes: Sizes, documents: np.ndarray | slice = slice(None)) -> Metrics:
    """Metrics from the bits of each document, for all or the chosen ones. Intervals are over documents."""
    # Each statistic divides the sum of the bits by the sum of another column, over the same
    # draws.
    columns = np.stack([bits, sizes.num_bytes, sizes.num_tokens, sizes.num_words], axis=1)[documents]
    per_byte, per_token, per_word = bootstrap(columns, lambda sums: sums[:, :1] / sums[:, 1:])
    return Metrics(per_byte, _perplexity(per_token), _perplexity(per_word))


def _perplexity(bits: Interval) -> Interval:
    # 2 to the power of x is increasing, so the bounds of the bits become the bounds of the
    # perplexity.
    return Interval(*(float(np.exp2(value)) for value in (bits.estimate, bits.low, bits.high)))
