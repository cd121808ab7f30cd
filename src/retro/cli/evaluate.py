"""retro evaluate"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from retro.cli.console import RichNarrator, parse, print_table, recipe_of
from retro.config import EvaluationConfig

if TYPE_CHECKING:
    from retro.evaluation.evaluate import Evaluation


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
    _print_modes(f"{options.name} on {options.split}", evaluation)
    sources = evaluation.results["sources"]
    if len(sources) > 1:
        rows = [
            [source, *(f"{modes[mode]['bits_per_byte']['estimate']:.4f}" for mode in evaluation.modes)] for source, modes in sources.items()
        ]
        print_table("bits per byte by source", ["source", *evaluation.modes], rows)


def _print_modes(title: str, evaluation: "Evaluation") -> None:
    rows = []
    for mode in evaluation.modes:
        found = evaluation.metrics(mode)
        value = found.bits_per_byte
        perplexities = (found.perplexity_per_token.estimate, found.perplexity_per_word.estimate)
        rows.append([mode, f"{value.estimate:.4f}", f"{value.low:.4f} – {value.high:.4f}", *(f"{number:.2f}" for number in perplexities)])
    print_table(title, ["retrieval", "bits per byte", "95 % interval", "perplexity per token", "per word"], rows)
    by_mode = [[point for point in evaluation.filtered(mode) if point.is_eighth] for mode in evaluation.modes]
    rows = [
        [f"{points[0].alpha:.1%}", f"{points[0].share_of_bytes:.1%}", *(f"{point.bits_per_byte.estimate:.4f}" for point in points)]
        for points in zip(*by_mode, strict=True)
    ]
    print_table("bits per byte of chunks that share at most α with the datastore", ["α", "of the text", *evaluation.modes], rows)
