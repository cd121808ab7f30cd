"""retro harness"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from retro.cli.console import CONSOLE, file_for, parse, print_table
from retro.errors import ConfigError


@dataclass(frozen=True)
class Options:
    """Tasks of lm-evaluation-harness on a run, once for each number of neighbours."""

    place: Annotated[Path, tyro.conf.Positional]
    """The workspace, a run's folder, or the name of a model that comes with retro."""
    name: Annotated[str, tyro.conf.Positional] = ""
    """The run: its name in the workspace, retro if none is given, or its folder."""
    tasks: tuple[str, ...] = ("retro_lambada",)
    """Names of the harness, most of which need the network, or retro_lambada, which needs: retro fetch
    lambada."""
    num_neighbours: tuple[int, ...] = (0, 2)
    """0 is RETRO[OFF], or a baseline."""
    window: int = 2048
    """Tokens that the model sees at once."""
    batch_size: int = 8
    """Items that are scored together."""
    limit: int | None = None
    """Use only this many items of each task, from the first on."""
    datastore: Path | None = None
    """A datastore of the run's tokenizer, or a workspace that has one, in place of the
    workspace's own."""
    out: Path | None = None
    """A file for the harness's results as JSON."""


def check(options: Options) -> None:
    """Refuse what the harness would find out only after it has loaded everything."""
    if not options.tasks:
        raise ConfigError("no task was named; expected at least one, such as --tasks retro_lambada")
    if min(options.num_neighbours, default=-1) < 0:
        raise ConfigError("num_neighbours must be 0 or more for each number; expected at least one number")
    if options.limit is not None and options.limit < 1:
        raise ConfigError(f"limit is {options.limit}; expected at least 1 item of each task")


def main(arguments: list[str]) -> None:
    options = parse(Options, arguments, "harness")
    check(options)
    from retro.harness import RetroLM, evaluate_with_harness

    # Checked before hours of scoring.
    out = file_for(options.out, "--out") if options.out else None
    results = {}
    for k in options.num_neighbours:
        model = RetroLM(
            options.place,
            options.name or "retro",
            k,
            options.window,
            options.batch_size,
            datastore=options.datastore,
        )
        results[k] = evaluate_with_harness(model, options.tasks, options.limit)["results"]
    rows = [row for k, found in results.items() for row in _rows(k, found)]
    headings = ["task", "metric", "k", "value", "standard error"]
    print_table(f"{options.name or options.place.name}, by lm-evaluation-harness", headings, rows)
    if out:
        out.write_text(json.dumps({str(k): found for k, found in results.items()}, indent=2, default=str))
        CONSOLE.print(f"{out} holds the results", soft_wrap=True)


def _rows(k: int, results: dict[str, dict[str, Any]]) -> list[list[str]]:
    """One row per metric. The harness writes `acc,none`, with its error under `acc_stderr,none`."""
    rows = []
    for task, metrics in results.items():
        for name, value in metrics.items():
            if isinstance(value, float) and "_stderr," not in name:
                # Not every metric has an error, and some have the text N/A.
                error = metrics.get(name.replace(",", "_stderr,"))
                shown = f"{error:.4f}" if isinstance(error, float) else "–"
                rows.append([task, name.removesuffix(",none"), str(k), f"{value:.4f}", shown])
    return rows
