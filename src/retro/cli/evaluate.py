"""retro evaluate"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from retro.cli.console import RichNarrator, parse, print_table, recipe_of
from retro.config import EvaluationConfig


@dataclass(frozen=True)
class Options:
    """Bits per byte of a run over whole documents, without retrieval and with each number of neighbours."""

    work: Annotated[Path, tyro.conf.Positional]
    """The workspace."""
    name: Annotated[str, tyro.conf.Positional]
    """The run."""
    evaluation: Annotated[EvaluationConfig, tyro.conf.arg(name="")]
    recipe: str = "tiny"
    """The recipe that gives the defaults."""
    split: str = "test"


def main(arguments: list[str]) -> None:
    default = Options(work=tyro.MISSING, name=tyro.MISSING, evaluation=recipe_of(arguments).evaluation)
    options = parse(Options, arguments, "evaluate", default)
    from retro.workspace import Workspace

    with RichNarrator().scoring(f"Evaluating {options.name}") as told:
        evaluation = Workspace(options.work).evaluate(options.name, options.split, options.evaluation, told)
    rows = [
        [mode, f"{value['estimate']:.4f}", f"{value['low']:.4f} – {value['high']:.4f}"]
        for mode, value in evaluation.results["modes"].items()
    ]
    print_table(f"{options.name} on {options.split}", ["retrieval", "bits per byte", "95 % interval"], rows)
    sources = evaluation.results["sources"]
    if len(sources) > 1:
        rows = [[source, *(f"{modes[mode]['estimate']:.4f}" for mode in evaluation.modes)] for source, modes in sources.items()]
        print_table("bits per byte by source", ["source", *evaluation.modes], rows)
