"""Building a datastore from token stores, segment by segment, and keeping it in step with them.

Finished, the folder gets its name.
"""

import shutil
from collections.abc import Sequence
from functools import partial as bound
from itertools import chain, islice
from pathlib import Path
from typing import Any

from retro.config import DatastoreConfig
from retro.config.as_json import to_dict
from retro.corpus.tokenizers.tokenizer import Tokenizer
from retro.corpus.tokens import TokenStore
from retro.errors import ArtifactError, ConfigError, DataError
from retro.retrieval.chunks import ChunkTable
from retro.retrieval.datastore.datastore import Datastore
from retro.retrieval.datastore.difference import Synced
from retro.retrieval.datastore.joint import INDEXES
from retro.retrieval.datastore.ledger import FILE, Ledger
from retro.retrieval.datastore.reader import FORMAT, SEGMENTS, TOKENIZER
from retro.retrieval.datastore.writer import Writer, in_parts, pieces_of
from retro.retrieval.embedder import Embedder, embed_shards, open_embedder
from retro.retrieval.index import make_index
from retro.stages.executor import Executor, LocalExecutor
from retro.stages.files import flush_folder, locked
from retro.stages.hints import with_paths
from retro.stages.progress import Progress, from_offset, no_progress
from retro.stages.redo import Removal
from retro.stages.stage import partial_of, way_out

ENTRIES = {FILE, f"{FILE}-wal", f"{FILE}-shm", SEGMENTS, INDEXES, TOKENIZER}
"""What the folder of a datastore holds; the two beside the ledger are SQLite's own."""
BUILT_FROM = "built from"
"""The fact that names the token stores whose documents a datastore holds."""
SOURCES = "sources"
"""The fact that names the sources of the first of them, with which a datastore is kept in step."""


def expect_buildable(
    stores: Sequence[TokenStore],
    tokenizer_path: Path,
    config: DatastoreConfig,
    progress: Progress = no_progress,
) -> tuple[Tokenizer, Embedder]:
    """What chunks are read and embedded with; whatever cannot be built is refused before keys are made."""
    if not stores:
        raise ConfigError("no token store was named; expected at least one")
    tokenizer = Tokenizer.open(tokenizer_path)
    embedder = open_embedder(config.embedder, config.embedder_precision, progress)
    make_index(config.index, embedder.width, 0, config.exact_below)
    for store in stores:
        place = store.artifact.path
        command = with_paths("retro ingest SOURCE --out WORK", place)
        tokenizer.expect(store.tokenizer_fingerprint, str(place), command)
    return tokenizer, embedder


def build_datastore(
    stores: Sequence[TokenStore],
    tokenizer_path: Path,
    path: Path,
    config: DatastoreConfig,
    progress: Progress = no_progress,
    executor: Executor | None = None,
) -> Datastore:
    """Embed and index every chunk of the token stores.

    Interrupted, it goes on behind the last finished shard of keys. A finished datastore of the same
    settings and tokens is opened, whatever was added or deleted since.
    """
    tokenizer, embedder = expect_buildable(stores, tokenizer_path, config, progress)
    facts = {
        "format": FORMAT,
        "config": to_dict(config),
        "tokenizer": tokenizer.fingerprint,
        "encoder": embedder.fingerprint,
        BUILT_FROM: [store.fingerprint for store in stores],
    }
    if not path.exists():
        partial = path.with_name(path.name + ".partial")
        partial.mkdir(parents=True, exist_ok=True)
        # The lock is for creation alone; the writer below takes its own for as long as it writes.
        with locked(partial):
            _create(partial, facts, tokenizer_path, _sources_of(stores[0]))
        _fill(partial, stores, embedder, progress, executor or LocalExecutor(1))
        partial.replace(path)
        flush_folder(path.parent, deep=False)
    datastore = Datastore.open(path)
    _expect_same(datastore.ledger, facts, path)
    # The embedder is loaded already: searches need not load it again.
    datastore.use(embedder)
    return datastore


