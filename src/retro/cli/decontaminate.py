"""retro decontaminate"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from retro.cli.console import CONSOLE, parse, print_table
from retro.errors import ConfigError


@dataclass(frozen=True)
class Options:
    """Write a workspace's tokens once more, without some training documents.

    Those go that are close to a document of an evaluation set, or named in a list.
    """

    work: Annotated[Path, tyro.conf.Positional]
    """The workspace that `retro ingest` made; it is left as it is."""
    out: Path
    """The folder for the new token stores."""
    against: tuple[str, ...] = ()
    """Sources whose documents must not stand in the training set: files, folders, names of the
    catalogue."""
    remove_names: Path | None = None
    """A text file with a title or id a line."""


def main(arguments: list[str]) -> None:
    options = parse(Options, arguments, "decontaminate")
    from retro.corpus.decontamination import read_names
    from retro.corpus.folder import CorpusFolder
    from retro.corpus.ingest import decontaminate

    # With neither, the command would only copy the tokens.
    if not options.against and options.remove_names is None:
        raise ConfigError(
            "nothing to decontaminate against was given; expected --against SOURCE or --remove-names FILE"
        )
    names = read_names(options.remove_names) if options.remove_names else frozenset()
    corpus = decontaminate(CorpusFolder(options.work), options.out, options.against, names)
    columns = ("documents", "tokens", "bytes")
    rows = [
        [split, *(f"{store.artifact.counts[name]:,}" for name in columns)]
        for split, store in corpus.stores().items()
    ]
    print_table(str(options.out), ["split", *columns], rows)
    CONSOLE.print(
        f"{options.out / 'removed.json'} lists what was removed, and what it matched", soft_wrap=True
    )
