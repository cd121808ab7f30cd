"""retro fit"""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

import tyro

from retro.cli.console import RichNarrator, parse, recipe_of
from retro.cli.train import tell
from retro.config import RetrievalConfig, TrainingConfig


@dataclass(frozen=True)
class Options:
    """RETROfit a trained baseline: add retrieval to it and train that alone. Run again, it goes on from the last checkpoint."""

    work: Annotated[Path, tyro.conf.Positional]
    """The workspace."""
    fit: RetrievalConfig
    training: Annotated[TrainingConfig, tyro.conf.arg(name="")]
    baseline: str = "baseline"
    """A run of the workspace, or the folder of a model with the same tokenizer."""
    recipe: str = "tiny"
    """The recipe that gives the defaults."""
    name: str = "retrofit"
    """The run's name."""
    task: Literal["lm", "qa"] = "lm"
    """`lm` fits retrieval to the corpus; `qa` fine-tunes on questions and has options of its own: retro fit --task qa --help."""


def main(arguments: list[str]) -> None:
    if "--task=qa" in arguments or ("--task", "qa") in pairwise(arguments):
        from retro.cli import fit_questions

        fit_questions.main(arguments)
        return
    run = recipe_of(arguments)
    options = parse(
        Options,
        arguments,
        "fit",
        Options(work=tyro.MISSING, fit=run.model.retrieval or RetrievalConfig(), training=run.training),
    )
    from retro.workspace import Workspace

    with RichNarrator().progress(f"Fitting {options.name}") as told:
        _, artifact = Workspace(options.work).fit(
            options.name, options.baseline, options.fit, options.training, told
        )
    tell(artifact)
