"""Rows that prepare something before they score: a model to tune, a memory to fill, weights to choose.

What is prepared is a few arrays, each kept in a file with the time that it took. So a comparison that was
stopped goes on with it, and what a row costs can be told.
"""

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from retro.comparators.cache import SHARPNESSES as THETAS
from retro.comparators.in_context import InContext
from retro.comparators.knn_lm import SHARPNESSES as ALPHAS
from retro.comparators.lora import Lora
from retro.comparators.mixtures import Memory, Mixture, Other, ReadWindow, cached, read_window
from retro.comparators.rows import Scorer, scorer_of
from retro.comparators.spalm import Gate, learn_gate
from retro.comparators.systems import read_row
from retro.errors import ConfigError, DataError
from retro.model.protocol import KeyedModel, LanguageModel
from retro.retrieval.chunks import ChunkTable
from retro.retrieval.lexical import search_by_words
from retro.retrieval.neighbours import Neighbours
from retro.scoring.bits_per_byte import expect_saved, score_batch
from retro.scoring.windows import Window, beginnings, windows_of
from retro.stages.parts import Parts

TUNED_ON = 8
"""Documents that weights are chosen on."""
GATE_LEARNS_FROM = 32
"""Documents that a gate is learned from."""
SECONDS, BYTES = "seconds", "bytes"
STEPS = {
    "bm25": ("bm25",),
    "lora": ("lora",),
    "knn": ("memory", "knn"),
    "spalm": ("memory", "knn", "spalm"),
    "cache": ("cache",),
}
"""What each row prepares, in this order, itself last; rows share what has the same name."""

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Texts:
    """What may be read before documents are scored: other documents than those."""

    training: ChunkTable
    """To learn from and to remember."""
    tuning: ChunkTable
    """To choose weights on."""


