"""Documents of a datastore to look at: lists, counts, and the text around a place."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from retro.errors import DataError
from retro.retrieval.datastore.ledger import COLUMNS, IS_THERE, CompactedError
from retro.retrieval.datastore.reader import DatastoreReader
from retro.retrieval.datastore.snapshot import Snapshot

Found = TypeVar("Found")


@dataclass(frozen=True)
class Listed:
    """A document's row."""

    number: int
    id: str
    source: str
    title: str
    language: str
    content_hash: str
    num_tokens: int
    num_bytes: int
    first_chunk: int
    num_chunks: int


@dataclass(frozen=True)
class Listing:
    """Some documents of a version, in the order in which they were added."""

    version: int
    total: int
    """How many there are of which these are some."""
    rows: list[Listed]


@dataclass(frozen=True)
class SourceSize:
    """What a datastore holds of one source."""

    source: str
    documents: int
    tokens: int
    bytes: int


@dataclass(frozen=True)
class Passage:
    """The text of a document from one token to another."""

    version: int
    row: Listed
    start: int
    end: int
    tokens: list[int]


_NAMES = ("number", *COLUMNS, "first_chunk", "num_chunks")
_FIELDS = f"SELECT {', '.join(_NAMES)} FROM documents WHERE {IS_THERE}"


def list_documents(
    datastore: DatastoreReader, limit: int, after: int = -1, source: str = "", text: str = ""
) -> Listing:
    """Documents with a number above `after`, of one source if it is given, with a text in title or id."""
    wanted = ""
    named: list[str] = []
    if source:
        wanted += " AND source = ?"
        named.append(source)
    if text:
        # Without wildcards: what is asked for stands for itself.
        wanted += " AND (instr(lower(title), lower(?)) OR instr(lower(id), lower(?)))"
        named += [text, text]

    def ask(snapshot: Snapshot) -> Listing:
        version = snapshot.version.number
        with datastore.ledger.at(version):
            count = f"SELECT count(*) FROM documents WHERE {IS_THERE}{wanted}"
            total = datastore.ledger.rows(count, (version, version, *named))[0][0]
            found = datastore.ledger.rows(
                f"{_FIELDS}{wanted} AND number > ? ORDER BY number LIMIT ?",
                (version, version, *named, after, limit),
            )
        return Listing(version, int(total), [_listed(row) for row in found])

    return _of_newest(datastore, ask)


def count_sources(datastore: DatastoreReader) -> tuple[int, list[SourceSize]]:
    """The newest version, and what it holds of each source."""

    def ask(snapshot: Snapshot) -> tuple[int, list[SourceSize]]:
        version = snapshot.version.number
        with datastore.ledger.at(version):
            found = datastore.ledger.rows(
                "SELECT source, count(*), sum(num_tokens), sum(num_bytes) FROM documents "
                f"WHERE {IS_THERE} GROUP BY source ORDER BY source",
                (version, version),
            )
        return version, [SourceSize(str(source), *map(int, sizes)) for source, *sizes in found]

    return _of_newest(datastore, ask)


def read_document(datastore: DatastoreReader, name: str, start: int, length: int) -> Passage:
    """The tokens of a document, by content hash or id, from the chunk around a token on.

    A name that nothing has is an error; of several documents of that name the first is read.
    """

    def ask(snapshot: Snapshot) -> Passage:
        version = snapshot.version.number
        with datastore.ledger.at(version):
            found = datastore.ledger.rows(
                f"{_FIELDS} AND (content_hash = ? OR id = ?) ORDER BY number LIMIT 1",
                (version, version, name, name),
            )
        if not found:
            raise DataError(f"the datastore has no document {name!r}; expected a content hash or an id")
        row = _listed(found[0])
        chunk = min(max(0, start) // datastore.chunk_len, max(0, row.num_chunks - 1))
        first = chunk * datastore.chunk_len
        end = min(first + length, row.num_tokens)
        values = snapshot.values(np.array([row.first_chunk + chunk]), max(1, end - first))
        return Passage(version, row, first, end, values[0].tolist())

    return _of_newest(datastore, ask)


def are_live(datastore: DatastoreReader, chunks: list[int]) -> list[bool]:
    """Which chunks the newest version still holds."""
    found: list[bool] = datastore.snapshot().is_live(np.array(chunks, dtype=np.int64)).tolist()
    return found


def _of_newest(datastore: DatastoreReader, ask: Callable[[Snapshot], Found]) -> Found:
    while True:
        try:
            return ask(datastore.snapshot())
        except CompactedError:
            continue  # meanwhile; the newest version can be asked


def _listed(row: tuple) -> Listed:
    return Listed(**dict(zip(_NAMES, row, strict=True)))
