"""retro harness"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from retro.cli.console import CONSOLE, parse, print_table


@dataclass(frozen=True)
class Options:
    """Tasks of lm-evaluation-harness on a run of a workspace, once for each number of neighbours."""

    work: Annotated[Path, tyro.conf.Positional]
    """The workspace."""
    name: Annotated[str, tyro.conf.Positional]
    """The run."""
    tasks: tuple[str, ...] = ("retro_lambada",)
    """Names of the harness, most of which need the network, or retro_lambada, which needs: retro fetch lambada."""
    num_neighbours: tuple[int, ...] = (0, 2)
    """0 is RETRO[OFF], or a baseline."""
    window: int = 2048
    """Tokens that the model sees at once."""
    batch_size: int = 8
    limit: int | None = None
    """Only the first so many items of each task."""
    out: Path | None = None
    """A file for the harness's results as JSON."""


def main(arguments: list[str]) -> None:
    options = parse(Options, arguments, "harness")
    from retro.harness import RetroLM, evaluate_with_harness

    results = {}
    for k in options.num_neighbours:
        model = RetroLM(options.work, options.name, k, options.window, options.batch_size)
        results[k] = evaluate_with_harness(model, options.tasks, options.limit)
    rows = [
        [
            task,
            name.removesuffix(",none"),
            str(k),
            f"{value:.4f}",
            f"{error:.4f}" if isinstance(error, float) else "–",
        ]
        for k, found in results.items()
        for task, metrics in found["results"].items()
        for name, value in metrics.items()
        if isinstance(value, float) and "_stderr," not in name
        for error in [metrics.get(name.replace(",", "_stderr,"))]
    ]
    print_table(
        f"{options.name}, by lm-evaluation-harness", ["task", "metric", "k", "value", "standard error"], rows
    )
    if options.out:
        options.out.write_text(
            json.dumps({str(k): found["results"] for k, found in results.items()}, indent=2, default=str)
        )
        CONSOLE.print(f"{options.out} holds the results", soft_wrap=True)
