"""retro train"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from retro.cli.console import CONSOLE, RichNarrator, parse, recipe_of
from retro.config import ModelConfig, TrainingConfig
from retro.stages.stage import Artifact


@dataclass(frozen=True)
class Options:
    """Train RETRO on a workspace, or its baseline. Run again, it goes on from the last checkpoint."""

    work: Annotated[Path, tyro.conf.Positional]
    """The workspace."""
    model: ModelConfig
    training: Annotated[TrainingConfig, tyro.conf.arg(name="")]
    recipe: str = "tiny"
    """The recipe that gives the defaults."""
    baseline: bool = False
    """Train the same decoder without retrieval."""
    name: str = ""
    """The run's name; retro or baseline if none is given."""


def main(arguments: list[str]) -> None:
    recipe = recipe_of(arguments)
    default = Options(work=tyro.MISSING, model=recipe.model, training=recipe.training)
    options = parse(Options, arguments, "train", default)
    from retro.jobs.training import train_run
    from retro.workspace import Workspace

    # A baseline has the same decoder, so that the two can be compared.
    model = options.model.baseline() if options.baseline else options.model
    name = options.name or ("retro" if model.uses_retrieval else "baseline")
    with RichNarrator().progress(f"Training {name}") as progress:
        artifact = train_run(Workspace(options.work), name, model, options.training, progress)
    print_run(artifact)


def print_run(artifact: Artifact) -> None:
    """Show a finished run: its size, and each source's share if it sampled a mixture."""
    counts = artifact.counts
    CONSOLE.print(
        f"{artifact.path}: {counts['parameters']:,} parameters without embeddings, "
        f"{counts['trained']:,} trained, {counts['precision']}",
        soft_wrap=True,
    )
    if "mixture" in counts:
        shares = ", ".join(f"{source} {share:.1%}" for source, share in counts["mixture"].items())
        CONSOLE.print(f"read {shares}", soft_wrap=True)
