"""retro ingest"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from retro.cli.console import CONSOLE, RichNarrator, parse, print_table, recipe_of
from retro.config import CorpusConfig
from retro.corpus.readers.records import FieldMap
from retro.errors import ConfigError

if TYPE_CHECKING:
    from retro.corpus.ingest import Corpus
    from retro.corpus.workspace import CorpusWorkspace


@dataclass(frozen=True)
class Options:
    """Read text, train a tokenizer on it, and write tokens: split by document, without duplicates, decontaminated.

    Sources are names of the catalogue, JSONL, CSV, TSV or Parquet files, text files, folders, source trees, Wikipedia dumps, and
    hub datasets as hf:NAME. Run again, it makes only what is missing.
    """

    sources: Annotated[tuple[str, ...], tyro.conf.Positional]
    """What to read; the recipe's sources if none is named."""
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
    remove_names: Path | None = None
    """A text file with a title or id a line: training documents of these names are removed, as Wikitext103's from Wikipedia."""
    dry_run: bool = False
    """Say what would be read, without writing anything."""


def main(arguments: list[str]) -> None:
    default = Options(sources=(), corpus=recipe_of(arguments).corpus)
    options = parse(Options, arguments, "ingest", default)
    from retro.corpus.names import read_names
    from retro.corpus.workspace import CorpusWorkspace
    from retro.executor import LocalExecutor

    sources = options.sources or options.corpus.sources
    if not sources:
        raise ConfigError(
            f"no source was named and recipe {options.recipe} has none; expected a file, a folder or a name of: retro fetch --list"
        )
    work = CorpusWorkspace(options.out, LocalExecutor(options.workers))
    if options.dry_run:
        rows = [[source, f"{count:,}", f"{size / 1e6:.1f} MB"] for source, count, size in work.look(sources, options.fields)]
        print_table("would be read", ["source", "documents", "text"], rows)
        return
    names = read_names(options.remove_names) if options.remove_names else frozenset()
    with RichNarrator().scoring("Cutting text into tokens") as told:
        corpus = work.ingest(sources, options.corpus, options.fields, options.strict, names, told)
    print_corpus(work, corpus)
    if work.skipped():
        CONSOLE.print(
            f"{work.skipped():,} records could not be read and were skipped; {work.path / 'skipped.json'} lists them", soft_wrap=True
        )


def print_corpus(work: "CorpusWorkspace", corpus: "Corpus") -> None:
    """What there is, by split and by source."""
    columns = ("documents", "tokens", "bytes")
    rows = [[split, *(f"{store.artifact.counts[name]:,}" for name in columns)] for split, store in corpus.stores().items()]
    print_table("by split", ["split", *columns], rows)
    all_columns = (*columns, "duplicate", "contaminated", "named")
    rows = [[source, *(f"{counts[name]:,}" for name in all_columns)] for source, counts in sorted(work.by_source().items())]
    print_table(f"by source; {work.tokens_path / 'removed.json'} lists what was removed", ["source", *all_columns], rows)