class PreparedRows:
    """Every row of one model on the same documents, by name."""

    def __init__(
        self,
        model: LanguageModel,
        neighbours: Neighbours,
        texts: Texts,
        window: int,
        seconds: float,
        kept: Parts[Arrays],
    ) -> None:
        """Tuning a model and filling a memory take `seconds` of CPU time each, in windows of so many
        tokens."""
        self.model = model
        self.neighbours = neighbours
        self.texts = texts
        self.window = window
        self.seconds = seconds
        self.kept = kept
        self._made: dict[str, Arrays] = {}

    def scorer(self, row: str) -> Scorer:
        """How a row scores a window; what it has to prepare is prepared when first asked for."""
        name = read_row(row)
        kind = name.kind
        if kind == "lora":
            return self._score_tuned
        if kind in ("knn", "cache"):
            return lambda window: self._score_mixed(kind, window)
        if kind == "spalm":
            return self._score_gated
        if kind == "bm25":
            expect_saved(self.neighbours, name.k)
            return lambda window: self._score_by_words(name.k, window)
        return scorer_of(row, self.model, self.neighbours)

    def prepare(self, row: str) -> None:
        """Do now what a row has to prepare, so that its first window takes no longer than the others."""
        for step in STEPS.get(read_row(row).kind, ()):
            self._step(step)

    def seconds_of(self, row: str) -> float:
        """CPU time that preparing a row took, wherever it was prepared."""
        return sum(float(self._step(step)[SECONDS]) for step in STEPS.get(read_row(row).kind, ()))

    def bytes_of(self, row: str) -> int:
        """What a row holds of what it prepared."""
        return sum(_num_bytes(self._step(step)) for step in STEPS.get(read_row(row).kind, ()))

    def describe(self, row: str) -> str:
        """What was prepared, in a few words; nothing for a row that prepares nothing."""
        if row == "lora":
            return f"tuned on {int(self._step('lora')['windows'])} windows of {self.window} tokens"
        if row == "spalm":
            return f"a gate learned from {int(self._step('spalm')['tokens']):,} tokens"
        if row not in ("knn", "cache"):
            return ""
        mixture = self._mixture(row)
        sharpness = (THETAS if row == "cache" else ALPHAS)[mixture.column]
        held = f"a memory of {len(self._memory.values):,} tokens, " if row == "knn" else ""
        return f"{held}sharpness {sharpness:g}, weight {mixture.weight}"

    # Preparing

    def _step(self, name: str) -> Arrays:
        """What a step has prepared: made now, or kept from an earlier time."""
        if name not in self._made:
            # What it needs comes first, so that its own time is its own.
            for needed in STEPS.get(name, ())[:-1]:
                self._step(needed)
            self._made[name] = self.kept.keep(name, lambda: self._timed(self._makers[name]))
        return self._made[name]

    def _timed(self, make: Callable[[], Arrays]) -> Arrays:
        started = time.process_time()
        made = make()
        return {**made, SECONDS: np.array(time.process_time() - started)}

    @property
    def _makers(self) -> dict[str, Callable[[], Arrays]]:
        return {
            "lora": self._tune,
            "memory": self._remember,
            "knn": lambda: self._choose("knn"),
            "cache": lambda: self._choose("cache"),
            "spalm": self._learn_gate,
            "bm25": self._search_by_words,
        }

    def _windows_in_time(self, rounds: int | None = None) -> Iterator[Window]:
        """Windows of the training text in an order of chance until the time is over, or all were read so
        often."""
        store = self.texts.training.store
        windows = list(windows_of(store, self.window, self.window))
        # A short text has no window of that length; then all of them serve.
        windows = [window for window in windows if window.num_tokens == self.window] or windows
        if not windows:
            raise DataError(f"{store.artifact.path} holds no text to learn from; expected training documents")
        started = time.process_time()
        for seed in itertools.count() if rounds is None else range(rounds):
            for number in np.random.default_rng(seed).permutation(len(windows)):
                yield windows[number]
                if time.process_time() - started > self.seconds:
                    return

    def _tune(self) -> Arrays:
        lora = Lora(self.model)
        count = lora.tune(self.texts.training, self._windows_in_time())
        return {**lora.arrays(), "windows": np.array(count)}

    def _remember(self) -> Arrays:
        # Once, as a key that is there twice would only vote twice.
        windows = self._windows_in_time(rounds=1)
        memory = Memory.of(self._read(self.texts.training, window) for window in windows)
        return {"keys": memory.keys.numpy(), "values": memory.values.numpy()}

    def _choose(self, kind: str) -> Arrays:
        mixture = Mixture.chosen(self._tuning_windows(TUNED_ON), self._other(kind))
        made = {"column": np.array(mixture.column), "weight": np.array(mixture.weight)}
        if kind == "cache":
            # It holds the window's own states, and nothing else.
            made[BYTES] = np.array(self.window * (4 * self._keyed.key_width + 8))
        return made

    def _learn_gate(self) -> Arrays:
        reads = self._tuning_windows(GATE_LEARNS_FROM)
        gate = learn_gate(reads, self._memory.log_probs, self._mixture("knn"))
        num_tokens = sum(len(read.bits) for read in reads)
        return {
            "mean": gate.mean,
            "deviation": gate.deviation,
            "weights": gate.weights,
            "bias": np.array(gate.bias),
            "tokens": np.array(num_tokens),
        }

    def _search_by_words(self) -> Arrays:
        found = search_by_words(self.neighbours)
        return {"chunks": found.chunks, "distances": found.distances, BYTES: np.array(found.index_bytes)}

    def _tuning_windows(self, num_documents: int) -> list[ReadWindow]:
        table = self.texts.tuning
        windows = beginnings(table, num_documents, self.window)
        if not windows:
            raise DataError(
                f"{table.store.artifact.path} has no document of two chunks to choose weights on; "
                "expected longer documents"
            )
        return [self._read(table, window) for window in windows]

    # What was prepared

    @cached_property
    def _lora(self) -> Lora:
        lora = Lora(self.model)
        lora.restore(self._step("lora"))
        return lora

    @cached_property
    def _memory(self) -> Memory:
        kept = self._step("memory")
        return Memory(torch.from_numpy(kept["keys"]), torch.from_numpy(kept["values"]))

    def _mixture(self, kind: str) -> Mixture:
        kept = self._step(kind)
        return Mixture(int(kept["column"]), float(kept["weight"]))

    @cached_property
    def _by_words(self) -> Neighbours:
        found = self._step("bm25")
        return self.neighbours.replaced(found["chunks"], found["distances"])

    @cached_property
    def _gate(self) -> Gate:
        kept = self._step("spalm")
        return Gate(kept["mean"], kept["deviation"], kept["weights"], float(kept["bias"]))

    def _other(self, kind: str) -> Other:
        return cached if kind == "cache" else self._memory.log_probs

    # Scoring

    def _read(self, table: ChunkTable, window: Window) -> ReadWindow:
        return read_window(self._keyed, table, window)

    @property
    def _keyed(self) -> KeyedModel:
        if not isinstance(self.model, KeyedModel):
            raise ConfigError(
                "the model shows no states that tokens are predicted from; expected one that does, as our "
                "own models and fitted bases do; leave knn, spalm and cache out"
            )
        return self.model

    def _score_tuned(self, window: Window) -> np.ndarray:
        with self._lora.attached():
            return score_batch(self.model, self.neighbours.table, [window])

    def _score_mixed(self, kind: str, window: Window) -> np.ndarray:
        mixture = self._mixture(kind)
        return mixture.bits(self._read(self.neighbours.table, window), self._other(kind))

    def _score_gated(self, window: Window) -> np.ndarray:
        read = self._read(self.neighbours.table, window)
        return self._gate.bits(read, self._memory.log_probs(read)[:, self._mixture("knn").column])

    def _score_by_words(self, k: int, window: Window) -> np.ndarray:
        return score_batch(InContext(self.model), self._by_words.table, [window], self._by_words, k)


def _num_bytes(made: Arrays) -> int:
    """What a row holds of a step: what the step says, or all of its arrays."""
    if BYTES in made:
        return int(made[BYTES])
    return sum(array.nbytes for name, array in made.items() if name != SECONDS)
