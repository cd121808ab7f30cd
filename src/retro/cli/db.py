"""retro db"""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union

import tyro
from rich.text import Text

from retro.cli.console import CONSOLE, RichNarrator, parse, print_table, read_argument
from retro.corpus.readers.records import FieldMap
from retro.errors import ConfigError, DataError
from retro.stages.hints import quoted
from retro.wording import counted

if TYPE_CHECKING:
    from retro.retrieval.datastore import Datastore
    from retro.stages.executor import Executor

Place = Annotated[Path, tyro.conf.Positional]


@dataclass(frozen=True)
class Info:
    """What a datastore holds: documents, chunks, segments with their recall and latency, bytes, versions."""

    place: Place
    """A workspace or a datastore."""
    documents: bool = False
    """List the documents as well."""


@dataclass(frozen=True)
class Add:
    """Add documents, all or none, as one version. Other processes may search meanwhile."""

    place: Place
    """A workspace or a datastore."""
    sources: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Files, folders, names of the catalogue: whatever `retro ingest` reads."""
    fields: FieldMap = field(default_factory=FieldMap)
    """Which fields of a record hold what."""
    executor: Literal["local", "ray"] = "local"
    """Where new chunks are embedded and the codes of an index are made: by processes of this
    machine, or by tasks of a Ray cluster, which RAY_ADDRESS may name."""
    workers: int = 0
    """Processes or tasks at once; 0: this process alone, with all its threads, or one task for each core of
    the cluster."""


@dataclass(frozen=True)
class Sync:
    """Bring the datastore to the state of the text: added, changed and removed documents in one version.

    Without sources it follows the training tokens of the workspace, as `retro ingest` has left them. With
    sources it follows their files; what the workspace holds out stays out. Documents of other sources stay.
    """

    place: Place
    """A workspace or a datastore."""
    sources: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[SOURCE …]")] = ()
    """Files, folders, names of the catalogue: whatever `retro ingest` reads."""
    fields: FieldMap = field(default_factory=FieldMap)
    """Which fields of a record hold what."""
    executor: Literal["local", "ray"] = "local"
    """Where new chunks are embedded and the codes of an index are made: by processes of this
    machine, or by tasks of a Ray cluster, which RAY_ADDRESS may name."""
    workers: int = 0
    """Processes or tasks at once; 0: this process alone, with all its threads, or one task for each core of
    the cluster."""


@dataclass(frozen=True)
class Delete:
    """Delete documents, as one version: no search that starts afterwards returns them.

    `compact` removes their bytes.
    """

    place: Place
    """A workspace or a datastore."""
    id: tuple[str, ...] = ()
    source: tuple[str, ...] = ()
    title: tuple[str, ...] = ()


@dataclass(frozen=True)
class Compact:
    """Remove deleted documents from every file, join small segments, and index all of them together."""

    place: Place
    """A workspace or a datastore."""
    executor: Literal["local", "ray"] = "local"
    """Where the codes of an index are made: by processes of this machine, or by tasks of a Ray
    cluster, which RAY_ADDRESS may name."""
    workers: int = 0
    """Processes or tasks at once; 0: this process alone, with all its threads, or one task for each core of
    the cluster."""


@dataclass(frozen=True)
class Engine:
    """Have a search engine find the neighbours, or bring the one that does up to date.

    The engine is filled, measured, and follows every change from then on; whatever searches the datastore
    uses it: `db search`, `neighbours`, `sample`, `serve` and the rest. Tokens and keys stay here, and the
    ledger has the last word on what is there.
    """

    place: Place
    """A workspace or a datastore."""
    address: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[ADDRESS]")] = ""
    """`milvus:http://HOST:19530` for a cluster of Milvus, `milvus:FILE.db` for Milvus Lite, `ray:HOST:6379`
    for processes of a Ray cluster that hold parts of the datastore (`ray` for that of RAY_ADDRESS), or
    `local` for this machine's own indexes. Without it, the engine that is set is brought up to date."""
    collection: str = ""
    """The collection's name in the engine, by default one of this datastore's own."""
    parts: int = 0
    """Of Ray: into how many parts the datastore is divided; 0: as before, or one for each node."""
    replicas: int = 0
    """Of Ray: how many processes hold each part, on different nodes; 0: as before, or 2."""


@dataclass(frozen=True)
class Search:
    """The nearest chunks of a text."""

    place: Place
    """A workspace or a datastore."""
    text: Annotated[str, tyro.conf.Positional]
    """The text; - reads standard input."""
    k: int = 5
    source: tuple[str, ...] = ()
    """Find only documents of these sources."""
    exclude: tuple[str, ...] = ()
    """Ids of documents that must not be found."""


