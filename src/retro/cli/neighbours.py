"""retro neighbours"""

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from retro.cli.console import CONSOLE, RichNarrator, begin_anew, parse
from retro.config import FILE_BYTES
from retro.wording import counted


@dataclass(frozen=True)
class Options:
    """Find the neighbours of every chunk of a workspace, never from the chunk's own document."""

    work: Annotated[Path, tyro.conf.Positional]
    """The workspace with tokens and a datastore."""
    executor: Literal["local", "ray"] = "local"
    """Where chunks are searched: by processes of this machine, or by tasks of a Ray
    cluster, which RAY_ADDRESS may name."""
    workers: int = 0
    """Processes or tasks at once; 0: this process alone, with all its threads, or one task for each core of
    the cluster."""
    file_bytes: int = FILE_BYTES
    """The most bytes in a file of what is found; more is written to several, which are read as one."""
    redo: bool = False
    """Begin anew: remove the neighbours of all splits, which are named first, and search every chunk again.
    Without it only what the changes since make necessary is searched."""


def main(arguments: list[str]) -> None:
    options = parse(Options, arguments, "neighbours")
    from retro.jobs.retrieval import find_neighbours, neighbours_paths
    from retro.stages.cluster import open_executor
    from retro.stages.redo import removal_of
    from retro.workspace import Workspace

    work = Workspace(options.work)
    if options.redo:
        begin_anew(removal_of(neighbours_paths(work)))
    with closing(open_executor(options.executor, options.workers, default=1)) as executor:
        # Every split needs neighbours: train for training, valid and test for scoring.
        for split in work.corpus().stores():
            with RichNarrator().progress(f"Finding neighbours of {split}") as progress:
                counts = find_neighbours(work, split, progress, executor, options.file_bytes).artifact.counts
            CONSOLE.print(
                f"{work.neighbours_path(split)}: {counted(counts['neighbours'], 'neighbour')} "
                f"of {counted(counts['chunks'], 'chunk')}; searched {counts['searched']:,}, "
                f"and what was added for {counts['looked_through_added']:,}",
                soft_wrap=True,
            )
