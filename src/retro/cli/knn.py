"""retro knn"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from retro.cli.console import CONSOLE, RichNarrator, parse, print_table, recipe_of
from retro.config import EvaluationConfig, KnnConfig

if TYPE_CHECKING:
    from retro.comparators.knn_lm import KnnEvaluation


@dataclass(frozen=True)
class Options:
    """A baseline alone, as kNN-LM over every training token, and with a continuous cache: bits per byte, and what the memories take."""

    work: Annotated[Path, tyro.conf.Positional]
    """The workspace."""
    name: Annotated[str, tyro.conf.Positional]
    """The run, usually a baseline; it is used without retrieval."""
    evaluation: EvaluationConfig
    knn: Annotated[KnnConfig, tyro.conf.arg(name="")]
    recipe: str = "tiny"
    """The recipe that gives the defaults of the windows."""
    split: str = "test"
    tune_on: str = "valid"
    """The split that λ, α and θ are tuned on; another than the one that is reported."""


def main(arguments: list[str]) -> None:
    evaluation = recipe_of(arguments).evaluation
    options = parse(
        Options,
        arguments,
        "knn",
        Options(work=tyro.MISSING, name=tyro.MISSING, evaluation=evaluation, knn=KnnConfig()),
    )
    from retro.comparators.knn_lm import size_of_datastore
    from retro.workspace import Workspace

    work = Workspace(options.work)
    with RichNarrator().progress(f"kNN-LM of {options.name}") as told:
        result = work.knn_lm(
            options.name, options.knn, options.evaluation, options.split, options.tune_on, told
        )
    headings = ["", "bits per byte", "95 % interval", "saved", "", f"tuned on {options.tune_on}"]
    print_table(
        f"{options.name} on {options.split}", headings, [_row(result, mode) for mode in result.bits_per_byte]
    )
    CONSOLE.print(f"The search found {result.recall:.1%} of the nearest keys.")
    sizes = {"kNN-LM": result.size}
    if work.datastore_path.exists():
        sizes["RETRO"] = size_of_datastore(work.datastore())
    rows = [
        [
            name,
            *(f"{number:,}" for number in (size.tokens, size.keys, size.key_bytes, size.num_bytes)),
            size.index,
        ]
        for name, size in sizes.items()
    ]
    print_table("memories", ["", "tokens", "keys", "bytes of keys", "bytes in all", "index"], rows)


def _row(result: "KnnEvaluation", mode: str) -> list[str]:
    value = result.bits_per_byte[mode]
    row = [mode, f"{value.estimate:.4f}", f"{value.low:.4f} – {value.high:.4f}"]
    if mode not in result.tuned:
        return row
    gain, tuned = result.gains[mode], result.tuned[mode]
    edge = ", at the edge of what was tried" if tuned.at_edge else ""
    sharpness = "θ" if mode == "cache" else "α"
    return [
        *row, f"{gain.estimate:.1%}", f"{gain.low:.1%} – {gain.high:.1%}", f"λ {tuned.weight:g}, {sharpness} {tuned.sharpness:.4g}{edge}",
    ]  # fmt: skip