@dataclass(frozen=True)
class Verify:
    """Check every checksum, the ledger, and a random sample of keys against their text."""

    place: Place
    """A workspace or a datastore."""
    sample: int = 100
    """Keys that are made anew."""
    seed: int = 0


ACTIONS: dict[str, tuple[type, Callable[[Any], None]]] = {}


def main(arguments: list[str]) -> None:
    # One subcommand per action, so that each has its own options and help.
    kinds = tuple(
        Annotated[kind, tyro.conf.subcommand(name, prefix_name=False)] for name, (kind, _) in ACTIONS.items()
    )
    options: Any = parse(Union[kinds], arguments, "db")  # type: ignore[arg-type]  # noqa: UP007
    next(run for kind, run in ACTIONS.values() if isinstance(options, kind))(options)


def opened(place: Path) -> "Datastore":
    """The datastore of a workspace, or the datastore in this folder."""
    from retro.workspace import open_datastore

    return open_datastore(place)


def workers(options: Add | Sync | Compact) -> "closing[Executor]":
    """What makes keys and codes, until they are made."""
    from retro.stages.cluster import open_executor

    return closing(open_executor(options.executor, options.workers, default=1))


def add(options: Add) -> None:
    from retro import catalogue
    from retro.corpus import readers

    datastore = opened(options.place)
    # A generator: sources may be larger than the memory.
    documents = (document for source in options.sources for document in readers.read(source, options.fields))
    with RichNarrator().progress("Embedding the new chunks") as progress, workers(options) as executor:
        for source in options.sources:
            catalogue.fetch_if_missing(source, progress)
        version = datastore.add(documents, progress, executor)
    # Not the newest version, which may be a merge that came after it.
    change = datastore.ledger.versions()[version - 1]
    CONSOLE.print(
        f"{datastore.path}: version {version}, {counted(change.documents, 'document')} added", soft_wrap=True
    )


def sync(options: Sync) -> None:
    from retro.jobs.retrieval import sync as follow_tokens
    from retro.jobs.retrieval import sync_sources
    from retro.workspace import Workspace

    work = Workspace(options.place)
    has_tokens = work.is_finished
    if not options.sources and not has_tokens:
        raise ConfigError(
            f"no source was named, and {options.place} holds no tokens to follow; expected a workspace that "
            f"was ingested, or sources; run: retro db sync {quoted(options.place)} SOURCE"
        )
    datastore = opened(options.place)
    num_kept_out = 0
    with RichNarrator().progress("Embedding the new chunks") as progress, workers(options) as executor:
        if options.sources:
            around = work if has_tokens else None
            synced, num_kept_out = sync_sources(
                datastore, options.sources, options.fields, around, progress, executor
            )
        else:
            synced = follow_tokens(work, progress, executor)
    if num_kept_out:
        CONSOLE.print(
            f"held out or removed, to stay out: {counted(num_kept_out, 'document')}", soft_wrap=True
        )
    if not synced:
        CONSOLE.print(
            f"{datastore.path}: nothing to do at version {synced.version}; {synced}", soft_wrap=True
        )
        return
    CONSOLE.print(f"{datastore.path}: version {synced.version}; {synced}", soft_wrap=True)
    if synced.changed or synced.removed:
        CONSOLE.print(
            f"to remove the bytes of what is gone, run: retro db compact {quoted(options.place)}",
            soft_wrap=True,
        )
    if has_tokens:
        CONSOLE.print(f"run: retro neighbours {quoted(options.place)}", soft_wrap=True)


def delete(options: Delete) -> None:
    datastore = opened(options.place)
    count = datastore.delete(options.id, options.source, options.title)
    version = datastore.snapshot().version.number
    CONSOLE.print(
        f"{datastore.path}: version {version}, {counted(count, 'document')} deleted; "
        f"to remove their bytes, run: retro db compact {quoted(options.place)}",
        soft_wrap=True,
    )


def compact(options: Compact) -> None:
    from retro.retrieval.datastore.info import tokens_of_deleted

    datastore = opened(options.place)
    before = size_of(datastore.path)
    snapshot = datastore.snapshot()
    # Counted before compacting, which removes the deleted documents' tokens.
    left = tokens_of_deleted(snapshot, datastore.tokenizer.vocab_size)
    with RichNarrator().progress("Compacting") as progress, workers(options) as executor:
        version = datastore.compact(progress, executor)
    CONSOLE.print(
        f"{datastore.path}: version {version}, {before / 1e6:,.1f} → {size_of(datastore.path) / 1e6:,.1f} MB",
        soft_wrap=True,
    )
    # Only if something was deleted is there something left to warn about.
    if not all(live.all() for live in snapshot.live):
        CONSOLE.print(
            f"{datastore.path / 'tokenizer'} stays as it was, and words it learned from deleted documents "
            f"can still be read in it: {left:,} of its tokens occurred only in them; to remove these words, "
            "ingest again without the documents and build anew",
            soft_wrap=True,
        )


