"""retro build"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from retro.cli.console import CONSOLE, RichNarrator, begin_anew, parse, recipe_of
from retro.config import DatastoreConfig


@dataclass(frozen=True)
class Options:
    """Embed and index the training chunks of a workspace, and of other token stores if any are named."""

    work: Annotated[Path, tyro.conf.Positional]
    """The workspace that `retro ingest` made."""
    also: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Folders of other token stores, cut by the same tokenizer."""
    datastore: Annotated[DatastoreConfig, tyro.conf.arg(name="")]
    executor: Literal["local", "ray"] = "local"
    """Where chunks are embedded and the codes of an index are made: by processes of this
    machine, or by tasks of a Ray cluster, which RAY_ADDRESS may name."""
    workers: int = 0
    """Processes or tasks that embed; 0: one per core."""
    recipe: str = "tiny"
    """The recipe that gives the defaults."""
    redo: bool = False
    """Begin anew: remove the datastore of the workspace, with what was added to it since, and the neighbours
    that were found in it, all of which are named first. Runs stay."""


def main(arguments: list[str]) -> None:
    default = Options(work=tyro.MISSING, also=(), datastore=recipe_of(arguments).datastore)
    options = parse(Options, arguments, "build", default)
    # Imported after parsing, so that --help does not wait for torch.
    from retro.corpus.tokens import TokenStore
    from retro.jobs.retrieval import build, neighbours_paths
    from retro.retrieval.datastore.build import expect_buildable, removal
    from retro.retrieval.datastore.info import describe
    from retro.stages.cluster import open_executor
    from retro.stages.redo import removal_of
    from retro.workspace import Workspace

    work = Workspace(options.work)
    executor = open_executor(options.executor, options.workers)
    if options.redo:
        # Before anything is removed: what cannot be built must not cost what was.
        stores = [work.corpus().train, *map(TokenStore.open, options.also)]
        expect_buildable(stores, work.tokenizer_path, options.datastore)
        # Neighbours go as well: they are numbers of chunks, which would fit a datastore of other keys, too.
        neighbours = removal_of(neighbours_paths(work))
        runs = sorted((work.path / "runs").glob("*"))
        begin_anew(neighbours.and_then(removal(work.datastore_path, runs)))
    with RichNarrator().progress("Embedding the datastore's chunks") as progress:
        datastore = build(work, options.datastore, options.also, progress, executor)
    for name, value in describe(datastore).facts:
        CONSOLE.print(f"{name:>14}  {value}", soft_wrap=True)
    CONSOLE.print(f"{datastore.path} is ready; retro db info {options.work} shows more", soft_wrap=True)
