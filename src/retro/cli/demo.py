"""retro demo"""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from retro.cli.console import CONSOLE, RichNarrator, parse, print_table
from retro.cli.train import say
from retro.recipes import get

if TYPE_CHECKING:
    from collections.abc import Mapping

    from retro.road import RoadResult
    from retro.showing.report import Shown

FITTED = ("demo", "demo")
FROM_SCRATCH = ("demo-from-scratch", "tiny")
"""The folder and the recipe of each demo."""


@dataclass(frozen=True)
class Options:
    """Everything on built-in defaults: a manual → datastore → SmolLM2 RETROfitted → report.html.

    Its answers are scored and sampled with the manual's older editions in the memory, and once more with a
    source taken out. Run again, it reuses what is finished.
    """

    from_scratch: bool = False
    """Train RETRO and its baseline on licence texts instead: the paper's model, a million parameters."""
    out: Path | None = None
    """Where everything goes; demo, or demo-from-scratch."""
    recipe: str = ""
    """The recipe; demo, or tiny from scratch."""


def main(arguments: list[str]) -> None:
    options = parse(Options, arguments, "demo")
    folder, recipe = FROM_SCRATCH if options.from_scratch else FITTED
    out = options.out if options.out is not None else Path(folder)
    run = get(options.recipe or recipe)
    if options.from_scratch:
        from retro.demo import run_demo

        print_result(run_demo(out, run, RichNarrator(), say))
        CONSOLE.print(f'\nNext: retro sample {out} "Permission is hereby granted" --both', soft_wrap=True)
        return
    from retro.demo import run_fitted_demo

    print_shown(run_fitted_demo(out, run, RichNarrator(), say), out)


def print_result(result: "RoadResult") -> None:
    """Show samples, scores, the result in words, times and places."""
    from retro.pages.report import RESULT_HEADINGS, summary
    from retro.pages.terminal import render_sample

    CONSOLE.print(render_sample(result.off, "retrieval off"))
    CONSOLE.print(render_sample(result.on, "retrieval on, the same prompt and seed"))
    print_table("held-out documents", RESULT_HEADINGS, result.rows())
    CONSOLE.print((result.verdict or summary(result.comparison)) + "\n")
    _print_times(result.seconds)
    _print_places(result.folder, result.report)


def print_shown(shown: "Shown", out: Path, run: str = "") -> None:
    """Show samples, scores, what was found, times, places, and how to go on; `run` is the name of a run from
    elsewhere."""
    from retro.pages.fitted_report import HEADINGS, findings, row_cells
    from retro.pages.terminal import render_sample

    for column in shown.report.columns:
        CONSOLE.print(render_sample(column.chunks, column.heading))
    print_table(shown.report.title, HEADINGS, row_cells(shown.report))
    for sentence in findings(shown.report):
        CONSOLE.print(sentence, soft_wrap=True, highlight=False)
    CONSOLE.print()
    _print_times(shown.report.seconds)
    _print_places(shown.folder, shown.page)
    named = ["--name", run] if run else []
    left_out = ["--exclude", shown.document] if shown.document else []
    sample = [
        "retro",
        "sample",
        str(out),
        *named,
        "--file",
        str(shown.prompt),
        *left_out,
        "--temperature",
        "0",
    ]
    for command in (["retro", "serve", str(out), *named], sample):
        CONSOLE.print(f"Next: {shlex.join(command)}", soft_wrap=True, markup=False, highlight=False)


def _print_times(seconds: "Mapping[str, float]") -> None:
    rows = [[name, f"{spent:.0f} s"] for name, spent in seconds.items()]
    print_table("time", ["stage", "seconds"], [*rows, ["in all", f"{sum(seconds.values()):.0f} s"]])


def _print_places(folder: Path, report: Path) -> None:
    places = {
        "report": report,
        "runs": folder / "runs",
        "datastore": folder / "datastore",
        "tokens": folder / "tokens",
    }
    for name, path in places.items():
        if path.exists():
            CONSOLE.print(f"{name:>10}  {path.resolve()}", soft_wrap=True)
