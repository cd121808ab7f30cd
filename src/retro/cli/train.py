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
    run = recipe_of(arguments)
    options = parse(
        Options, arguments, "train", Options(work=tyro.MISSING, model=run.model, training=run.training)
    )
    from retro.workspace import Workspace

    model_config = options.model.baseline() if options.baseline else options.model
    name = options.name or ("retro" if model_config.uses_retrieval else "baseline")
    with RichNarrator().progress(f"Training {name}") as told:
        _, artifact = Workspace(options.work).train(name, model_config, options.training, told)
    tell(artifact)


def tell(artifact: Artifact) -> None:
    """What came of a run: its size, and what it has read of each source where it sampled a mixture."""
    counts = artifact.counts
    line = f"{artifact.path}: {counts['parameters']:,} parameters without embeddings, {counts['trained']:,} trained, {counts['precision']}"
    CONSOLE.print(line, soft_wrap=True)
    if "mixture" in counts:
        CONSOLE.print(
            "read " + ", ".join(f"{source} {share:.1%}" for source, share in counts["mixture"].items()),
            soft_wrap=True,
        )
