"""retro knn"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from retro.cli.console import CONSOLE, RichNarrator, parse, print_table, recipe_of
from retro.config import EvaluationConfig, KnnConfig

if TYPE_CHECKING:
    from retro.comparators.knn_lm import KnnEvaluation, MemorySize


@dataclass(frozen=True)
class Options:
    """A baseline alone, as kNN-LM over every training token, and with a continuous cache.

    Shows bits per byte, and what the memories take.
    """

    work: Annotated[Path, tyro.conf.Positional]
    """The workspace."""
    name: Annotated[str, tyro.conf.Positional]
    """The run, usually a baseline; it is used without retrieval."""
    evaluation: EvaluationConfig
    knn: Annotated[KnnConfig, tyro.conf.arg(name="")]
    recipe: str = "tiny"
    """The recipe that gives the defaults of the windows."""
    split: str = "test"
    """The split that is reported."""
    tune_on: str = "valid"
    """The split that λ, α and θ are tuned on; another than the one that is reported."""


def main(arguments: list[str]) -> None:
    evaluation = recipe_of(arguments).evaluation
    default = Options(work=tyro.MISSING, name=tyro.MISSING, evaluation=evaluation, knn=KnnConfig())
    options = parse(Options, arguments, "knn", default)
    from retro.comparators.knn_lm import size_of_datastore
    from retro.jobs.scoring import knn_lm
    from retro.workspace import Workspace

    work = Workspace(options.work)
    opened = work.run(options.name)
    with RichNarrator().progress(f"kNN-LM of {options.name}") as progress:
        result = knn_lm(opened, options.knn, options.evaluation, options.split, options.tune_on, progress)
    headings = ["", "bits per byte", "95 % interval", "saved", "", f"tuned on {options.tune_on}"]
    rows = [_row(result, mode) for mode in result.bits_per_byte]
    print_table(f"{options.name} on {options.split}", headings, rows)
    CONSOLE.print(f"The search found {result.recall:.1%} of the nearest keys.")
    sizes = {"kNN-LM": result.size}
    # kNN-LM needs no datastore, so there may be none to compare with.
    if work.datastore_path.exists():
        sizes["RETRO"] = size_of_datastore(work.datastore())
    headings = ["", "tokens", "keys", "bytes of keys", "bytes in all", "index"]
    print_table("memories", headings, [_size_row(name, size) for name, size in sizes.items()])


def _row(result: "KnnEvaluation", mode: str) -> list[str]:
    value = result.bits_per_byte[mode]
    row = [mode, f"{value.estimate:.4f}", f"{value.low:.4f} – {value.high:.4f}"]
    # The baseline alone has nothing to tune and no gain over itself.
    if mode not in result.tuned:
        return row
    gain, tuned = result.gains[mode], result.tuned[mode]
    sharpness = "θ" if mode == "cache" else "α"
    edge = ", at the edge of what was tried" if tuned.at_edge else ""
    settings = f"λ {tuned.weight:g}, {sharpness} {tuned.sharpness:.4g}{edge}"
    return [*row, f"{gain.estimate:.1%}", f"{gain.low:.1%} – {gain.high:.1%}", settings]


def _size_row(name: str, size: "MemorySize") -> list[str]:
    numbers = (size.tokens, size.keys, size.key_bytes, size.num_bytes)
    return [name, *(f"{number:,}" for number in numbers), size.index]
