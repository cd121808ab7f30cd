"""retro demo"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from retro.cli.console import CONSOLE, RichNarrator, parse, print_table
from retro.cli.train import say
from retro.recipes import get

if TYPE_CHECKING:
    from retro.road import RoadResult


@dataclass(frozen=True)
class Options:
    """Everything on built-in defaults: licence texts → datastore → baseline and RETRO → report.html.

    Run again, it reuses what is finished.
    """

    out: Path = Path("demo")
    """Where everything goes."""
    recipe: str = "tiny"


def main(arguments: list[str]) -> None:
    options = parse(Options, arguments, "demo")
    from retro.demo import run_demo

    result = run_demo(options.out, get(options.recipe), RichNarrator(), say)
    print_result(result)
    CONSOLE.print(f'\nNext: retro sample {options.out} "Permission is hereby granted" --both', soft_wrap=True)


def print_result(result: "RoadResult") -> None:
    """Show samples, scores, the result in words, times and places."""
    from retro.pages.report import RESULT_HEADINGS, summary
    from retro.pages.terminal import render_sample

    CONSOLE.print(render_sample(result.off, "retrieval off"))
    CONSOLE.print(render_sample(result.on, "retrieval on, the same prompt and seed"))
    print_table("held-out documents", RESULT_HEADINGS, result.rows())
    CONSOLE.print((result.verdict or summary(result.comparison)) + "\n")
    rows = [[name, f"{seconds:.0f} s"] for name, seconds in result.seconds.items()]
    print_table("time", ["stage", "seconds"], [*rows, ["in all", f"{sum(result.seconds.values()):.0f} s"]])
    places = {
        "report": result.report,
        "runs": result.folder / "runs",
        "datastore": result.folder / "datastore",
        "tokens": result.folder / "tokens",
    }
    for name, path in places.items():
        CONSOLE.print(f"{name:>10}  {path.resolve()}", soft_wrap=True)
