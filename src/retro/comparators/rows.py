"""Ways to predict the same text beside each other: the same windows, the same neighbours, a row for each way.

Rows are scored window by window and kept, so that an interruption loses one window at most, and other rows
may follow later. Gains have intervals over documents, as every row has scored the same ones.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from retro.comparators.in_context import InContext
from retro.comparators.retro_plus_plus import RetroPlusPlus
from retro.comparators.systems import read_row
from retro.errors import ConfigError
from retro.model.protocol import LanguageModel
from retro.retrieval.neighbours import Neighbours
from retro.retrieval.retriever import Retriever, Searcher
from retro.scoring.bits_per_byte import expect_saved, score_batch
from retro.scoring.intervals import Interval, bootstrap_ratio, relative_gain
from retro.scoring.windows import Window
from retro.stages.parts import Parts
from retro.stages.progress import Progress, no_progress

OFF = "off"
CHANGED = 0.1
"""Bits by which a token's cost has to change to count as helped or hurt."""
Scorer = Callable[[Window], np.ndarray]
"""From a window to the bits of the tokens that it predicts."""
Found = Mapping[int, Mapping[str, Mapping[str, Any]]]
"""`seconds` and `bits` of each row, by the first token of the window."""


@dataclass(frozen=True)
class Way:
    """A model that reads in some way, and how many neighbours of each chunk."""

    model: LanguageModel
    k: int = 0
    searcher: Searcher | None = None
    """What finds them while tokens are drawn, in place of the datastore's keys."""

    def scorer(self, neighbours: Neighbours) -> Scorer:
        """How it scores a window."""
        read = neighbours if self.k else None
        return lambda window: score_batch(self.model, neighbours.table, [window], read, self.k)


def way_of(row: str, model: LanguageModel, neighbours: Neighbours) -> Way:
    """How a row that has nothing to prepare reads.

    `off`, `on-K` with K neighbours, `prompt-K` with them in the prompt, `prompt-K-every-N` with those that
    are found by the last chunk's worth of text every N tokens, `plus-K` with K and the nearest in the prompt.
    """
    name = read_row(row)
    expect_saved(neighbours, name.k)
    if name.kind == "on" and not model.facts.retrieves:
        raise ConfigError(
            f"row {row!r} is of a model that reads neighbours; expected a RETRO or a fitted base"
        )
    if name.kind in (OFF, "on"):
        return Way(model, name.k)
    if name.kind == "prompt":
        find = Retriever(neighbours.datastore).values if name.every else None
        return Way(InContext(model, name.every, find), name.k)
    if name.kind == "plus":
        return Way(RetroPlusPlus(model), name.k)
    raise ConfigError(f"row {row!r} is prepared from other text, and there is none here; expected some")


def scorer_of(row: str, model: LanguageModel, neighbours: Neighbours) -> Scorer:
    """How a row that has nothing to prepare scores a window."""
    return way_of(row, model, neighbours).scorer(neighbours)


def score_window(window: Window, scorers: Mapping[str, Scorer], kept: Parts[Any]) -> None:
    """Score a window by every row that has not scored it yet."""
    name = str(window.start)
    found = kept.read(name) if kept.has(name) else {}
    for row, scorer in scorers.items():
        if row not in found:
            started = time.perf_counter()
            bits = scorer(window)
            found[row] = {"seconds": time.perf_counter() - started, "bits": bits.tolist()}
            kept.write(name, found)


def score_windows(
    windows: Sequence[Window],
    scorers: Mapping[str, Scorer],
    kept: Parts[Any],
    progress: Progress = no_progress,
) -> None:
    """Score windows, the rows taking turns, so that whatever else the machine does slows all of them."""
    for number, window in enumerate(windows):
        progress(number, len(windows))
        score_window(window, scorers, kept)
    progress(len(windows), len(windows))


@dataclass(frozen=True)
class RowResult:
    """What a row has cost, beside another on the same tokens. NaN where no token is counted."""

    row: str
    bits_per_byte: Interval
    gain: Interval
    """The part of the other's bits that it saves."""
    other: float
    """Bits per byte of the other row."""
    tokens_per_second: float
    speed: float
    """Its tokens a second, as a part of those without retrieval."""
    num_chunks: int
    num_documents: int


