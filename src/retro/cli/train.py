"""retro train"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from retro.cli.console import CONSOLE, RichNarrator, parse, recipe_of
from retro.config import ModelConfig, TrainingConfig


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
    options = parse(Options, arguments, "train", Options(work=tyro.MISSING, model=run.model, training=run.training))
    from retro.workspace import Workspace

    model_config = options.model.baseline() if options.baseline else options.model
    name = options.name or ("retro" if model_config.uses_retrieval else "baseline")
    with RichNarrator().training(f"Training {name}") as told:
        model, artifact = Workspace(options.work).train(name, model_config, options.training, told)
    CONSOLE.print(f"{artifact.path}: {model.num_parameters():,} parameters without embeddings", soft_wrap=True)
