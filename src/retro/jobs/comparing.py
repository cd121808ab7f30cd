"""Rows of one or several runs of a workspace beside each other: the same documents, and what each costs."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from retro.comparators.knn_lm import size_of_datastore
from retro.comparators.prepared import Ground, Row, Texts
from retro.comparators.prepared_rows import AllRows
from retro.comparators.rows import Rows, Way, score_window
from retro.comparators.systems import read_row
from retro.config import ModelConfig
from retro.config.as_json import from_dict
from retro.config.checks import require
from retro.errors import ConfigError, DataError
from retro.generation.request import Choice, Prompt, Request
from retro.generation.sampler import Sampler
from retro.retrieval.chunks import ChunkTable
from retro.retrieval.neighbours import Neighbours
from retro.retrieval.retriever import Retriever
from retro.run import make_model
from retro.scoring.windows import Window, beginnings
from retro.stages.files import make_fingerprint
from retro.stages.parts import ARRAYS, JSON, Parts
from retro.stages.progress import Progress, at_step, no_progress
from retro.workspace import OpenRun

FOLDER = "comparison"
SAMPLED_TOKENS = 64
"""Tokens that a row draws to tell its speed."""


@dataclass(frozen=True)
class Extent:
    """On how much text rows are compared, and how long they may prepare."""

    num_documents: int = 24
    """Documents whose beginnings are scored, drawn by chance."""
    window: int = 512
    """Tokens of a beginning."""
    seconds: float = 360.0
    """CPU time to tune a model, and to fill a memory: about that of a fit."""
    sampled: int = 0
    """Documents whose first two chunks are continued by every row, for its speed; 0: none."""

    def __post_init__(self) -> None:
        require(self.num_documents > 0, f"there are {self.num_documents} documents; expected at least one")
        require(0 <= self.seconds < math.inf, f"seconds is {self.seconds}; expected 0 or more, and an end")


@dataclass(frozen=True)
class Entry:
    """A line of a comparison: a row of a run, and what it is called."""

    label: str
    opened: OpenRun
    row: str


@dataclass(frozen=True)
class Cost:
    """What a row takes beyond the model without retrieval."""

    seconds: float
    """CPU time of what it prepared itself; not that of a datastore or a training."""
    num_bytes: int
    """Weights, keys, index, and text that has to be at hand."""
    note: str
    """What was prepared, in a few words."""


@dataclass(frozen=True)
class Compared:
    """Rows by their labels, on the documents that were asked for."""

    rows: Rows
    costs: Mapping[str, Cost]
    sampling: Mapping[str, float]
    """Tokens a second that are drawn behind two chunks of text, its reading included; NaN where none are."""


class _Bench:
    """All rows of one run. What they have prepared and scored is kept below the workspace."""

    def __init__(self, opened: OpenRun, neighbours: Neighbours, extent: Extent) -> None:
        opened.model.facts.expect_context(extent.window, "the window has", "shorten it: --window")
        self.opened = opened
        self.neighbours = neighbours
        store, chunk_len = neighbours.store, neighbours.table.chunk_len
        texts = Texts(*(ChunkTable(opened.store(split), chunk_len) for split in ("train", "valid")))
        # Whatever the numbers depend on; more documents go on with those that are there.
        identity = make_fingerprint(
            opened.run.fingerprint,
            store.fingerprint,
            neighbours.fingerprint,
            texts.training.store.fingerprint,
            texts.tuning.store.fingerprint,
            str(extent.window),
            f"{extent.seconds:g}",
        )
        assert opened.work is not None  # or there would be no neighbours
        folder = (opened.out or opened.work.path) / FOLDER / f"{opened.name}-{identity[:12]}"
        self.kept: Parts[Any] = Parts(folder, JSON)
        prepared = Parts(folder / "prepared", ARRAYS)
        ground = Ground(opened.model, neighbours, texts, extent.window, extent.seconds, prepared)
        self.all = AllRows(ground)
        self.rows: dict[str, Row] = {}

    def add(self, row: str) -> None:
        self.rows[row] = self.all.of(row)

    def warm_up(self, windows: Sequence[Window]) -> None:
        """Read once without looking at the time: the first reading is slow, whichever row does it."""
        if not all(self.kept.has(str(window.start)) for window in windows):
            next(iter(self.rows.values())).score(windows[0])

    def score(self, window: Window) -> None:
        score_window(window, {name: row.score for name, row in self.rows.items()}, self.kept)

    def sample(self, window: Window) -> None:
        """Continue the window's first two chunks by every row that has not done so yet."""
        name = f"sampled-{window.start}"
        found = self.kept.read(name) if self.kept.has(name) else {}
        end = window.start + 2 * self.neighbours.table.chunk_len
        tokens = self.neighbours.store.tokens[window.start : end]
        for row in [row for row in self.rows if row not in found]:
            with self.rows[row].sampled() as way:
                if way is not None:
                    found[row] = self._draw(way, np.asarray(tokens).tolist())
                    self.kept.write(name, found)

    def _draw(self, way: Way, tokens: list[int]) -> dict[str, float]:
        """How many tokens were drawn, and how long it took."""
        searcher = way.searcher
        if searcher is None and way.k:
            searcher = Retriever(self.neighbours.datastore, way.k)
        sampler = Sampler(way.model, searcher, self.opened.tokenizer)
        # Greedy, and never the end of the text, so that all rows draw as many.
        choice = Choice(temperature=0.0, min_tokens=SAMPLED_TOKENS)
        request = Request(
            prompts=[Prompt(tokens)], max_tokens=SAMPLED_TOKENS, choice=choice, retrieval=bool(way.k)
        )
        started = time.perf_counter()
        sample = sampler.generate(request)
        seconds = time.perf_counter() - started
        return {"seconds": seconds, "tokens": len(sample.tokens) - len(tokens)}

    def speed(self, name: str, windows: Sequence[Window]) -> float:
        """Tokens a second that a row has drawn."""
        parts = [self.kept.read(f"sampled-{window.start}") for window in windows]
        drawn = [part[name] for part in parts if name in part]
        seconds = sum(one["seconds"] for one in drawn)
        return sum(one["tokens"] for one in drawn) / seconds if seconds else math.nan

    def cost(self, name: str) -> Cost:
        row = self.rows[name]
        num_bytes = row.num_bytes
        kind = read_row(name).kind
        if kind in ("on", "plus"):
            num_bytes += self._added_weights
        if kind in ("on", "plus", "prompt"):
            num_bytes += size_of_datastore(self.neighbours.datastore).num_bytes
        if kind == "bm25":
            # Its own index, and the text; no keys.
            num_bytes += self.neighbours.snapshot.num_tokens() * self.neighbours.store.tokens.itemsize
        return Cost(row.seconds, num_bytes, row.note)

    @cached_property
    def _added_weights(self) -> int:
        """Bytes of the weights beyond the base, or beyond the same model without retrieval."""
        own = sum(value.nbytes for value in self.opened.model.state_dict().values())
        if self.opened.run.base_id:
            return own
        config = from_dict(ModelConfig, self.opened.run.record["model"], str(self.opened.path))
        with torch.device("meta"):  # counts the weights without allocating them
            plain = make_model(config.baseline())
        return own - sum(value.nbytes for value in plain.state_dict().values())


