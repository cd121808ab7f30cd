"""The rows that prepare something, one by one, and every row by its name."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from retro.comparators.cache import SHARPNESSES as THETAS
from retro.comparators.in_context import InContext
from retro.comparators.knn_lm import SHARPNESSES as ALPHAS
from retro.comparators.lora import Lora
from retro.comparators.mixed_model import FromMemory, FromPast, MixedModel, constant
from retro.comparators.mixtures import Memory, Mixture, cached
from retro.comparators.prepared import Arrays, Ground, PreparedRow, Row
from retro.comparators.rows import Way, way_of
from retro.comparators.spalm import Gate, learn_gate
from retro.comparators.systems import read_row
from retro.retrieval.lexical import WordRetriever, search_by_words
from retro.retrieval.neighbours import Neighbours
from retro.scoring.bits_per_byte import expect_saved, score_batch
from retro.scoring.windows import Window
from retro.wording import counted

TUNED_ON = 8
"""Documents that weights are chosen on."""
MOST_REMEMBERED = 500_000
"""Tokens of a memory, which is searched whole: a small model could read millions in the time it has."""
GATE_LEARNS_FROM = 32
"""Documents that a gate is learned from."""


class LoraRow(PreparedRow):
    """The model tuned on the training text."""

    name = "lora"

    def make(self) -> Arrays:
        lora = Lora(self.ground.model)
        count = lora.tune(self.ground.texts.training, self.ground.windows_in_time())
        return {**lora.arrays(), "windows": np.array(count)}

    @cached_property
    def _lora(self) -> Lora:
        lora = Lora(self.ground.model)
        lora.restore(self.made)
        return lora

    def scored(self, window: Window) -> np.ndarray:
        with self._lora.attached():
            return score_batch(self.ground.model, self.ground.neighbours.table, [window])

    @contextmanager
    def sampled(self) -> Iterator[Way | None]:
        with self._lora.attached():
            yield Way(self.ground.model)

    @property
    def note(self) -> str:
        return f"tuned on {counted(int(self.made['windows']), 'window')} of {self.ground.window} tokens"


class KnnRow(PreparedRow):
    """kNN-LM with a memory of training tokens."""

    name = "knn"

    def make(self) -> Arrays:
        memory = Memory.of(self.ground.read_in_time(), MOST_REMEMBERED)
        chosen = Mixture.chosen(self.ground.read_for_tuning(TUNED_ON), memory.log_probs)
        return {"keys": memory.keys.numpy(), "values": memory.values.numpy(), **chosen.arrays()}

    @cached_property
    def memory(self) -> Memory:
        return Memory(torch.from_numpy(self.made["keys"]), torch.from_numpy(self.made["values"]))

    @cached_property
    def mixture(self) -> Mixture:
        return Mixture.read(self.made)

    def scored(self, window: Window) -> np.ndarray:
        return self.mixture.bits(self.ground.read_scored(window), self.memory.log_probs)

    @property
    def votes(self) -> FromMemory:
        """What the memory says of the next token."""
        return FromMemory(self.memory, ALPHAS[self.mixture.column])

    @contextmanager
    def sampled(self) -> Iterator[Way | None]:
        yield Way(MixedModel(self.ground.keyed, self.votes, constant(self.mixture.weight)))

    @property
    def note(self) -> str:
        return f"a memory of {len(self.memory.values):,} tokens, {self.mixture.in_words(ALPHAS)}"


class SpalmRow(PreparedRow):
    """kNN-LM with a learned gate."""

    name = "spalm"

    def __init__(self, ground: Ground, knn: KnnRow) -> None:
        super().__init__(ground, knn)
        self.knn = knn

    def make(self) -> Arrays:
        reads = self.ground.read_for_tuning(GATE_LEARNS_FROM)
        gate = learn_gate(reads, self.knn.memory.log_probs, self.knn.mixture)
        return {**gate.arrays(), "tokens": np.array(sum(len(read.bits) for read in reads))}

    @cached_property
    def _gate(self) -> Gate:
        return Gate.read(self.made)

    def scored(self, window: Window) -> np.ndarray:
        read = self.ground.read_scored(window)
        return self._gate.bits(read, self.knn.memory.log_probs(read)[:, self.knn.mixture.column])

    @contextmanager
    def sampled(self) -> Iterator[Way | None]:
        def weigh(keys: Tensor) -> Tensor:
            return torch.from_numpy(self._gate.of(keys.cpu()))

        yield Way(MixedModel(self.ground.keyed, self.knn.votes, weigh))

    @property
    def note(self) -> str:
        return f"a gate learned from {int(self.made['tokens']):,} tokens, over the memory of knn"


class CacheRow(PreparedRow):
    """The continuous cache over the window's own past."""

    name = "cache"

    def make(self) -> Arrays:
        return Mixture.chosen(self.ground.read_for_tuning(TUNED_ON), cached).arrays()

    @cached_property
    def mixture(self) -> Mixture:
        return Mixture.read(self.made)

    def scored(self, window: Window) -> np.ndarray:
        return self.mixture.bits(self.ground.read_scored(window), cached)

    @contextmanager
    def sampled(self) -> Iterator[Way | None]:
        votes = FromPast(THETAS[self.mixture.column])
        yield Way(MixedModel(self.ground.keyed, votes, constant(self.mixture.weight)))

    @property
    def num_bytes(self) -> int:
        """Keys and tokens of a window, while it is read."""
        return self.ground.window * (4 * self.ground.keyed.key_width + 8)

    @property
    def note(self) -> str:
        return self.mixture.in_words(THETAS)


class Bm25Row(PreparedRow):
    """Neighbours in the prompt that BM25 finds. Rows of any K share one search."""

    name = "bm25"

    def __init__(self, ground: Ground, k: int) -> None:
        expect_saved(ground.neighbours, k)
        super().__init__(ground)
        self.k = k
        self.model = InContext(ground.model)

    def make(self) -> Arrays:
        found = search_by_words(self.ground.neighbours)
        index_bytes = np.array(found.index_bytes)
        return {"chunks": found.chunks, "distances": found.distances, "index_bytes": index_bytes}

    @cached_property
    def _neighbours(self) -> Neighbours:
        return self.ground.neighbours.replaced(self.made["chunks"], self.made["distances"])

    def scored(self, window: Window) -> np.ndarray:
        return score_batch(self.model, self._neighbours.table, [window], self._neighbours, self.k)

    @contextmanager
    def sampled(self) -> Iterator[Way | None]:
        yield Way(self.model, self.k, self._searcher)

    @cached_property
    def _searcher(self) -> WordRetriever:
        return WordRetriever(self.ground.neighbours.datastore, self.k)

    @property
    def num_bytes(self) -> int:
        """The index; what was found for these documents is not needed for others."""
        return int(self.made["index_bytes"])


class AllRows:
    """Every row by its name, on one ground."""

    def __init__(self, ground: Ground) -> None:
        self.ground = ground
        # Shared: a gate goes on with this memory.
        self._knn = KnnRow(ground)

    def of(self, row: str) -> Row:
        """A row; nothing is prepared yet, but a name that is none is refused."""
        name = read_row(row)
        if name.kind == KnnRow.name:
            return self._knn
        if name.kind == SpalmRow.name:
            return SpalmRow(self.ground, self._knn)
        if name.kind == LoraRow.name:
            return LoraRow(self.ground)
        if name.kind == CacheRow.name:
            return CacheRow(self.ground)
        if name.kind == Bm25Row.name:
            return Bm25Row(self.ground, name.k)
        way = way_of(row, self.ground.model, self.ground.neighbours)
        return Row(way.scorer(self.ground.neighbours), way)
