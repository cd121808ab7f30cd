"""retro ingest"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from retro.cli.console import CONSOLE, RichNarrator, parse, print_table, recipe_of
from retro.config import CorpusConfig
from retro.corpus.readers.records import FieldMap


@dataclass(frozen=True)
class Options:
    """Read text, train a tokenizer on it, and write tokens: split by document, without duplicates, decontaminated.

    Sources are names of the catalogue, JSONL, CSV, TSV or Parquet files, text files, folders, source trees, Wikipedia dumps, and
    hub datasets as hf:NAME. Run again, it makes only what is missing.
    """

    sources: Annotated[tuple[str, ...], tyro.conf.Positional]
    """What to read."""
    corpus: Annotated[CorpusConfig, tyro.conf.arg(name="")]
    fields: FieldMap = field(default_factory=FieldMap)
    """Which fields of a record hold what."""
    recipe: str = "tiny"
    """The recipe that gives the defaults."""
    out: Path = Path("work")
    """The workspace."""
    workers: int = 0
    """Processes; 0 is one a core."""
    strict: bool = False
    """Stop at the first record that cannot be read, instead of skipping and listing it."""
    dry_run: bool = False
    """Say what would be read, without writing anything."""


def main(arguments: list[str]) -> None:
    default = Options(sources=tyro.MISSING, corpus=recipe_of(arguments).corpus)
    options = parse(Options, arguments, "ingest", default)
    from retro.executor import LocalExecutor
    from retro.workspace import Workspace

    work = Workspace(options.out, LocalExecutor(options.workers))
    if options.dry_run:
        rows = [[source, f"{count:,}", f"{size / 1e6:.1f} MB"] for source, count, size in work.look(options.sources, options.fields)]
        print_table("would be read", ["source", "documents", "text"], rows)
        return
    with RichNarrator().scoring("Cutting text into tokens") as told:
        corpus = work.ingest(options.sources, options.corpus, options.fields, options.strict, told)
    rows = [
        [split, *(f"{store.artifact.counts[name]:,}" for name in ("documents", "tokens", "bytes"))]
        for split, store in corpus.stores().items()
    ]
    print_table(str(options.out / "tokens"), ["split", "documents", "tokens", "bytes"], rows)
    for reason, count in work.removed().items():
        CONSOLE.print(f"{count:,} removed as {reason}; {work.tokens_path / 'removed.json'} lists them", soft_wrap=True)
    skipped = work.skipped()
    if skipped:
        CONSOLE.print(f"{skipped:,} records could not be read and were skipped; {work.path / 'skipped.json'} lists them", soft_wrap=True)