def compare_rows(
    entries: Sequence[Entry],
    split: str = "test",
    extent: Extent | None = None,
    progress: Progress = no_progress,
) -> Compared:
    """Score the beginnings of the same documents by every row, window by window, the rows taking turns.

    What was prepared and scored before is reused, so that an interruption loses one window of one row at
    most, and rows or documents may follow later.
    """
    extent = extent or Extent()
    neighbours = entries[0].opened.neighbours(split)
    windows = _windows(neighbours, extent)
    benches: dict[str, _Bench] = {}
    for entry in entries:
        name = str(entry.opened.path)
        if name not in benches:
            benches[name] = _Bench(entry.opened, neighbours, extent)
        benches[name].add(entry.row)
    for number, entry in enumerate(entries):
        progress(number, len(entries), f"Preparing {entry.label}")
        benches[str(entry.opened.path)].rows[entry.row].prepare()
    for bench in benches.values():
        bench.warm_up(windows)
    scoring = at_step(progress, "Scoring")
    for number, window in enumerate(windows):
        scoring(number, len(windows))
        for bench in benches.values():
            bench.score(window)
    scoring(len(windows), len(windows))
    sampled = windows[: extent.sampled]
    for number, window in enumerate(sampled):
        progress(number, len(sampled), "Sampling")
        for bench in benches.values():
            bench.sample(window)
    found = {}
    for window in windows:
        kept = {name: bench.kept.read(str(window.start)) for name, bench in benches.items()}
        found[window.start] = {entry.label: kept[str(entry.opened.path)][entry.row] for entry in entries}
    lengths = entries[0].opened.tokenizer.token_lengths
    costs = {entry.label: benches[str(entry.opened.path)].cost(entry.row) for entry in entries}
    sampling = {entry.label: benches[str(entry.opened.path)].speed(entry.row, sampled) for entry in entries}
    return Compared(Rows(neighbours, lengths, found), costs, sampling)


def _windows(neighbours: Neighbours, extent: Extent) -> list[Window]:
    table = neighbours.table
    if extent.window < 2 * table.chunk_len:
        raise ConfigError(
            f"the window has {extent.window} tokens; expected two chunks of {table.chunk_len} or more, as "
            "the first reads no neighbours; lengthen it: --window"
        )
    windows = beginnings(table, extent.num_documents, extent.window)
    if not windows:
        raise DataError(
            f"no document of {table.store.artifact.path} has two chunks of {table.chunk_len} tokens, so that "
            "none of them reads neighbours; expected longer documents; add some"
        )
    return windows