def engine(options: Engine) -> None:
    datastore = opened(options.place)
    setting = datastore.engine_setting()
    if not options.address and setting is None:
        raise ConfigError(
            f"{datastore.path} is searched by this machine's own indexes; expected an engine to use instead, "
            f"such as milvus:http://HOST:19530; run: retro db engine {quoted(options.place)} ADDRESS"
        )
    address = options.address or (setting.address if setting else "")
    same = setting if setting and setting.address == address else None
    named = options.collection or (same.collection if same else "")
    parts = options.parts or (same.parts if same else 0)
    replicas = options.replicas or (same.replicas if same else 0)
    with RichNarrator().progress("Sending keys to the engine") as progress:
        datastore.use_engine(address, named, progress, parts, replicas)
    found = datastore.engine_setting()
    if found is None:
        CONSOLE.print(f"{datastore.path} is searched by this machine's own indexes", soft_wrap=True)
        return
    is_measured = found.latency_ms > 0
    measured = f"recall@10 {found.recall_at_10:.3f}, {found.latency_ms:.2f} ms a query"
    CONSOLE.print(
        f"{datastore.path} is searched by {found}: {measured if is_measured else 'not measured'}",
        soft_wrap=True,
    )
    if is_measured and found.recall_at_10 < datastore.config.target_recall:
        CONSOLE.print(
            f"this is below the {datastore.config.target_recall} that the datastore aims at", soft_wrap=True
        )


def search(options: Search) -> None:
    text = read_argument(options.text)
    if not text:
        raise DataError("the text to search for is empty; expected words")
    datastore = opened(options.place)
    (found,) = datastore.search([text], options.k, options.source, options.exclude)
    if not found:
        CONSOLE.print(nothing_found(datastore), soft_wrap=True)
    for neighbour in found:
        distance = (f"{neighbour.distance:9.4f}", "bold")
        origin = (f"{neighbour.source} · {neighbour.document}", "dim")
        name = neighbour.title or neighbour.document
        CONSOLE.print(Text.assemble(distance, f"  {name}  ", origin), soft_wrap=True)
        CONSOLE.print(" ".join(neighbour.text.split()), style="dim", soft_wrap=True)


def nothing_found(datastore: "Datastore") -> str:
    """Why a search found nothing."""
    if not len(datastore):
        place = quoted(datastore.path)
        return f"nothing was found: {place} is empty; add documents with: retro db add {place} SOURCE"
    return (
        f"nothing was found among the {counted(len(datastore), 'chunk')} of {datastore.path}; "
        "expected a text with words, and filters that leave some documents"
    )


def verify(options: Verify) -> None:
    from retro.retrieval.datastore.verify import verify as look_over

    if options.sample < 0 or options.seed < 0:
        raise ConfigError(f"sample is {options.sample} and seed {options.seed}; expected 0 or more of each")
    datastore = opened(options.place)
    with RichNarrator().progress("Reading every file again") as progress:
        found = look_over(datastore, options.sample, options.seed, progress)
    CONSOLE.print(
        f"{datastore.path} is sound at version {found.version}: {counted(found.files, 'file')}, "
        f"{counted(found.documents, 'document')}, {counted(found.keys, 'key')}, "
        f"{found.recomputed} of them made anew",
        soft_wrap=True,
    )


def info(options: Info) -> None:
    from retro.retrieval.datastore.info import describe

    datastore = opened(options.place)
    about = describe(datastore)
    print_table(str(datastore.path), ["", "value"], [[name, value] for name, value in about.facts])
    print_table(
        "segments; recall@10, ms of one query and queries a second as measured when built",
        ["name", *about.segment_headings],
        about.segments,
    )
    print_table("by source", ["source", "documents", "tokens", "bytes"], about.sources)
    print_table("last versions", ["version", "action", "documents"], about.versions[-10:])
    if options.documents:
        rows = datastore.ledger.rows(
            "SELECT id, source, title, num_tokens FROM documents WHERE deleted IS NULL ORDER BY number"
        )
        print_table("documents", ["id", "source", "title", "tokens"], [[*map(str, row)] for row in rows])


def size_of(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


# Filled here, at the end, because the functions are defined only now.
ACTIONS |= {
    "info": (Info, info),
    "search": (Search, search),
    "add": (Add, add),
    "sync": (Sync, sync),
    "delete": (Delete, delete),
    "compact": (Compact, compact),
    "engine": (Engine, engine),
    "verify": (Verify, verify),
}
