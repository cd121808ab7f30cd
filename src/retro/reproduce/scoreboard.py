"""The systems that the paper names, as far as there are rows for them: the same documents and neighbours, and
what each costs."""

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from retro.comparators.rows import CHANGED, OFF, RowResult
from retro.comparators.systems import ELSEWHERE, read_row, system_of
from retro.jobs.comparing import SAMPLED_TOKENS, Compared, Entry, Extent, compare_rows
from retro.pages.plots import Point, point_plot
from retro.reproduce.result import Cell, Figure, Findings, Table
from retro.reproduce.scales import Scale
from retro.scoring.comparison import BUCKETS, bucket_label
from retro.scoring.leakage import chunk_overlaps, read_overlaps
from retro.scoring.wording import part, percent
from retro.study import Study

RUN = "retro"
RETRO_OFF = "RETRO[OFF]"
SAMPLED = 3
"""Documents that are continued to tell how fast each row draws tokens."""
COLOURS = {"off": "baseline", "on": "on", "plus": "on", "prompt": "fit", "bm25": "fit"}
"""Of the points, by the kind of row; all others have one of their own."""


def table(study: Study, scale: Scale) -> Findings:
    """Rows of a fitted base, or of a baseline and a RETRO of our own, whichever the study has."""
    entries = _entries(study)
    extent = Extent(scale.compared_documents, study.run.evaluation.window, _budget(study), SAMPLED)
    with study.narrator.progress("Systems beside each other") as progress:
        compared = compare_rows(entries, extent=extent, progress=progress)
    lines = [_Line(entry, compared, _earlier(study, entry)) for entry in entries]
    tables = [_bits(lines), _costs(lines), _by_overlap(lines, compared), _prepared(lines), _systems(entries)]
    # The paper makes no claim about costs.
    return Findings(tables, _figures(lines, len(compared.rows.found)), [])


