"""retro build"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from retro.cli.console import CONSOLE, RichNarrator, parse, recipe_of
from retro.config import DatastoreConfig


@dataclass(frozen=True)
class Options:
    """Embed and index the training chunks of a workspace, and of other token stores if any are named."""

    work: Annotated[Path, tyro.conf.Positional]
    """The workspace that `retro ingest` made."""
    also: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Folders of other token stores, cut by the same tokenizer."""
    datastore: Annotated[DatastoreConfig, tyro.conf.arg(name="")]
    workers: int = 0
    """Processes that embed; 0: one per core."""
    recipe: str = "tiny"
    """The recipe that gives the defaults."""


def main(arguments: list[str]) -> None:
    default = Options(work=tyro.MISSING, also=(), datastore=recipe_of(arguments).datastore)
    options = parse(Options, arguments, "build", default)
    # Imported after parsing, so that --help does not wait for torch.
    from retro.jobs.retrieval import build
    from retro.retrieval.datastore.info import describe
    from retro.stages.executor import LocalExecutor
    from retro.workspace import Workspace

    work = Workspace(options.work)
    with RichNarrator().progress("Embedding the datastore's chunks") as progress:
        datastore = build(work, options.datastore, options.also, progress, LocalExecutor(options.workers))
    for name, value in describe(datastore).facts:
        CONSOLE.print(f"{name:>14}  {value}", soft_wrap=True)
    CONSOLE.print(f"{datastore.path} is ready; retro db info {options.work} shows more", soft_wrap=True)
