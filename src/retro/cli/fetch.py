"""retro fetch"""

from dataclasses import dataclass, field
from typing import Annotated

import tyro

from retro import catalogue
from retro.cli.console import CONSOLE, RichNarrator, parse, print_table
from retro.errors import ConfigError


@dataclass(frozen=True)
class Options:
    """Download a corpus or an embedder of the catalogue, verify it, and keep it in the cache."""

    names: Annotated[tuple[str, ...], tyro.conf.Positional] = field(default=())
    """What to fetch."""
    list: bool = False
    """Show the catalogue instead."""


def main(arguments: list[str]) -> None:
    options = parse(Options, arguments, "fetch")
    if options.list:
        rows = []
        for entry in catalogue.ENTRIES.values():
            size = f"{entry.total_size / 1e6:.0f} MB"
            here = "yes" if catalogue.folder_of(entry.name).exists() else "no"
            rows.append([entry.name, entry.kind, size, here, entry.licence, entry.description])
        rows += [[name, "corpus", "0 MB", "yes", "PSF-2.0", text] for name, text in catalogue.LOCAL.items()]
        print_table("catalogue", ["name", "kind", "download", "here", "licence", "what"], rows)
        return
    if not options.names:
        raise ConfigError(
            "nothing to fetch was named; expected a name of the catalogue; run: retro fetch --list"
        )
    for name in options.names:
        # Some corpora, such as the standard library, are already on the machine.
        if name in catalogue.LOCAL:
            CONSOLE.print(f"{name} needs no download")
            continue
        with RichNarrator().progress(f"Fetching {name}") as progress:
            artifact = catalogue.fetch(name, progress)
        CONSOLE.print(f"{name} is in {artifact.path}", soft_wrap=True)


def fetch_shown(source: str) -> None:
    """Fetch the questions of the catalogue that a command names, with a bar, unless they are here."""
    name = source.partition("@")[0]
    known = name in catalogue.ENTRIES and catalogue.ENTRIES[name].kind == "questions"
    if known and not catalogue.folder_of(name).exists():
        with RichNarrator().progress(f"Fetching {name}") as progress:
            catalogue.fetch(name, progress)
