"""retro ingest"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from rich.text import Text

from retro.cli.console import (
    CONSOLE,
    RichNarrator,
    begin_anew,
    folder_for,
    parse,
    print_table,
    recipe_of,
    warn,
)
from retro.config import FILE_BYTES, CorpusConfig
from retro.corpus.readers.records import FieldMap
from retro.errors import ConfigError
from retro.recipes import corpus_for
from retro.stages.hints import quoted

MUCH = 0.03
"""A larger part of the text that is left out is a warning."""
TRAINED = ("vocab_size", "tokenizer_model", "tokenizer_sample_bytes", "tokenizer_weights")
"""Settings of a tokenizer that is trained."""

if TYPE_CHECKING:
    from retro.corpus.folder import CorpusFolder
    from retro.corpus.readers.problems import Tally
    from retro.corpus.renewal import Changes
    from retro.corpus.tokens import Corpus
    from retro.stages.executor import Executor


@dataclass(frozen=True)
class Options:
    """Read text, train a tokenizer on it, and write tokens: split, without duplicates, decontaminated.

    Sources are names of the catalogue, text in any common encoding, HTML, PDF, JSONL, CSV, TSV or Parquet
    files, folders of all these, source trees, Wikipedia dumps, and hub datasets as hf:NAME. A source may have
    a field map of its own: notes.csv::text=body,id=key. Run again, it makes only what is missing; where the
    sources have changed, it brings the tokens to their state with the tokenizer that is there.
    """

    sources: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[SOURCE …]")]
    """What to read; the recipe's sources if none is named."""
    corpus: Annotated[CorpusConfig, tyro.conf.arg(name="")]
    fields: FieldMap = field(default_factory=FieldMap)
    """Which fields of a record hold what, in every source without a map of its own."""
    base: str = ""
    """The pretrained model that the text is for, whose own tokenizer cuts it: a model of the catalogue, a
    folder or a hub id."""
    recipe: str = "tiny"
    """The recipe that gives the defaults."""
    out: Path = Path("work")
    """The workspace."""
    executor: Literal["local", "ray"] = "local"
    """Where the work runs: processes of this machine, or tasks of a Ray cluster, which RAY_ADDRESS may
    name."""
    workers: int = 0
    """Processes or tasks at once; 0: one per core."""
    file_bytes: int = FILE_BYTES
    """The most bytes in a file of tokens; more is written to several, which are read as one."""
    strict: bool = False
    """Stop at the first file or record that cannot be read, instead of leaving it out and listing it."""
    remove_names: Path | None = None
    """A text file with a title or id a line: training documents of these names are removed, as Wikitext103's
    from Wikipedia."""
    redo: bool = False
    """Begin anew: remove the text, the tokenizer and the tokens of the workspace, which are named first. The
    datastore, neighbours and runs stay; a datastore of another tokenizer has to be built anew as well."""
    dry_run: bool = False
    """Read everything and say what would be kept and what would be left out, without writing
    anything."""


def main(arguments: list[str]) -> None:
    options = read_options(arguments)
    from retro.corpus.decontamination import read_names
    from retro.corpus.folder import CorpusFolder
    from retro.corpus.ingest import ingest, removal
    from retro.corpus.renewal import Changes
    from retro.stages.cluster import open_executor

    sources = options.sources or options.corpus.sources
    if not sources:
        raise ConfigError(
            f"no source was named and recipe {options.recipe} has none; "
            "expected a file, a folder or a name of: retro fetch --list"
        )
    work = CorpusFolder(options.out)
    work.expect_outside(sources)
    say_trees(sources)
    executor = open_executor(options.executor, options.workers)
    # A dry run must come before the workspace is touched.
    if options.dry_run:
        print_look(sources, options, executor)
        return
    folder_for(options.out)
    if options.base:
        check_base(options.base)
    names = read_names(options.remove_names) if options.remove_names else frozenset()
    if options.redo:
        begin_anew(removal(work, sources, options.fields))
    changes: list[Changes] = []
    with RichNarrator().progress("Reading") as progress:
        corpus = ingest(
            work,
            sources,
            options.corpus,
            options.fields,
            options.strict,
            names,
            executor,
            progress,
            changes.append,
            options.file_bytes,
        )
    print_corpus(work, corpus)
    for found in changes:
        print_changes(work, found)
    print_all_left_out(work)


def print_all_left_out(work: "CorpusFolder") -> None:
    """Show what a finished corpus leaves out of its sources, and which files list all of it."""
    from retro.corpus.pack import REPORT
    from retro.corpus.text import TextStore

    text = TextStore.open(work.text_path)
    removed = work.removed_tallies()
    kept_bytes = text.num_bytes() - sum(tally.num_bytes for tally in removed.values())
    print_left_out({**text.left_out(), **removed}, kept_bytes, text.encodings())
    # A corpus from before there was such a list has none.
    if text.left_out() and work.left_out_path.exists():
        CONSOLE.print(f"{work.left_out_path} lists all that was left out", soft_wrap=True)
    if removed:
        CONSOLE.print(f"{work.tokens_path / REPORT} lists all that was removed", soft_wrap=True)


def say_trees(sources: Sequence[str]) -> None:
    """Say which folders are read as source trees: a folder of notes that git keeps is one, too."""
    from retro.corpus.readers.records import split_fields
    from retro.corpus.readers.trees import MAX_BYTES, is_source_tree

    for place in (Path(split_fields(source)[0]) for source in sources):
        if place.is_dir() and is_source_tree(place):
            CONSOLE.print(
                f"{place} is a source tree, as it has .git or .gitignore: each file is a document as it is "
                f"written, without what git ignores and files above {megabytes(MAX_BYTES)}",
                soft_wrap=True,
                highlight=False,
            )