class Rows:
    """What rows have cost, token by token, and what follows for all text and for parts of it."""

    def __init__(self, neighbours: Neighbours, token_lengths: np.ndarray, found: Found) -> None:
        """`token_lengths` are the bytes of the text that each token id stands for."""
        self.neighbours = neighbours
        self.table = neighbours.table
        self.token_lengths = token_lengths
        self.found = {start: found[start] for start in sorted(found)}

    @staticmethod
    def read(neighbours: Neighbours, token_lengths: np.ndarray, kept: Parts[Any]) -> "Rows":
        """The rows of all windows that were kept."""
        names = [file.stem for file in kept.folder.glob(f"*{kept.format.suffix}") if file.stem.isdigit()]
        return Rows(neighbours, token_lengths, {int(name): kept.read(name) for name in names})

    @cached_property
    def names(self) -> list[str]:
        """The rows, in the order in which they were scored."""
        return list(dict.fromkeys(row for rows in self.found.values() for row in rows))

    @cached_property
    def documents(self) -> dict[int, int]:
        """The number of the document that each window begins, by the window's first token."""
        starts = self.table.store.starts
        return {start: int(np.searchsorted(starts, start, side="right")) - 1 for start in self.found}

    def bits(self, row: str) -> np.ndarray:
        """Bits of all tokens, window by window."""
        return np.concatenate([np.array(rows[row]["bits"]) for rows in self.found.values() if row in rows])

    def same(self, row: str, other: str) -> bool:
        """Whether two rows cost the same on every token, to the bit."""
        return bool(np.array_equal(self.bits(row), self.bits(other)))

    def sums(self, row: str, against: str = OFF, counted: np.ndarray | None = None) -> dict[int, np.ndarray]:
        """Of each document that both rows have scored, by its number: bits of the row and of the other,
        bytes, tokens that were scored, and chunks that count.

        `counted` says which chunks count; by default all.
        """
        starts = [start for start, rows in self.found.items() if row in rows and against in rows]
        return {self.documents[start]: self._sums(start, row, against, counted) for start in starts}

    def _sums(self, start: int, row: str, against: str, counted: np.ndarray | None) -> np.ndarray:
        bits, other = (np.array(self.found[start][name]["bits"]) for name in (row, against))
        # The first token of a window is not predicted.
        places = np.arange(start + 1, start + 1 + len(bits))
        chunks = np.searchsorted(self.table.starts, places, side="right") - 1
        kept = np.ones(len(bits), dtype=bool) if counted is None else counted[chunks]
        num_bytes = self.token_lengths[np.asarray(self.table.store.tokens[places])]
        num_chunks = len(np.unique(chunks[kept]))
        return np.array([bits[kept].sum(), other[kept].sum(), num_bytes[kept].sum(), len(bits), num_chunks])

    def changed(self, row: str, against: str = OFF, by: float = CHANGED) -> tuple[float, float]:
        """The parts of the tokens that a row helps and hurts: they cost at least so many bits less, or more.

        On the documents that both rows have scored.
        """
        both = [rows for rows in self.found.values() if row in rows and against in rows]
        saved = [np.array(rows[against]["bits"]) - np.array(rows[row]["bits"]) for rows in both]
        gains = np.concatenate([np.zeros(0), *saved])
        if not len(gains):
            return np.nan, np.nan
        return float((gains >= by).mean()), float((gains <= -by).mean())

    def result(self, row: str, against: str = OFF, counted: np.ndarray | None = None) -> RowResult:
        """A row beside another, on the documents that both have scored and the chunks that count."""
        sums = self.sums(row, against, counted)
        bits, other, num_bytes, num_tokens, num_chunks = np.array(list(sums.values())).reshape(-1, 5).T
        scored = [rows for start, rows in self.found.items() if self.documents[start] in sums]
        seconds = sum(rows[row]["seconds"] for rows in scored)
        # An older comparison may lack the row without retrieval.
        alone = sum(rows.get(OFF, {}).get("seconds", np.nan) for rows in scored)
        return RowResult(
            row=row,
            bits_per_byte=bootstrap_ratio(bits, num_bytes),
            gain=relative_gain(bits, other),
            other=float(other.sum() / num_bytes.sum()) if num_bytes.sum() else np.nan,
            tokens_per_second=float(num_tokens.sum() / seconds) if seconds else np.nan,
            speed=alone / seconds if seconds else np.nan,
            num_chunks=int(num_chunks.sum()),
            num_documents=len(sums),
        )
