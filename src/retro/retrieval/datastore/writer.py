"""Changes to a datastore: adding, deleting, syncing, merging. One writer; each change is a transaction.

A segment is written beside the others and becomes part of the datastore when its row is committed. A writer
that was killed leaves at most a folder that no row names, which the next writer removes, or a ledger that
is still to be rewritten after a compaction.
"""

import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from types import TracebackType

import numpy as np

from retro.corpus.documents import Document
from retro.corpus.tokens import TokenStore
from retro.errors import ConfigError, DataError
from retro.retrieval.datastore.difference import Difference, Synced
from retro.retrieval.datastore.filling import bring_up_to_date, measured, tuned
from retro.retrieval.datastore.joint import INDEXES
from retro.retrieval.datastore.ledger import NEWEST
from retro.retrieval.datastore.merging import next_merge, outgrows_a_segment
from retro.retrieval.datastore.reader import ENGINE, SEGMENTS, DatastoreReader
from retro.retrieval.datastore.rewriting import NUMBERING, UNSWEPT, Rewriting
from retro.retrieval.datastore.segment_writer import EmbedShards, Numbering, Piece, Written, write_segment
from retro.retrieval.datastore.spread import SpreadSnapshot, sized
from retro.retrieval.engines import LOCAL, EngineError, EngineSetting
from retro.retrieval.engines.engine import RAY
from retro.retrieval.index import Entries
from retro.stages.executor import Executor, LocalExecutor
from retro.stages.files import locked
from retro.stages.hints import quoted
from retro.stages.progress import Progress, at_step, no_progress

BY_WORDS = ("bm25", "hybrid")
"""Kinds of index whose distances are not those of keys, so that their recall is not measured."""


