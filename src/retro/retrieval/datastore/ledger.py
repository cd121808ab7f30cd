"""The datastore's ledger: which documents and segments there are at which version, in one SQLite file.

Every change is one transaction and one version. A deleted document keeps its row, with the version that
deleted it, until compaction. So the ledger can still answer for an earlier version: its rows are those that
were added by then and not yet deleted. What a compaction has removed it cannot answer for, and it says so.
"""

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retro.corpus.readers.trees import plain_name
from retro.errors import ArtifactError, DataError
from retro.retrieval.datastore.index_table import IndexTable
from retro.retrieval.datastore.sqlite_file import BUSY_SECONDS
from retro.retrieval.search import Version
from retro.stages.hints import quoted, with_paths

FILE = "catalogue.sqlite"
"""Its name on disk, from the time when the ledger was called a catalogue; datastores of then are read now."""
COMPACT, MERGE = "compact", "merge"
"""Actions that write segments anew: what they have replaced cannot be asked about any more."""
NEWEST = (1 << 63) - 1
"""A version later than all: what is there now."""
OF_THE_SYSTEM = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR)
"""Errors of the disk, not of the file's contents."""
FEW = 10
"""Names that a message lists."""
IS_THERE = "added <= ? AND (deleted IS NULL OR deleted > ?)"
"""Whether a document belongs to a version, which is given twice."""
SCHEMA = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE versions (
    version INTEGER PRIMARY KEY, action TEXT NOT NULL, documents INTEGER NOT NULL, lineage TEXT NOT NULL
);
CREATE TABLE segments (
    name TEXT PRIMARY KEY, files TEXT NOT NULL, report TEXT NOT NULL, added INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE documents (
    number INTEGER PRIMARY KEY, segment TEXT NOT NULL, id TEXT NOT NULL, source TEXT NOT NULL,
    title TEXT NOT NULL, language TEXT NOT NULL, content_hash TEXT NOT NULL, num_tokens INTEGER NOT NULL,
    num_bytes INTEGER NOT NULL, first_chunk INTEGER NOT NULL, num_chunks INTEGER NOT NULL,
    added INTEGER NOT NULL, deleted INTEGER
);
CREATE INDEX documents_by_id ON documents (id);
CREATE INDEX documents_by_source ON documents (source);
CREATE INDEX documents_by_title ON documents (title);
CREATE INDEX documents_deleted ON documents (segment, deleted) WHERE deleted IS NOT NULL;
"""
COLUMNS = ("id", "source", "title", "language", "content_hash", "num_tokens", "num_bytes")
COUNTED = ("num_tokens", "num_bytes", "first_chunk", "num_chunks")


class CompactedError(ArtifactError):
    """A question about a version of which a compaction has removed rows. The newest version can be asked."""

    def __init__(self, path: Path, version: int) -> None:
        super().__init__(
            f"{path} has been compacted since version {version}; expected a version that is still whole; "
            "open the datastore again"
        )
        self.path = path
        self.version = version

    def __reduce__(self) -> tuple[type["CompactedError"], tuple[Path, int]]:
        return CompactedError, (self.path, self.version)  # to come from another process


@dataclass(frozen=True)
class SegmentRow:
    """A segment's name, the checksums of its files, and what was measured when it was built."""

    name: str
    files: dict[str, str]
    report: dict[str, Any]


class Ledger(IndexTable):
    """The open file. A reader sees the version that its transaction, or its single question, began with."""

    def __init__(self, path: Path, create: bool = False) -> None:
        super().__init__(path)
        if not create and not path.exists():
            raise ArtifactError(
                f"{path} does not exist; expected the ledger of a datastore; "
                f"run: {with_paths('retro build WORK', path.parent)}"
            )
        try:
            if create and not self.rows("SELECT name FROM sqlite_master WHERE name = 'facts'"):
                self.rows("PRAGMA journal_mode = WAL")
                with self.transaction():
                    for statement in filter(str.strip, SCHEMA.split(";")):
                        self.rows(statement)
            self.rows("SELECT count(*) FROM facts")
        except ArtifactError:
            self.close()
            raise
        except sqlite3.DatabaseError as error:
            self.close()
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in OF_THE_SYSTEM:
                raise  # a full or read-only disk says nothing about the ledger
            raise self._unreadable(error) from None

    def _unreadable(self, reason: object) -> ArtifactError:
        return ArtifactError(
            f"{self.path} is not a readable ledger ({reason}); restore it, or remove the datastore and "
            f"run: {with_paths('retro build WORK', self.path.parent)}"
        )

    @contextmanager
    def at(self, version: int) -> Iterator[None]:
        """A transaction in which a version can be asked about; an error if it was compacted since."""
        with self.transaction(write=False):
            if self._was_compacted_since(version):
                raise CompactedError(self.path, version)
            yield

    def _was_compacted_since(self, version: int) -> bool:
        newest = self.rows("SELECT max(version) FROM versions WHERE action IN (?, ?)", (COMPACT, MERGE))[0][0]
        return newest is not None and newest > version

    def fact(self, name: str) -> Any:
        found = self.rows("SELECT value FROM facts WHERE name = ?", (name,))
        return self._value(found[0][0]) if found else None

    def set_fact(self, name: str, value: Any) -> None:
        self.rows("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, json.dumps(value, ensure_ascii=False)))

    def version(self) -> Version:
        """The newest version; number 0 is the empty datastore."""
        found = self.rows(
            "SELECT version, action, documents, lineage FROM versions ORDER BY version DESC LIMIT 1"
        )
        return self._version(*found[0]) if found else Version(0, "create", 0, "")

    def versions(self) -> list[Version]:
        found = self.rows("SELECT version, action, documents, lineage FROM versions ORDER BY version")
        return [self._version(*row) for row in found]

    def _version(self, number: Any, action: Any, documents: Any, lineage: Any) -> Version:
        # SQLite lets any value stand in any column.
        if not (isinstance(number, int) and isinstance(documents, int) and isinstance(lineage, str)):
            raise self._unreadable(f"version {number!r} has {documents!r} documents and lineage {lineage!r}")
        return Version(number, action, documents, lineage)

    def commit(self, action: str, changes: Iterable[str], documents: int) -> Version:
        """Write the next version; within a transaction.

        `changes` name what was added or deleted; without any the lineage stays as it was.
        """
        before = self.version()
        lineage = before.lineage
        # Hashed one by one, as a large addition names more documents than memory should hold.
        digest = hashlib.sha256(action.encode())
        changed = False
        for change in changes:
            digest.update(f"\n{change}".encode())
            changed = True
        if changed:
            lineage = hashlib.sha256(f"{before.lineage}\n{digest.hexdigest()}".encode()).hexdigest()[:16]
        version = Version(before.number + 1, action, documents, lineage)
        self.rows("INSERT INTO versions VALUES (?, ?, ?, ?)", (version.number, action, documents, lineage))
        return version

    def segments(self, version: int = NEWEST) -> list[SegmentRow]:
        """The segments of a version, in the order of their chunks."""
        found = self.rows(
            "SELECT name, files, report FROM segments WHERE added <= ? ORDER BY name", (version,)
        )
        return [self._segment(*row) for row in found]

    def _segment(self, name: Any, files: Any, report: Any) -> SegmentRow:
        row = SegmentRow(name, self._value(files), self._value(report))
        if not (isinstance(name, str) and isinstance(row.files, dict) and isinstance(row.report, dict)):
            raise self._unreadable(f"segment {name!r} is described by {files!r} and {report!r}")
        return row

    def add_segment(self, segment: SegmentRow, version: int) -> None:
        self.rows(
            "INSERT INTO segments VALUES (?, ?, ?, ?)",
            (segment.name, json.dumps(segment.files), json.dumps(segment.report), version),
        )

    def remove_segment(self, name: str) -> None:
        self.rows("DELETE FROM segments WHERE name = ?", (name,))

    def add_documents(self, segment: str, rows: Iterable[dict[str, Any]], version: int) -> None:
        """Rows with the columns of a token store's documents, and `number`, `first_chunk`, `num_chunks`."""
        self._change(
            f"INSERT INTO documents VALUES ({', '.join('?' * 12)}, NULL)",
            (
                (
                    row["number"],
                    segment,
                    *(row[name] for name in COLUMNS),
                    row["first_chunk"],
                    row["num_chunks"],
                    version,
                )
                for row in rows
            ),
        )

    def mark_deleted(self, numbers: Sequence[int], version: int) -> None:
        rows = ((version, number) for number in numbers)
        self._change("UPDATE documents SET deleted = ? WHERE number = ?", rows)

    def remove_deleted(self) -> None:
        """Take out the rows of deleted documents; from here on no earlier version can be asked about."""
        self.rows("DELETE FROM documents WHERE deleted IS NOT NULL")

    def move_documents(self, segment: str, numbers: Sequence[int]) -> None:
        rows = ((segment, number) for number in numbers)
        self._change("UPDATE documents SET segment = ? WHERE number = ?", rows)

    def deleted(self, segment: str) -> list[int]:
        """Numbers of a segment's documents that are there no longer."""
        found = self.rows(
            "SELECT number FROM documents WHERE segment = ? AND deleted IS NOT NULL", (segment,)
        )
        return [number for (number,) in found]

    def num_deleted(self) -> int:
        """How many documents are there no longer, and still have their rows."""
        count: int = self.rows("SELECT count(*) FROM documents WHERE deleted IS NOT NULL")[0][0]
        return count

    def added_since(self, earlier: int, version: int) -> list[int]:
        """Numbers of a version's documents that were added after an earlier one."""
        with self.at(version):
            found = self.rows(
                f"SELECT number FROM documents WHERE added > ? AND {IS_THERE}", (earlier, version, version)
            )
        return [number for (number,) in found]

    def deleted_since(self, earlier: int, version: int) -> list[int]:
        """Numbers of documents that an earlier version had and this one has not."""
        with self.at(version):
            found = self.rows(
                "SELECT number FROM documents WHERE added <= ? AND deleted > ? AND deleted <= ?",
                (earlier, earlier, version),
            )
        return [number for (number,) in found]

    def num_documents(self, version: int) -> int:
        with self.at(version):
            count: int = self.rows(f"SELECT count(*) FROM documents WHERE {IS_THERE}", (version, version))[0][
                0
            ]
        return count

    def documents(self, numbers: Sequence[int], version: int) -> dict[int, dict[str, Any]]:
        """The rows of a version's documents, by number; an error if one of them was compacted away."""
        columns = (*COLUMNS, "first_chunk", "num_chunks")
        names = ", ".join(columns)
        found: dict[int, dict[str, Any]] = {}
        # SQLite bounds the number of parameters of a statement.
        for start in range(0, len(numbers), 500):
            part = [int(number) for number in numbers[start : start + 500]]
            marks = ", ".join("?" * len(part))
            rows = self.rows(
                f"SELECT number, {names} FROM documents WHERE number IN ({marks}) AND {IS_THERE}",
                (*part, version, version),
            )
            for number, *values in rows:
                row = dict(zip(columns, values, strict=True))
                # SQLite keeps text in a column of numbers if it is given any.
                if not all(isinstance(row[name], int) for name in COUNTED):
                    raise self._unreadable(f"document {number} has no whole numbers for {', '.join(COUNTED)}")
                found[number] = row
        # Numbers are never given again and rows only go in a compaction; without one, the file is damaged.
        missing = [int(number) for number in numbers if int(number) not in found]
        if missing and self._was_compacted_since(version):
            raise CompactedError(self.path, version)
        if missing:
            raise self._unreadable(f"it has no document {missing[0]}, of which there are chunks")
        return found

    def find(
        self, column: str, names: Sequence[str], version: int = NEWEST, deleted: bool = False
    ) -> list[int]:
        """Numbers of a version's documents that have one of the names in a column.

        An unknown name is an error. Documents that were deleted by then are found as well if they are asked
        for.
        """
        assert column in COLUMNS
        numbers: set[int] = set()
        with self.at(version):
            for name in dict.fromkeys(names):
                found = self._named(column, name, version, deleted)
                if not found:
                    known = self._known(column)
                    raise DataError(
                        f"no document of the datastore has the {column} {name!r}; expected {known}; "
                        f"run: retro db info {quoted(self.path.parent)} --documents"
                    )
                numbers.update(found)
        return sorted(numbers)

    def find_excluded(self, names: Sequence[str], version: int = NEWEST) -> list[int]:
        """Numbers of documents by id or else by content hash; those that were deleted by then as well."""
        hashes = [name for name in names if self._is_hash(name, version)]
        ids = [name for name in names if name not in hashes]
        with self.at(version):
            by_hash = self.find("content_hash", hashes, version, deleted=True)
            return sorted({*by_hash, *self.find("id", ids, version, deleted=True)})

    def _is_hash(self, name: str, version: int) -> bool:
        """Whether a name is no id, but the content hash of a document."""
        return not self._named("id", name, version, True) and bool(
            self._named("content_hash", name, version, True)
        )

    def _named(self, column: str, name: str, version: int, deleted: bool) -> list[int]:
        try:
            found = self.rows(
                f"SELECT number FROM documents WHERE {column} = ? AND added <= ? "
                "AND (? OR deleted IS NULL OR deleted > ?)",
                # Names of files that are no UTF-8 are kept spelled out.
                (plain_name(name), version, deleted, version),
            )
        except UnicodeEncodeError:
            return []  # half a surrogate pair, which the ledger cannot hold: nothing is called that
        return [number for (number,) in found]

    def _known(self, column: str) -> str:
        """Some names of a column, to choose from."""
        found = self.rows(
            f"SELECT DISTINCT {column} FROM documents WHERE deleted IS NULL ORDER BY {column} LIMIT ?",
            (FEW + 1,),
        )
        names = [repr(name) for (name,) in found]
        more = [*names[:FEW], "…"] if len(names) > FEW else names
        return f"one of {', '.join(more)}" if names else "documents, and there are none"

    def truncate(self) -> None:
        """Rewrite the file without anything that was deleted from it, and empty the write-ahead log."""
        # VACUUM writes the rows that are there into a fresh file; the checkpoint then brings it into place.
        self.rows("VACUUM")
        busy, *_ = self.rows("PRAGMA wal_checkpoint(TRUNCATE)")[0]
        if busy:
            raise ArtifactError(
                f"{self.path} is being read for longer than {BUSY_SECONDS:.0f} s; expected readers to pause; "
                f"run: retro db compact {quoted(self.path.parent)}"
            )

    def check(self) -> None:
        """SQLite's own look at every page."""
        found = self.rows("PRAGMA integrity_check")
        if found != [("ok",)]:
            raise ArtifactError(
                f"{self.path} is damaged ({found[0][0]}); restore it, or remove the datastore and "
                f"run: {with_paths('retro build WORK', self.path.parent)}"
            )