def sync_datastore(
    datastore: Datastore,
    store: TokenStore,
    progress: Progress = no_progress,
    executor: Executor | None = None,
) -> Synced:
    """Bring a datastore to the state of the token store that it was built from, as one version.

    Documents of other sources, which were added since or built from other stores, stay.
    """
    datastore.tokenizer.expect(store.tokenizer_fingerprint, str(store.artifact.path), "retro ingest")
    ledger = datastore.ledger
    with Writer(datastore, datastore.embedding(executor), executor) as writer:
        # Without the record a source that has lost all of its documents would never be asked about.
        synced = writer.sync_store(store, ledger.fact(SOURCES) or (), progress)
        with ledger.transaction():
            _, *others = ledger.fact(BUILT_FROM)
            ledger.set_fact(BUILT_FROM, [store.fingerprint, *others])
            ledger.set_fact(SOURCES, _sources_of(store))
    return synced


def removal(path: Path, dependents: Sequence[Path] = ()) -> Removal:
    """What building anew removes: the datastore at this place, finished or begun, with all its versions."""
    found = tuple(folder for folder in (path, partial_of(path)) if folder.exists())
    for folder in found:
        foreign = [entry for entry in sorted(folder.iterdir()) if entry.name not in ENTRIES]
        if foreign:
            raise ArtifactError(
                f"{foreign[0]} was not made by retro build; expected nothing else in {folder}; "
                "move it away and run the same command again"
            )
    return Removal(found, tuple(folder for folder in dependents if folder.exists()))


def _sources_of(store: TokenStore) -> list[str]:
    sources, _ = store.documents.coded("source")
    return sorted(sources)


def _create(partial: Path, facts: dict[str, Any], tokenizer_path: Path, sources: list[str]) -> None:
    ledger = Ledger(partial / FILE, create=True)
    # The facts are written in one transaction after the copy, so a kill in between begins anew.
    if ledger.fact("format") is None:
        shutil.copytree(tokenizer_path, partial / TOKENIZER, dirs_exist_ok=True)
        with ledger.transaction():
            for name, value in {**facts, SOURCES: sources}.items():
                ledger.set_fact(name, value)
    _expect_same(ledger, facts, partial)
    ledger.close()


def _fill(
    partial: Path,
    stores: Sequence[TokenStore],
    embedder: Embedder,
    progress: Progress,
    executor: Executor,
) -> None:
    """Add the documents that are not there yet; each segment is committed by itself."""
    datastore = Datastore(partial)
    datastore.use(embedder)
    total = sum(len(ChunkTable(store, datastore.chunk_len)) for store in stores)
    with Writer(datastore, bound(embed_shards, executor, embedder), executor, total) as writer:
        # Documents are added in order, so as many as are there already are those that a killed run committed.
        every = chain.from_iterable(pieces_of(store) for store in stores)
        pieces = islice(every, datastore.snapshot().num_documents, None)
        for part in in_parts(pieces, datastore.config.segment_chunks, datastore.chunk_len):
            before = datastore.snapshot().num_chunks()
            writer.add_pieces(part, "build", from_offset(progress, before, total))
        # Several segments get one index over all their keys.
        writer.merge(progress)
    if not len(datastore):
        raise DataError(
            f"{stores[0].artifact.path} holds no chunk with text; expected at least one; ingest more text"
        )
    datastore.close()


def _expect_same(ledger: Ledger, facts: dict[str, Any], path: Path) -> None:
    # The lineage is not compared: documents may have been added or deleted since the build.
    found = {name: ledger.fact(name) for name in facts}
    if found["config"] is not None:
        found["config"] = DatastoreConfig.upgrade(found["config"])  # a datastore from before names changed
    changed = [name for name, value in facts.items() if found[name] != value]
    finished = path.with_name(path.name.removesuffix(".partial"))
    if changed == [BUILT_FROM] and path == finished:
        raise ArtifactError(
            f"{path} was made with other settings or inputs ({BUILT_FROM} differ); after a change of the "
            f"text run: retro db sync {path.parent}; or begin anew; run: retro build {path.parent} --redo"
        )
    if changed:
        raise ArtifactError(
            f"{path} was made with other settings or inputs ({', '.join(changed)} differ); "
            f"{way_out(with_paths('retro build WORK', path))}"
        )
