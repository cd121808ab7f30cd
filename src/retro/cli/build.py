"""retro build"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from retro.cli.console import CONSOLE, RichNarrator, parse, recipe_of
from retro.config import DatastoreConfig


@dataclass(frozen=True)
class Options:
    """Embed and index the training chunks of a workspace."""

    work: Annotated[Path, tyro.conf.Positional]
    """The workspace that `retro ingest` made."""
    datastore: Annotated[DatastoreConfig, tyro.conf.arg(name="")]
    recipe: str = "tiny"
    """The recipe that gives the defaults."""


def main(arguments: list[str]) -> None:
    options = parse(Options, arguments, "build", Options(work=tyro.MISSING, datastore=recipe_of(arguments).datastore))
    from retro.workspace import Workspace

    with RichNarrator().counting("Embedding the datastore's chunks") as told:
        datastore = Workspace(options.work).build(options.datastore, told)
    counts = datastore.artifact.counts
    CONSOLE.print(
        f"{datastore.artifact.path}: {counts['keys']:,} keys of width {counts['width']}, {counts['index']} index, "
        f"recall@10 {counts['recall_at_10']:.3f}, {counts['empty_chunks']} chunks without text left out",
        soft_wrap=True,
    )
