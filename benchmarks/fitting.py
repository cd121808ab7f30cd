"""A fitted model beside what else a user could do with the same base, the same neighbours and the same text.

    python benchmarks/fitting.py score WORK RUN [ROW …] [--documents 24 [--each]] [--window 512]
    python benchmarks/fitting.py table WORK RUN [--split test] [--against off]
    python benchmarks/fitting.py speeds WORK RUN [ROW …] [--documents 3]
    python benchmarks/fitting.py curves WORK RUN [RUN …]

`score` writes what each row costs, token by token, into WORK/comparison, a file for each window; run again it
goes on, and other rows may follow later. All rows score the same windows: the beginnings of documents that
are drawn by chance, or with --each so many of every source. `table` prints bits per byte, gains with 95 %
intervals over documents, for all text, by source, and for the chunks that share at most 12.5 % with what is
read for them, and tokens a second of scoring. Gains are over the base, or over another row, on the same
documents. `speeds` scores some of the same windows once more, all rows taking turns on a machine that should
do nothing else, and prints tokens a second beside how far the bits are from those that `score` kept. `curves`
prints what runs had saved of the validation loss after so many steps.

Rows:
    off             the base
    on-K            the fitted model with K neighbours
    start-K         the same before it was trained
    prompt-K        the base with K neighbours in its prompt, read again every chunk
    often-K         the same every 16 tokens, as prompt-K-every-16
    lora            the base tuned on the training text (rank 8) for --seconds of CPU time
    knn             kNN-LM on the base, with a memory of the training tokens it can read in --seconds
    cache           the continuous cache on the base
and all others of `comparators/systems.py`. Sharpness and weight of `knn` and `cache` are chosen on validation
documents.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from retro.comparators.prepared import Ground, Row, Texts
from retro.comparators.prepared_rows import AllRows
from retro.comparators.rows import RowResult, Rows, Scorer, score_windows
from retro.retrieval.neighbours import Neighbours
from retro.scoring.bits_per_byte import score_batch
from retro.scoring.leakage import NEW, chunk_overlaps, read_overlaps
from retro.scoring.windows import Window, beginnings
from retro.scoring.wording import percent
from retro.stages.parts import ARRAYS, JSON, Parts
from retro.training.metrics import METRICS, read_metrics
from retro.workspace import OpenRun, open_run

OFTEN = 16


def untrained(model: Any, neighbours: Neighbours, k: int) -> Scorer:
    """A fitted model with pointer and heads as they were at first."""

    def score(window: Window) -> np.ndarray:
        learned = {name: value.clone() for name, value in model.state_dict().items()}
        start = type(model.pointer)(model.width, model.last_width).state_dict()
        # What the states are usually like was measured, not learned.
        first = {
            f"pointer.{name}": value for name, value in start.items() if name not in ("mean", "deviation")
        }
        if model.bias is not None:
            heads = [name for name in ("bias", "log_scale", "trust", "common") if name in learned]
            first |= {name: torch.zeros_like(learned[name]) for name in heads}
        model.load_state_dict({**learned, **first})
        try:
            return score_batch(model, neighbours.table, [window], neighbours, k)
        finally:
            model.load_state_dict(learned)  # what was learned is put back

    return score


def rows_of(options: argparse.Namespace, opened: OpenRun, kept: Parts[Any]) -> dict[str, Row]:
    """The rows that are asked for: those of the library, and two that only a fit is asked about."""
    texts = Texts(opened.neighbours("train").table, opened.neighbours("valid").table)
    prepared = Parts(kept.folder / f"prepared-{options.seconds:g}", ARRAYS)
    neighbours = opened.neighbours(options.split)
    ground = Ground(opened.model, neighbours, texts, options.window, options.seconds, prepared)
    rows = AllRows(ground)
    found: dict[str, Row] = {}
    for row in options.rows:
        kind, _, number = row.partition("-")
        if kind == "start":
            found[row] = Row(untrained(opened.model, neighbours, int(number)))
        else:
            found[row] = rows.of(f"prompt-{number}-every-{OFTEN}" if kind == "often" else row)
    return found


def score(options: argparse.Namespace, opened: OpenRun, kept: Parts[Any]) -> None:
    neighbours = opened.neighbours(options.split)
    windows = beginnings(neighbours.table, options.documents, options.window, options.each)
    rows = rows_of(options, opened, kept)
    found = [kept.read(str(window.start)) if kept.has(str(window.start)) else {} for window in windows]
    # Rows that prepare something do so before any is timed.
    for name, row in rows.items():
        if not all(name in scored for scored in found):
            row.prepare()
            print(f"{name}: {row.note}" if row.note else name, flush=True)
    with torch.no_grad():
        scorers = {name: row.score for name, row in rows.items()}
        score_windows(windows, scorers, kept, lambda done, total, *_: print(f"{done} of {total} windows"))


def table(options: argparse.Namespace, opened: OpenRun, kept: Parts[Any]) -> None:
    neighbours = opened.neighbours(options.split)
    chunks = neighbours.table
    own = chunk_overlaps(neighbours)
    read = read_overlaps(neighbours, own)
    groups = {
        "all text": np.ones(len(own), dtype=bool),
        f"chunks with r ≤ {NEW:.1%} by their own neighbours, as the paper counts": own <= NEW,
        f"chunks with r ≤ {NEW:.1%} by all that is read for them": read <= NEW,
    }
    sources = np.array([document["source"] for document in chunks.store.documents])
    if len(set(sources)) > 1:
        # Chunks lie document by document.
        by_chunk = np.repeat(sources, np.diff(chunks.first))
        groups |= {f"all text of {source}": by_chunk == source for source in sorted(set(sources))}
    rows = Rows.read(neighbours, opened.tokenizer.token_lengths, kept)
    print(f"{len(rows.found)} documents of {options.split}")
    for title, counted in groups.items():
        print(title)
        for row in rows.names:
            print(f"  {row:<10} {in_words(rows.result(row, options.against, counted), options.against)}")


def in_words(found: RowResult, against: str) -> str:
    if not found.num_chunks:
        return "none"
    gain = "" if found.row == against else percent(found.gain)
    return (
        f"{found.bits_per_byte.estimate:.4f} bits per byte, {against} {found.other:.4f}, saves {gain:<28} "
        f"{found.tokens_per_second:6,.0f} tokens/s, {found.speed:.3f} of off, "
        f"{found.num_chunks} chunks of {found.num_documents} documents"
    )


def speeds(options: argparse.Namespace, opened: OpenRun, kept: Parts[Any]) -> None:
    neighbours = opened.neighbours(options.split)
    windows = beginnings(neighbours.table, options.documents, options.window, options.each)
    rows = rows_of(options, opened, kept)
    seconds: dict[str, list[float]] = {row: [] for row in rows}
    apart: dict[str, float] = {}
    for row in rows.values():  # what is prepared or read for the first time is not timed
        row.score(windows[0])
    with torch.no_grad():
        for window in windows:
            before = kept.read(str(window.start)) if kept.has(str(window.start)) else {}
            for name, row in rows.items():
                started = time.perf_counter()
                bits = row.score(window)
                seconds[name].append(time.perf_counter() - started)
                if name in before:
                    difference = float(np.abs(bits - np.array(before[name]["bits"])).max())
                    apart[name] = max(apart.get(name, 0.0), difference)
    num_tokens = sum(window.num_tokens for window in windows)
    print(f"{len(windows)} documents of {options.split}, {torch.get_num_threads()} threads")
    for name, taken in seconds.items():
        ratios = np.array(seconds[next(iter(rows))]) / np.array(taken)
        kept_before = f"{apart[name]:.1e} bits from what was kept" if name in apart else "not kept before"
        print(
            f"  {name:<10} {num_tokens / sum(taken):6,.0f} tokens/s, "
            f"{np.median(ratios):.3f} of {options.rows[0]} ({ratios.min():.3f} to {ratios.max():.3f}), "
            f"{kept_before}"
        )


def curves(work: Path, runs: list[str]) -> None:
    """A row for each run, a column for each step that was validated."""
    for run in runs:
        rows = [row for row in read_metrics(open_run(work, run).path / METRICS) if "valid_on" in row]
        points = [
            f"{row['step']}: {1 - row['valid_on'] / row['valid_off']:.1%} ({row['valid_on']:.3f})"
            for row in rows
        ]
        print(f"{run:<12} off {rows[0]['valid_off']:.3f}  " + "  ".join(points))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", choices=("score", "table", "speeds", "curves"))
    parser.add_argument("work", type=Path)
    parser.add_argument("run")
    parser.add_argument("rows", nargs="*", help="of the table, or more runs for their curves")
    parser.add_argument("--split", default="test")
    parser.add_argument("--documents", type=int, default=24)
    parser.add_argument("--each", action="store_true", help="so many documents of every source")
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument(
        "--seconds",
        type=float,
        default=360.0,
        help="CPU time that lora and knn may take to prepare: about that of a fit",
    )
    parser.add_argument("--against", default="off", help="the row that gains are over")
    options = parser.parse_args()
    if options.task == "curves":
        curves(options.work, [options.run, *options.rows])
        return
    options.rows = options.rows or ["off", "on-1", "on-2", "prompt-1", "prompt-2"]
    opened = open_run(options.work, options.run)
    folder = options.work / "comparison" / f"{options.run}-{options.split}-{options.window}"
    {"score": score, "table": table, "speeds": speeds}[options.task](options, opened, Parts(folder, JSON))


if __name__ == "__main__":
    main()
