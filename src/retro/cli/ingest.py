"""retro ingest"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from retro.cli.console import RichNarrator, parse, print_table, recipe_of
from retro.config import CorpusConfig


@dataclass(frozen=True)
class Options:
    """Read text, train a tokenizer on it, and write tokens: split by document, without duplicates, decontaminated."""

    sources: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Names of the catalogue, JSONL files (.gz too), text files or folders."""
    corpus: Annotated[CorpusConfig, tyro.conf.arg(name="")]
    recipe: str = "tiny"
    """The recipe that gives the defaults."""
    out: Path = Path("work")
    """The workspace."""


def main(arguments: list[str]) -> None:
    default = Options(sources=tyro.MISSING, corpus=recipe_of(arguments).corpus)
    options = parse(Options, arguments, "ingest", default)
    from retro.workspace import Workspace

    with RichNarrator().counting("Cutting text into tokens") as told:
        corpus = Workspace(options.out).ingest(options.sources, options.corpus, told)
    rows = [
        [split, *(f"{store.artifact.counts[name]:,}" for name in ("documents", "tokens", "bytes"))]
        for split, store in corpus.stores().items()
    ]
    print_table(str(options.out / "tokens"), ["split", "documents", "tokens", "bytes"], rows)