def _entries(study: Study) -> list[Entry]:
    """The rows, with the run of each: what reads neighbours is a RETRO, and all else its baseline."""
    k = study.run.training.num_neighbours
    stride = max(1, study.work.datastore().chunk_len // 4)
    retrieving = [f"on-{k}", f"plus-{k}"]
    others = [f"prompt-{k}", f"prompt-1-every-{stride}", f"bm25-{k}", "lora", "knn", "spalm", "cache"]
    if importlib.util.find_spec("bm25s") is None:
        others.remove(f"bm25-{k}")
    if study.is_fitted:
        # A base is what it was without neighbours: one run has all rows.
        study.fit_base(RUN)
        fitted = study.opened(RUN)
        return [Entry(row, fitted, row) for row in (OFF, *retrieving, *others)]
    study.train("baseline")
    study.train(RUN)
    baseline, retro = study.opened("baseline"), study.opened(RUN)
    return [
        Entry(OFF, baseline, OFF),
        Entry(RETRO_OFF, retro, OFF),
        *(Entry(row, retro, row) for row in retrieving),
        *(Entry(row, baseline, row) for row in others),
    ]


def _trained(study: Study) -> float:
    """Seconds that learning to read neighbours took; NaN if this study did not do it."""
    seconds = study.clock.seconds
    return seconds.get(f"fit {RUN}", seconds.get(f"train {RUN}", np.nan))


def _budget(study: Study) -> float:
    """What other systems may prepare: as long as it took to learn to read neighbours."""
    seconds = _trained(study)
    return Extent.seconds if np.isnan(seconds) else max(1.0, seconds)


def _earlier(study: Study, entry: Entry) -> float:
    """Seconds that went into a row before it was compared: those of the datastore, and of a training."""
    kind = read_row(entry.row).kind
    seconds = 0.0
    if kind in ("on", "plus", "prompt"):
        seconds += study.clock.seconds.get("datastore", np.nan) + study.clock.seconds.get("memory", 0.0)
    if kind in ("on", "plus"):
        seconds += _trained(study)
    return seconds


@dataclass(frozen=True)
class _Line:
    """A row with what it brought and what it cost."""

    entry: Entry
    compared: Compared
    earlier: float

    @property
    def label(self) -> str:
        return self.entry.label

    @property
    def result(self) -> RowResult:
        return self.compared.rows.result(self.label)

    @property
    def num_bytes(self) -> int:
        return self.compared.costs[self.label].num_bytes

    @property
    def drawn(self) -> float | None:
        """Tokens a second; None if the row only scores."""
        speed = self.compared.sampling[self.label]
        return None if np.isnan(speed) else speed

    @property
    def seconds(self) -> float | None:
        seconds = self.earlier + self.compared.costs[self.label].seconds
        return None if np.isnan(seconds) else seconds

    def saved(self, counted: np.ndarray | None = None) -> str:
        """What it saves of the bits without retrieval; empty where there is nothing to compare."""
        found = self.compared.rows.result(self.label, counted=counted)
        return "" if self.label == OFF or not found.num_chunks else percent(found.gain)


def _bits(lines: Sequence[_Line]) -> Table:
    rows: list[list[Cell]] = []
    for line in lines:
        helped, hurt = line.compared.rows.changed(line.label)
        changed: list[Cell] = ["", ""] if line.label == OFF else [part(helped), part(hurt)]
        rows.append([line.label, line.result.bits_per_byte, line.saved(), *changed])
    title = f"bits, and the part of the tokens that cost at least {CHANGED} bits less or more"
    return Table(title, ["row", "bits per byte", "saved of off", "helped", "hurt"], rows)


def _costs(lines: Sequence[_Line]) -> Table:
    rows: list[list[Cell]] = [
        [
            line.label,
            line.result.tokens_per_second,
            line.result.speed,
            line.drawn,
            line.num_bytes / 1e6,
            line.seconds,
        ]
        for line in lines
    ]
    headings = ["row", "scored a second", "of off's", "drawn a second", "MB", "seconds"]
    title = (
        f"costs: tokens a second in scoring, and in drawing {SAMPLED_TOKENS} behind two chunks, MB beyond "
        "the model, seconds of preparation"
    )
    return Table(title, headings, rows)


def _by_overlap(lines: Sequence[_Line], compared: Compared) -> Table:
    """By how much of a chunk stands in what is read for it, or in its own neighbours."""
    neighbours = compared.rows.neighbours
    overlaps = read_overlaps(neighbours, chunk_overlaps(neighbours))
    buckets = {
        bucket_label(low, high): (overlaps <= high) & ((overlaps > low) | (low == 0.0))
        for low, high in pairwise(BUCKETS)
    }
    rows: list[list[Cell]] = [
        ["chunks", *(compared.rows.result(OFF, counted=inside).num_chunks for inside in buckets.values())]
    ]
    rows += [[line.label, *(line.saved(inside) for inside in buckets.values())] for line in lines[1:]]
    return Table("saved of off, by overlap r of the chunks", ["row", *buckets], rows)


def _prepared(lines: Sequence[_Line]) -> Table:
    notes = {line.label: line.compared.costs[line.label].note for line in lines}
    rows: list[list[Cell]] = [[label, note] for label, note in notes.items() if note]
    return Table("what rows prepared, with training text and validation documents", ["row", "prepared"], rows)


def _systems(entries: Sequence[Entry]) -> Table:
    rows: list[list[Cell]] = []
    for entry in entries:
        system = system_of(entry.row)
        stands_for = "RETRO without neighbours" if entry.label == RETRO_OFF else system.stands_for
        rows.append([entry.label, stands_for, system.does, system.differs, system.forgetting])
    rows += [["", name, "", reason, ""] for name, reason in ELSEWHERE.items()]
    headings = ["row", "stands for", "what it does", "not reproduced", "a document must be forgotten"]
    return Table("what each row stands for", headings, rows)


def _figures(lines: Sequence[_Line], num_documents: int) -> list[Figure]:
    where = f"on the beginnings of {num_documents} documents, 95 % intervals over documents"
    speed = [_point(line, 1000.0 / line.result.tokens_per_second) for line in lines]
    held = [_point(line, line.num_bytes / 1e6) for line in lines if line.num_bytes]
    return [
        Figure(
            "time",
            f"Bits per byte by the time that scoring takes, {where}.",
            point_plot(speed, "milliseconds to score a token", "bits per byte"),
        ),
        Figure(
            "memory",
            f"Bits per byte by what a row holds beyond the model, {where}; without those that hold nothing.",
            point_plot(held, "MB beyond the model", "bits per byte"),
        ),
    ]


def _point(line: _Line, x: float) -> Point:
    bits = line.result.bits_per_byte
    colour = "off" if line.label == RETRO_OFF else COLOURS.get(read_row(line.entry.row).kind, "other")
    return Point(line.label, x, bits.estimate, bits.low, bits.high, colour)
