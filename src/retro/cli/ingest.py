"""retro ingest"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from retro.cli.console import CONSOLE, RichNarrator, parse, print_table, recipe_of
from retro.config import CorpusConfig
from retro.corpus.readers.records import FieldMap
from retro.errors import ConfigError

FEW = 5
"""How many skipped records are shown; a file lists all of them."""

if TYPE_CHECKING:
    from retro.corpus.folder import CorpusFolder
    from retro.corpus.tokens import Corpus


@dataclass(frozen=True)
class Options:
    """Read text, train a tokenizer on it, and write tokens: split, without duplicates, decontaminated.

    Sources are names of the catalogue, JSONL, CSV, TSV or Parquet files, text files, folders, source trees,
    Wikipedia dumps, and hub datasets as hf:NAME. Run again, it makes only what is missing.
    """

    sources: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[SOURCE …]")]
    """What to read; the recipe's sources if none is named."""
    corpus: Annotated[CorpusConfig, tyro.conf.arg(name="")]
    fields: FieldMap = field(default_factory=FieldMap)
    """Which fields of a record hold what."""
    recipe: str = "tiny"
    """The recipe that gives the defaults."""
    out: Path = Path("work")
    """The workspace."""
    executor: Literal["local", "ray"] = "local"
    """Where the work runs: processes of this machine, or tasks of a Ray cluster, which RAY_ADDRESS may
    name."""
    workers: int = 0
    """Processes or tasks at once; 0: one per core."""
    strict: bool = False
    """Stop at the first record that cannot be read, instead of skipping and listing it."""
    remove_names: Path | None = None
    """A text file with a title or id a line: training documents of these names are removed, as Wikitext103's
    from Wikipedia."""
    dry_run: bool = False
    """Read everything and say what was found and what would be skipped, without writing
    anything."""


def main(arguments: list[str]) -> None:
    default = Options(sources=(), corpus=recipe_of(arguments).corpus)
    options = parse(Options, arguments, "ingest", default)
    from retro.corpus.decontamination import read_names
    from retro.corpus.folder import CorpusFolder
    from retro.corpus.ingest import ingest
    from retro.stages.executor import EXECUTORS

    sources = options.sources or options.corpus.sources
    if not sources:
        raise ConfigError(
            f"no source was named and recipe {options.recipe} has none; "
            "expected a file, a folder or a name of: retro fetch --list"
        )
    # A dry run must come before the workspace is touched.
    if options.dry_run:
        print_look(sources, options)
        return
    work = CorpusFolder(options.out)
    executor = EXECUTORS[options.executor](options.workers)
    names = read_names(options.remove_names) if options.remove_names else frozenset()
    with RichNarrator().progress("Reading") as progress:
        corpus = ingest(
            work, sources, options.corpus, options.fields, options.strict, names, executor, progress
        )
    print_corpus(work, corpus)
    if work.left_out():
        CONSOLE.print(
            f"left out: {work.left_out():,} documents without text, not sampled, "
            "or longer than --max-document-bytes",
            soft_wrap=True,
        )
    if work.skipped():
        print_skipped(work.skipped(), work.first_skipped(), f"; {work.skipped_path} lists them")


def print_look(sources: Sequence[str], options: Options) -> None:
    """Show what is in the sources."""
    from retro.corpus.ingest import look

    looks = list(look(sources, options.fields, options.strict))
    rows = [
        [source, f"{count:,}", f"{size / 1e6:,.2f} MB", f"{problems.count:,}"]
        for source, count, size, problems in looks
    ]
    print_table("would be read", ["source", "documents", "text", "skipped"], rows)
    for _, _, _, problems in looks:
        print_skipped(problems.count, problems.rows)


def print_skipped(number: int, rows: Sequence[Sequence[str]], where: str = "") -> None:
    """Show the first records that could not be read."""
    # Places and reasons come from the user's data, so brackets in them are not markup.
    for place, reason in rows[:FEW]:
        CONSOLE.print(f"skipped: {place} {reason}", soft_wrap=True, markup=False, highlight=False)
    if number > FEW or (number and where):
        CONSOLE.print(f"skipped in all: {number:,}{where}", soft_wrap=True, markup=False)


def print_corpus(work: "CorpusFolder", corpus: "Corpus") -> None:
    """Show what the corpus holds, by split and by source."""
    columns = ("documents", "tokens", "bytes")
    rows = [
        [split, *(f"{store.artifact.counts[name]:,}" for name in columns)]
        for split, store in corpus.stores().items()
    ]
    print_table("by split", ["split", *columns], rows)
    all_columns = (*columns, "duplicate", "contaminated", "named")
    rows = [
        [source, *(f"{counts[name]:,}" for name in all_columns)]
        for source, counts in sorted(work.by_source().items())
    ]
    print_table(
        f"by source; {work.tokens_path / 'removed.json'} lists what was removed",
        ["source", *all_columns],
        rows,
    )
