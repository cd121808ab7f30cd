"""Rows with what they prepare: a model to tune, a memory to fill, weights to choose.

What is prepared is a few arrays, kept in a file with the time that it took. So a comparison that was stopped
goes on with it, and what a row costs can be told.
"""

import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from retro.comparators.mixtures import ReadWindow, read_window
from retro.comparators.rows import Scorer, Way
from retro.comparators.token_states import expect_apart
from retro.errors import ConfigError, DataError
from retro.model.protocol import KeyedModel, LanguageModel
from retro.retrieval.chunks import ChunkTable
from retro.retrieval.neighbours import Neighbours
from retro.scoring.windows import Window, beginnings, windows_of
from retro.stages.parts import Parts

SECONDS = "seconds"

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Texts:
    """What may be read before documents are scored: other documents than those."""

    training: ChunkTable
    """To learn from and to remember."""
    tuning: ChunkTable
    """To choose weights on."""


class Ground:
    """What rows stand on: a model, the documents that are scored, other text, a place for what they make."""

    def __init__(
        self,
        model: LanguageModel,
        neighbours: Neighbours,
        texts: Texts,
        window: int,
        seconds: float,
        kept: Parts[Arrays],
    ) -> None:
        """To learn from the training text takes `seconds` of CPU time, in windows of so many tokens."""
        self.model = model
        self.neighbours = neighbours
        self.texts = texts
        self.window = window
        self.seconds = seconds
        self.kept = kept

    @property
    def keyed(self) -> KeyedModel:
        """The model, where rows need its states."""
        if not isinstance(self.model, KeyedModel):
            raise ConfigError(
                "the model shows no states that tokens are predicted from; expected one that does, as our "
                "own models and fitted bases do; leave knn, spalm and cache out"
            )
        return self.model

    def windows_in_time(self, rounds: int | None = None) -> Iterator[Window]:
        """Windows of the training text in an order of chance until the time is over, or until all were read
        so often."""
        store = self.texts.training.store
        expect_apart(store, self.neighbours.store, "a document that was learned or remembered is no test")
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

    def read_in_time(self) -> Iterator[ReadWindow]:
        """The same as the model reads them, each once: a key that is there twice would only vote twice."""
        return (read_window(self.keyed, self.texts.training, one) for one in self.windows_in_time(rounds=1))

    def read_for_tuning(self, num_documents: int) -> list[ReadWindow]:
        """Beginnings of documents that weights are chosen on."""
        table = self.texts.tuning
        expect_apart(
            table.store, self.neighbours.store, "what is tuned on the reported documents is no result"
        )
        windows = beginnings(table, num_documents, self.window)
        if not windows:
            raise DataError(
                f"{table.store.artifact.path} has no document of two chunks to choose weights on; "
                "expected longer documents"
            )
        return [read_window(self.keyed, table, window) for window in windows]

    def read_scored(self, window: Window) -> ReadWindow:
        """A window of the documents that are scored."""
        return read_window(self.keyed, self.neighbours.table, window)

    def keep(self, name: str, make: Callable[[], Arrays]) -> Arrays:
        """Make arrays, or read those that were made before; `SECONDS` among them says how long it took."""

        def timed() -> Arrays:
            started = time.process_time()
            made = make()
            return {**made, SECONDS: np.array(time.process_time() - started)}

        return self.kept.keep(name, timed)


class Row:
    """A way to score windows, and what it costs before it does: nothing, for one that is ready."""

    def __init__(self, scorer: Scorer, way: Way | None = None) -> None:
        self.score = scorer
        self._way = way

    @contextmanager
    def sampled(self) -> Iterator[Way | None]:
        """Within this block, what tokens are drawn from; None if the row can only score."""
        yield self._way

    def prepare(self) -> None:
        """Do now what has to be done once, so that the first window takes no longer than the others."""

    @property
    def seconds(self) -> float:
        """CPU time that it took to prepare, whenever that was."""
        return 0.0

    @property
    def num_bytes(self) -> int:
        """What it holds of what it prepared."""
        return 0

    @property
    def note(self) -> str:
        """What was prepared, in a few words."""
        return ""


class PreparedRow(Row, ABC):
    """A row that makes something of other text before it scores, or goes on with what another row made."""

    name: str

    def __init__(self, ground: Ground, needs: "PreparedRow | None" = None) -> None:
        super().__init__(self.scored)
        self.ground = ground
        self.needs = needs

    @abstractmethod
    def scored(self, window: Window) -> np.ndarray:
        """Bits of the tokens that a window predicts."""

    @abstractmethod
    def make(self) -> Arrays:
        """What is prepared; `made` gives it back, from wherever it is kept."""

    @cached_property
    def made(self) -> Arrays:
        # What is needed comes first, so that the time of each is its own.
        if self.needs is not None:
            self.needs.prepare()
        return self.ground.keep(self.name, self.make)

    def prepare(self) -> None:
        _ = self.made

    @property
    def seconds(self) -> float:
        return float(self.made[SECONDS]) + (self.needs.seconds if self.needs is not None else 0.0)

    @property
    def num_bytes(self) -> int:
        own = sum(array.nbytes for name, array in self.made.items() if name != SECONDS)
        return own + (self.needs.num_bytes if self.needs is not None else 0)