class Writer:
    """A datastore opened for changes; other threads and processes may read it all the while."""

    def __init__(
        self,
        datastore: DatastoreReader,
        embed: EmbedShards | None = None,
        executor: Executor | None = None,
        num_expected: int = 0,
    ) -> None:
        """A build says how many chunks it expects in all: they decide what finds them."""
        self.datastore = datastore
        self.ledger = datastore.ledger
        self.config = datastore.config
        self.folder = datastore.path / SEGMENTS
        self._embed = embed or self._embed_here
        self._executor = executor or LocalExecutor(1)
        self._num_expected = num_expected
        self._open = ExitStack()

    def __enter__(self) -> "Writer":
        self._open.enter_context(locked(self.datastore.path))
        self._sweep()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def add(self, documents: Iterable[Document], progress: Progress = no_progress) -> int:
        """Add documents as one version, in segments of bounded size, and merge what is worthwhile."""
        version = self.add_pieces(self._pieces(documents), "add", progress)
        self.follow(progress)
        self.merge(progress)
        return version

    def add_pieces(self, pieces: Iterable[Piece], action: str, progress: Progress = no_progress) -> int:
        """Add what is cut into tokens already; the version is called by the action."""
        numbering = self._numbering()
        written = self._write(self._new(pieces), numbering, progress)
        if not written:
            raise DataError("there is no document to add; expected at least one with text")
        return self._commit(action, written, numbering)

    def _write(self, pieces: Iterable[Piece], numbering: Numbering, progress: Progress) -> list[Written]:
        tokenizer = self.datastore.tokenizer
        is_linear = self._is_linear()
        return [
            write_segment(
                self.folder, part, numbering, self.config, tokenizer, self._embed, progress, is_linear
            )
            for part in in_parts(pieces, self.config.segment_chunks, self.config.chunk_len)
        ]

    def _is_linear(self) -> bool:
        """Whether what is written is searched key by key, until a merge has it indexed with the rest."""
        if self._num_expected:
            return outgrows_a_segment(self.config, self._num_expected)
        held = self.datastore.snapshot().num_chunks()
        return self.config.index == "auto" or outgrows_a_segment(self.config, held)

    def sync(self, documents: Iterable[Document], progress: Progress = no_progress) -> Synced:
        """Let the sources of these documents hold these documents and no others, as one version."""
        difference = Difference(self.ledger)
        new = (
            document
            for document in documents
            if difference.is_new(document.source, document.id, document.content_hash, document.title)
        )
        return self._sync(self._pieces(new), difference, progress)

    def sync_store(
        self, store: TokenStore, sources: Iterable[str] = (), progress: Progress = no_progress
    ) -> Synced:
        """The same for what is cut into tokens already.

        `sources` are further ones, of which the store may hold no document any more.
        """
        difference = Difference(self.ledger)
        difference.cover(sources)
        new = (
            piece
            for piece in pieces_of(store)
            if difference.is_new(*(piece.row[name] for name in ("source", "id", "content_hash", "title")))
        )
        return self._sync(new, difference, progress)

    def _sync(self, pieces: Iterable[Piece], difference: Difference, progress: Progress) -> Synced:
        numbering = self._numbering()
        written = self._write(pieces, numbering, progress)
        if not difference.num_seen:
            raise DataError("there is no document to compare with; expected at least one with text")
        missing = difference.missing()
        gone = sorted([*difference.replaced, *missing])
        if not written and not gone:
            return difference.synced(self.ledger.version().number, missing)
        version = self._commit("sync", written, numbering, gone)
        self.follow(progress)
        self.merge(progress)
        return difference.synced(version, missing)

    def _commit(
        self, action: str, written: Sequence[Written], numbering: Numbering, gone: Sequence[int] = ()
    ) -> int:
        """One version with what was written, and without the documents of the numbers `gone`."""
        with self.ledger.transaction():
            rows = self.ledger.documents(gone, NEWEST)
            # What the lineage is made of: ids and texts, in order, but not how they are cut into segments.
            added = (f"{row['id']}\t{row['content_hash']}" for part in written for row in part.rows)
            changes = chain((rows[number]["id"] for number in gone), added)
            num_changed = sum(len(part.rows) for part in written) + len(gone)
            version = self.ledger.commit(action, changes, num_changed)
            self.ledger.mark_deleted(gone, version.number)
            for part in written:
                self.ledger.add_segment(part.segment, version.number)
                self.ledger.add_documents(part.segment.name, part.rows, version.number)
            self.ledger.set_fact(NUMBERING, vars(numbering))
        return version.number

    def delete(
        self,
        ids: Sequence[str],
        sources: Sequence[str],
        titles: Sequence[str],
        content_hashes: Sequence[str] = (),
    ) -> int:
        """Mark documents as deleted, as one version, and return how many."""
        with self.ledger.transaction():
            found = {
                *self.ledger.find("id", ids),
                *self.ledger.find("source", sources),
                *self.ledger.find("title", titles),
                *self.ledger.find("content_hash", content_hashes),
            }
            numbers = sorted(found)
            if not numbers:
                raise DataError("nothing was named to delete; expected an id, a source or a title")
            rows = self.ledger.documents(numbers, NEWEST)
            version = self.ledger.commit("delete", (rows[number]["id"] for number in numbers), len(numbers))
            self.ledger.mark_deleted(numbers, version.number)
        self.follow()
        return len(numbers)

    def follow(self, progress: Progress = no_progress) -> None:
        """Bring the search engine to the newest version, if there is one."""
        setting = self.datastore.engine_setting()
        if setting is None:
            return
        snapshot = self.datastore.snapshot()
        try:
            if isinstance(snapshot, SpreadSnapshot):
                snapshot.hold()
                return
            engine = self.datastore.engine(setting)
            step = at_step(progress, "filling the engine")
            if bring_up_to_date(engine, setting, self.ledger, snapshot, step):
                self._set_engine(tuned(engine, setting, snapshot, self.config.target_recall))
        except EngineError as error:
            raise EngineError(
                f"version {snapshot.version.number} is committed, but {error}; then "
                f"run: retro db engine {quoted(self.datastore.path)}"
            ) from None

    def use_engine(
        self,
        address: str,
        collection: str = "",
        progress: Progress = no_progress,
        parts: int = 0,
        replicas: int = 0,
    ) -> None:
        """Fill an engine, measure what it finds, and have searches use it from then on; or none (`local`).

        Processes of a Ray cluster hold so many parts, each in so many replicas; 0: one part a node, two
        replicas.
        """
        if address == LOCAL:
            self._leave_processes(None)
            self._set_engine(None)
            self.merge(progress)
            return
        snapshot = self.datastore.snapshot()
        if not len(snapshot):
            raise DataError(
                f"{self.datastore.path} holds no chunk with text; expected some to fill an engine with"
            )
        collection = collection or f"retro_{self.ledger.versions()[0].lineage}"
        setting = EngineSetting(address=address, collection=collection, parts=parts, replicas=replicas)
        if setting.holds_files:
            self._spread(setting)
            return
        if parts or replicas:
            raise ConfigError(f"{address} has no parts and replicas of ours; expected them for {RAY} alone")
        self._leave_processes(None)
        engine = self.datastore.engine(setting)
        bring_up_to_date(engine, setting, self.ledger, snapshot, progress)
        self._set_engine(tuned(engine, setting, snapshot, self.config.target_recall))

    def _spread(self, setting: EngineSetting) -> None:
        """Have processes of a Ray cluster hold the parts."""
        setting = sized(setting)
        self._leave_processes(setting)
        snapshot = self.datastore.spread(setting)
        snapshot.actors.prepare()
        snapshot.hold()
        recall, latency = 0.0, 0.0
        if self.config.index not in BY_WORDS:
            recall, latency = measured(lambda queries, k: snapshot.search(Entries(queries), k), snapshot)
        self._set_engine(replace(setting, recall_at_10=recall, latency_ms=latency))

    def _leave_processes(self, setting: EngineSetting | None) -> None:
        """Let the processes go that held the parts until now, if others are to, or none."""
        before = self.datastore.engine_setting()
        if before is not None and before.holds_files and (setting is None or not before.is_like(setting)):
            self.datastore.actors(before).end()

    def _set_engine(self, setting: EngineSetting | None) -> None:
        with self.ledger.transaction():
            self.ledger.set_fact(ENGINE, None if setting is None else asdict(setting))
        self.datastore.refresh()

    def merge(self, progress: Progress = no_progress) -> int:
        """Merge what is worthwhile (`merging.py`), each step as a version; the newest version."""
        is_elsewhere = not self.datastore.is_indexed_here
        before = self.ledger.version().number
        while merge := next_merge(Rewriting.states(self.datastore.snapshot()), self.config, is_elsewhere):
            self._rewriting(progress).merge(merge)
            # Keys that cannot be indexed together, as by too many lists, would be tried for ever.
            if merge.joins and self.datastore.snapshot().joint is None:
                break
        self._sweep()
        if not is_elsewhere and self.ledger.version().number > before:
            self.follow(progress)  # processes that hold segments open what took their place
        return self.ledger.version().number

    def compact(self, progress: Progress = no_progress) -> int:
        """Write the live documents of segments that have deleted ones, or are small, into new segments."""
        self._rewriting(progress).compact()
        self._sweep()
        if self.datastore.is_indexed_here:
            self.follow(progress)
        # What a joint index had found may have become few enough for a graph.
        return self.merge(progress)

    def _rewriting(self, progress: Progress) -> Rewriting:
        return Rewriting(self.datastore, self._numbering(), self._executor, progress)

    def _sweep(self) -> None:
        """Remove folders that the ledger does not name, and finish rewriting it after a compaction."""
        numbering = self._numbering()
        segments = {row.name for row in self.ledger.segments()}
        indexes = {row.name for row in self.ledger.indexes()}
        # An interrupted addition, or the next joint index, may go on where it was begun.
        self._sweep_folder(self.folder, {*segments, f"{numbering.segment:06d}.partial"})
        self._sweep_folder(self.datastore.path / INDEXES, {*indexes, f"{numbering.index:06d}.partial"})
        if self.ledger.fact(UNSWEPT):
            self.ledger.truncate()
            with self.ledger.transaction():
                self.ledger.set_fact(UNSWEPT, False)

    @staticmethod
    def _sweep_folder(folder: Path, kept: set[str]) -> None:
        # Readers that still have such a folder open keep its files: the system removes them with the last.
        for path in sorted(folder.glob("*")) if folder.exists() else ():
            if path.name not in kept:
                shutil.rmtree(path)

    def _numbering(self) -> Numbering:
        return Numbering(**(self.ledger.fact(NUMBERING) or {}))

    def _pieces(self, documents: Iterable[Document]) -> Iterator[Piece]:
        tokenizer = self.datastore.tokenizer
        for document in documents:
            tokens = np.array([*tokenizer.encode(document.text), tokenizer.end_id], dtype=tokenizer.dtype)
            row = {
                "id": document.id,
                "source": document.source,
                "title": document.title,
                "language": document.language,
                "content_hash": document.content_hash,
                "num_tokens": len(tokens),
                "num_bytes": len(document.text.encode()),
            }
            yield Piece(row, tokens)

    def _new(self, pieces: Iterable[Piece]) -> Iterator[Piece]:
        """The pieces, none of which may be there already."""
        seen: set[tuple[str, str]] = set()
        for piece in pieces:
            source, name = piece.row["source"], piece.row["id"]
            there = self.ledger.rows(
                "SELECT 1 FROM documents WHERE id = ? AND source = ? AND deleted IS NULL", (name, source)
            )
            if there or (source, name) in seen:
                found = "there already" if there else "given twice"
                place = quoted(self.datastore.path)
                raise DataError(
                    f"document {name!r} of source {source!r} is {found}; expected a new one; "
                    f"nothing was added; run: retro db delete {place} --id {quoted(name)}"
                )
            seen.add((source, name))
            yield piece

    def _embed_here(self, shards: Iterable[list[str]]) -> Iterator[np.ndarray]:
        for texts in shards:
            yield self.datastore.embedder.embed(texts).astype(np.float16)


def pieces_of(store: TokenStore) -> Iterator[Piece]:
    """The documents of a token store."""
    for index, row in enumerate(store.documents):
        tokens = store.document(index)
        yield Piece({**row, "num_tokens": len(tokens), "num_bytes": int(store.num_bytes[index])}, tokens)


def in_parts(pieces: Iterable[Piece], max_chunks: int, chunk_len: int) -> Iterator[Iterator[Piece]]:
    """Consecutive runs of pieces with at most so many chunks each; a longer document is a run of its own.

    Each run must be used up before the next is asked for: nothing but one piece is held.
    """
    source = iter(pieces)
    held = next(source, None)

    def run() -> Iterator[Piece]:
        nonlocal held
        num_chunks = 0
        while held is not None:
            size = -(-len(held.tokens) // chunk_len)
            if num_chunks and num_chunks + size > max_chunks:
                return
            num_chunks += size
            yield held
            held = next(source, None)

    while held is not None:
        yield run()