def check_base(name: str) -> None:
    """Fetch a base if it is missing, and refuse one that cannot read what its tokenizer writes."""
    from retro.catalogue.models import TOKENIZER_FILES, folder_of_base
    from retro.corpus.tokenizers import expect_embedded

    with RichNarrator().progress(f"Opening {name}") as progress:
        expect_embedded(folder_of_base(name, progress, TOKENIZER_FILES))


def print_changes(work: "CorpusFolder", changes: "Changes") -> None:
    """Say what became of a corpus whose sources have changed, and what follows."""
    if not changes:
        CONSOLE.print(f"nothing has changed: {changes}", soft_wrap=True)
        return
    CONSOLE.print(f"{changes}; {work.tokens_path / 'changes.json'} names them", soft_wrap=True)
    CONSOLE.print(f"{work.tokenizer_path} stays as it was; --redo learns it anew", soft_wrap=True)
    if (work.path / "datastore").exists():
        place = quoted(work.path)
        CONSOLE.print(f"run: retro db sync {place}; then run: retro neighbours {place}", soft_wrap=True)


def read_options(arguments: list[str]) -> Options:
    """The options, with the recipe's defaults that are for these sources, and none that would be ignored."""
    recipe = recipe_of(arguments)
    # Which defaults are right is known only once the sources are: the first reading is for them.
    default = Options(sources=(), corpus=replace(recipe.corpus, max_document_bytes=0))
    options = parse(Options, arguments, "ingest", default)
    corpus = corpus_for(recipe, options.sources)
    if corpus != default.corpus:
        default = replace(default, corpus=corpus)
        options = parse(Options, arguments, "ingest", default)
    if options.base and options.corpus.tokenizer:
        raise ConfigError(
            f"--base {options.base} brings its own tokenizer, and --tokenizer names "
            f"{options.corpus.tokenizer}; expected one of the two"
        )
    if options.base:
        options = replace(options, corpus=replace(options.corpus, tokenizer=options.base))
    if options.corpus.tokenizer:
        source = "--base" if options.base else "--tokenizer"
        for name in TRAINED:
            option = "--" + name.replace("_", "-")
            # Asked of the arguments: what is given may be equal to the default.
            if any(is_option(argument, option) for argument in arguments):
                raise ConfigError(
                    f"{option} is for a tokenizer that is trained, and {options.corpus.tokenizer} brings "
                    f"its own vocabulary; expected {option} or {source}, not both"
                )
    return options


def is_option(argument: str, option: str) -> bool:
    """Whether an argument names the option, as `--one-two`, `--one_two` or with its value behind `=`."""
    return argument.partition("=")[0].replace("_", "-") == option


def print_look(sources: Sequence[str], options: Options, executor: "Executor") -> None:
    """Show what ingesting would find in the sources, and what it would leave out."""
    from retro.corpus.gathering import text_bytes
    from retro.corpus.ingest import look
    from retro.corpus.pack import duplicates, removal_tallies
    from retro.corpus.readers.problems import Problems

    rows: list[list[str]] = []
    kept_bytes = 0
    whole = Problems()
    kept: list[dict[str, Any]] = []
    with RichNarrator().progress("Reading") as progress:
        looks = look(sources, options.corpus, options.fields, options.strict, executor, progress, kept)
        for source, counts, problems in looks:
            size = text_bytes(counts)
            kept_bytes += size
            whole.absorb(problems)
            rows.append([source, f"{counts['documents']:,}", megabytes(size), f"{problems.count:,}"])
    print_table("would be read", ["source", "documents", "text", "left out"], rows)
    copies = removal_tallies(row for _, row in duplicates(lambda: kept))
    kept_bytes -= sum(tally.num_bytes for tally in copies.values())
    print_left_out({**whole.tallies, **copies}, kept_bytes, whole.encodings)
    CONSOLE.print(
        "training documents too close to held-out ones are found later, among the tokens", soft_wrap=True
    )


def print_left_out(tallies: "Mapping[str, Tally]", kept_bytes: int, encodings: Mapping[str, int]) -> None:
    """Show what was left out by kind, with the first of each; coloured where it is much of the text."""
    from retro.corpus.readers.problems import LOST, QUIET, lost_share

    if encodings:
        read_as = ", ".join(f"{number:,} as {name}" for name, number in sorted(encodings.items()))
        CONSOLE.print(f"files that are not UTF-8 were read, too: {read_as}", soft_wrap=True, highlight=False)
    if not tallies:
        return
    share = lost_share(tallies, kept_bytes)
    rows: list[list[str | Text]] = []
    # What may be missed comes first, and stands out where it is much.
    for kind, tally in sorted(tallies.items(), key=lambda item: (item[0] not in LOST, item[0])):
        why = Text(kind, style="yellow" if kind in LOST and share > MUCH else "")
        rows.append([why, f"{tally.documents:,}", megabytes(tally.num_bytes)])
    print_table("left out", ["why", "files or documents", "size"], rows)
    # Places and reasons come from the user's data, so brackets in them are not markup.
    for kind, tally in tallies.items():
        for place, reason in tally.first if kind not in QUIET else ():
            CONSOLE.print(f"left out: {place} {reason}", soft_wrap=True, markup=False, highlight=False)
    if share > MUCH:
        warn(f"{share:.0%} of the text is left out; the table says why")


def megabytes(size: int) -> str:
    return f"{size / 1e6:,.2f} MB" if size >= 10_000 or not size else f"{size / 1e3:,.2f} kB"


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
        "by source",
        ["source", *all_columns],
        rows,
    )
