"""Changes to a datastore: adding, deleting, compacting. One writer at a time; each change is one transaction.

A segment is written beside the others and becomes part of the datastore by the commit of its row. A writer that was killed leaves at
most a folder that no row names, which the next writer removes, or a rewriting of the catalogue to be finished.
"""

import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import numpy as np

from retro.corpus.documents import Document
from retro.corpus.tokens import TokenStore
from retro.errors import DataError
from retro.retrieval.datastore.datastore import SEGMENTS, Datastore
from retro.retrieval.datastore.segment import Segment
from retro.retrieval.datastore.segment_writer import (
    EmbedShards,
    Numbering,
    Piece,
    Written,
    copy_segment,
    write_segment,
)
from retro.stages.files import locked
from retro.stages.progress import Progress

NUMBERING, UNSWEPT = "numbering", "unswept"


class Writer:
    """A datastore opened for changes; other processes may read it all the while."""

    def __init__(self, datastore: Datastore, embed: EmbedShards | None = None) -> None:
        self.datastore, self.ledger, self.config = datastore, datastore.ledger, datastore.config
        self.folder = datastore.path / SEGMENTS
        self._embed = embed or self._embed_here
        self._open = ExitStack()

    def __enter__(self) -> "Writer":
        self._open.enter_context(locked(self.datastore.path))
        self._sweep()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def add(self, documents: Iterable[Document], progress: Progress | None = None) -> int:
        """Add documents as one version, in segments of bounded size."""
        return self.add_pieces(self._pieces(documents), "add", progress)

    def add_store(self, store: TokenStore, progress: Progress | None = None) -> int:
        """Add all documents of a token store."""
        self.datastore.tokenizer.expect(store.tokenizer_fingerprint, str(store.artifact.path), "retro ingest")
        return self.add_pieces(pieces_of(store), "add", progress)

    def add_pieces(self, pieces: Iterable[Piece], action: str, progress: Progress | None = None) -> int:
        numbering = self._numbering()
        written = [
            write_segment(
                self.folder, part, numbering, self.config, self.datastore.tokenizer, self._embed, progress
            )
            for part in in_parts(self._new(pieces), self.config.segment_chunks, self.config.chunk_len)
        ]
        if not written:
            raise DataError("there is no document to add; expected at least one with text")
        return self._commit(action, written, numbering)

    def _commit(self, action: str, written: Sequence[Written], numbering: Numbering) -> int:
        with self.ledger.transaction():
            changes = (f"{row['id']}\t{row['content_hash']}" for part in written for row in part.rows)
            version = self.ledger.commit(action, changes, sum(len(part.rows) for part in written))
            for part in written:
                self.ledger.add_segment(part.segment, version.number)
                self.ledger.add_documents(part.segment.name, part.rows, version.number)
            self.ledger.set_fact(NUMBERING, vars(numbering))
        return version.number

    def delete(self, ids: Sequence[str], sources: Sequence[str], titles: Sequence[str]) -> int:
        with self.ledger.transaction():
            found = (
                self.ledger.find(column, names)
                for column, names in (("id", ids), ("source", sources), ("title", titles))
            )
            numbers = sorted({number for part in found for number in part})
            if not numbers:
                raise DataError("nothing was named to delete; expected an id, a source or a title")
            rows = self.ledger.documents(numbers)
            version = self.ledger.commit("delete", (rows[number]["id"] for number in numbers), len(numbers))
            self.ledger.mark_deleted(numbers, version.number)
        return len(numbers)

    def compact(self) -> int:
        """Write the live documents of every segment that has deleted ones, or is small beside others, into new segments."""
        snapshot, numbering = self.datastore.snapshot(), self._numbering()
        enough = self.config.segment_chunks // 2
        pairs = list(zip(snapshot.segments, snapshot.live, strict=True))
        stale = [
            (segment, live) for segment, live in pairs if not live.all() or segment.num_chunks.sum() < enough
        ]
        if len(stale) == 1 and stale[0][1].all():
            stale = []
        if not stale:
            return snapshot.version.number
        written = [
            copy_segment(
                self.folder, part.pieces, part.keys(), numbering, self.config, self.datastore.tokenizer
            )
            for part in self._regrouped(stale)
        ]
        with self.ledger.transaction():
            version = self.ledger.commit("compact", (), 0)
            for segment, _ in stale:
                self.ledger.rows("DELETE FROM segments WHERE name = ?", (segment.name,))
            self.ledger.rows("DELETE FROM documents WHERE deleted IS NOT NULL")
            for part in written:
                self.ledger.add_segment(part.segment, version.number)
                self.ledger.move_documents(part.segment.name, [row["number"] for row in part.rows])
            self.ledger.set_fact(NUMBERING, vars(numbering))
            self.ledger.set_fact(UNSWEPT, True)
        self._sweep()
        return version.number

    def _sweep(self) -> None:
        """Remove folders that the catalogue does not name, and finish a compaction's rewriting of the catalogue itself."""
        named = {row.name for row in self.ledger.segments()}
        beginning = f"{self._numbering().segment:06d}.partial"  # an interrupted addition may go on in it
        for path in sorted(self.folder.glob("*")) if self.folder.exists() else ():
            if path.name not in named and path.name != beginning:
                shutil.rmtree(path)
        if self.ledger.fact(UNSWEPT):
            self.ledger.truncate()
            with self.ledger.transaction():
                self.ledger.set_fact(UNSWEPT, False)

    def _numbering(self) -> Numbering:
        return Numbering(**(self.ledger.fact(NUMBERING) or {}))

    def _pieces(self, documents: Iterable[Document]) -> Iterator[Piece]:
        tokenizer = self.datastore.tokenizer
        for document in documents:
            tokens = np.array([*tokenizer.encode(document.text), tokenizer.end_id], dtype=tokenizer.dtype)
            row = {
                name: getattr(document, name)
                for name in ("id", "source", "title", "language", "content_hash")
            }
            yield Piece({**row, "num_tokens": len(tokens), "num_bytes": len(document.text.encode())}, tokens)

    def _new(self, pieces: Iterable[Piece]) -> Iterator[Piece]:
        """The pieces, none of which may be there already."""
        seen: set[tuple[str, str]] = set()
        for piece in pieces:
            name = (piece.row["source"], piece.row["id"])
            there = self.ledger.rows(
                "SELECT 1 FROM documents WHERE id = ? AND source = ? AND deleted IS NULL", (name[1], name[0])
            )
            if there or name in seen:
                raise DataError(
                    f"document {name[1]!r} of source {name[0]!r} is {'there already' if there else 'given twice'}; "
                    f"expected a new one; nothing was added; run: retro db delete {self.datastore.path} --id {name[1]!r}"
                )
            seen.add(name)
            yield piece

    def _embed_here(self, shards: Iterable[list[str]]) -> Iterator[np.ndarray]:
        for texts in shards:
            yield self.datastore.embedder.embed(texts)

    def _regrouped(self, stale: Sequence[tuple[Segment, np.ndarray]]) -> "Iterator[_Group]":
        """The live documents of segments, in order, in groups that make new segments of bounded size."""
        group = _Group(self.ledger)
        members = [(segment, int(place)) for segment, live in stale for place in np.flatnonzero(live)]
        for segment, place in sorted(
            members, key=lambda member: int(member[0].documents["first_chunk"][member[1]])
        ):
            if group.num_chunks and group.num_chunks + segment.num_chunks[place] > self.config.segment_chunks:
                yield group
                group = _Group(self.ledger)
            group.add(segment, place)
        if group.num_chunks:
            yield group


class _Group:
    """Documents of finished segments that are going to be a new one."""

    def __init__(self, ledger: Any) -> None:
        self._ledger, self._members, self.num_chunks = ledger, list[tuple[Segment, int]](), 0

    def add(self, segment: Segment, place: int) -> None:
        self._members.append((segment, place))
        self.num_chunks += int(segment.num_chunks[place])

    @property
    def pieces(self) -> Iterator[Piece]:
        for segment, place in self._members:
            document = segment.documents[place]
            row = self._ledger.documents([int(document["number"])])[int(document["number"])]
            row |= {"number": int(document["number"]), "first_chunk": int(document["first_chunk"])}
            yield Piece(row, segment.tokens[document["start"] : document["end"]])

    def keys(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Chunk rows in the new segment and their keys, document by document."""
        first = 0
        for segment, place in self._members:
            begin, end = np.searchsorted(segment.places, [place, place + 1])
            offsets = segment.chunks[begin:end] - segment.documents[place]["first_chunk"]
            yield (first + offsets).astype(np.int32), segment.keys[begin:end]
            first += int(segment.num_chunks[place])


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
