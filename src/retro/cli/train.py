"""retro train"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from retro.cli.console import CONSOLE, RichNarrator, begin_anew, parse, recipe_of, warn
from retro.config import ModelConfig, TrainingConfig
from retro.errors import ConfigError
from retro.stages.hints import quoted
from retro.stages.stage import Artifact

if TYPE_CHECKING:
    from retro.workspace import Workspace


@dataclass(frozen=True)
class Options:
    """Train RETRO on a workspace, or its baseline. Run again, it goes on from the last checkpoint.

    With --extend, a finished run goes on for some steps more.
    """

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
    redo: bool = False
    """Begin anew: remove the run of this name, finished or begun, which is named first. At a terminal it is
    asked before a run is removed."""
    extend: int = 0
    """Go on with a finished run for so many steps more, with the settings it has. Its learning rate follows
    the schedule it was begun with, and stays at the minimum when that has ended."""


def main(arguments: list[str]) -> None:
    recipe = recipe_of(arguments)
    default = Options(work=tyro.MISSING, model=recipe.model, training=recipe.training)
    options = parse(Options, arguments, "train", default)
    from retro.jobs.training import extend_run, extended, train_run
    from retro.training.announcement import announced, epoch_tokens
    from retro.workspace import Workspace

    # A baseline has the same decoder, so that the two can be compared.
    model = options.model.baseline() if options.baseline else options.model
    name = options.name or ("retro" if model.uses_retrieval else "baseline")
    work = Workspace(options.work)
    if options.extend and (options.model, options.training) != (recipe.model, recipe.training):
        raise ConfigError(
            "--extend was given with other settings; expected it alone, as a run goes on with the settings "
            f"it has; run: retro train {quoted(options.work)} --name {name} --extend {options.extend}"
        )
    if options.redo and options.extend:
        raise ConfigError("--redo and --extend were both given; expected one: anew, or on from the end")
    if options.redo:
        redo_run(work, name)
    with RichNarrator().progress(f"Training {name}") as progress:
        if options.extend:
            opened = work.run(name)
            warn(*opened.notes())  # other tokens than before are trained on, and that is said
            chunk_len = opened.model.facts.chunk_len
            training = extended(work, name, options.extend)
            line = announced(progress, say, training, lambda: epoch_tokens(work.corpus().train, chunk_len))
            artifact = extend_run(work, name, options.extend, line)
        else:
            line = announced(
                progress, say, options.training, lambda: epoch_tokens(work.corpus().train, model.chunk_len)
            )
            artifact = train_run(work, name, model, options.training, line)
    print_run(artifact)


def say(line: str) -> None:
    """Print a line, above the bar if there is one."""
    CONSOLE.print(line, soft_wrap=True, highlight=False)


def redo_run(work: "Workspace", name: str) -> None:
    """Remove a run, finished or begun; a user at a terminal is asked."""
    from retro.stages.redo import removal_of
    from retro.training.checkpoints import checkpoint_of

    path = work.run_path(name)
    evaluations = sorted((work.path / "evaluations" / name).glob("*"))
    begin_anew(removal_of([path], [checkpoint_of(path)], evaluations), asks=True)


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
