"""The datastore's catalogue: which documents and segments there are at which version, in one SQLite file.

Every change is one transaction and one version. Readers in other processes see the version that they began with (WAL). A deleted
document keeps its row, with the version that deleted it, until compaction.
"""

import hashlib
import json
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retro.errors import ArtifactError, DataError

FILE = "catalogue.sqlite"
BUSY_SECONDS = 30.0
SCHEMA = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE versions (version INTEGER PRIMARY KEY, action TEXT NOT NULL, documents INTEGER NOT NULL, lineage TEXT NOT NULL);
CREATE TABLE segments (
    name TEXT PRIMARY KEY, files TEXT NOT NULL, report TEXT NOT NULL, added INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE documents (
    number INTEGER PRIMARY KEY, segment TEXT NOT NULL, id TEXT NOT NULL, source TEXT NOT NULL, title TEXT NOT NULL, language TEXT NOT NULL,
    content_hash TEXT NOT NULL, num_tokens INTEGER NOT NULL, num_bytes INTEGER NOT NULL, first_chunk INTEGER NOT NULL,
    num_chunks INTEGER NOT NULL, added INTEGER NOT NULL, deleted INTEGER
);
CREATE INDEX documents_by_id ON documents (id);
CREATE INDEX documents_by_source ON documents (source);
CREATE INDEX documents_by_title ON documents (title);
CREATE INDEX documents_deleted ON documents (segment, deleted) WHERE deleted IS NOT NULL;
"""
COLUMNS = ("id", "source", "title", "language", "content_hash", "num_tokens", "num_bytes")


@dataclass(frozen=True)
class Version:
    """A committed state. `lineage` is a hash over what was added and deleted up to it, in that order: what the datastore holds."""

    number: int
    action: str
    documents: int
    lineage: str


@dataclass(frozen=True)
class SegmentRow:
    """A segment's name, the checksums of its files, and what was measured when it was built."""

    name: str
    files: dict[str, str]
    report: dict[str, Any]


class Ledger:
    """One connection to the catalogue. Threads take turns."""

    def __init__(self, path: Path, create: bool = False) -> None:
        self.path = path
        if not create and not path.exists():
            raise ArtifactError(
                f"{path} does not exist; expected the catalogue of a datastore; run: retro build"
            )
        self._turn = threading.RLock()
        self._connection = sqlite3.connect(
            path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            if create and not self.rows("SELECT name FROM sqlite_master WHERE name = 'facts'"):
                self._connection.execute("PRAGMA journal_mode = WAL")
                with self.transaction():
                    for statement in filter(str.strip, SCHEMA.split(";")):
                        self._connection.execute(statement)
            self._connection.execute("PRAGMA synchronous = FULL")
            self.rows("SELECT count(*) FROM facts")
        except sqlite3.DatabaseError as error:
            raise ArtifactError(
                f"{path} is not a readable catalogue ({error}); restore it, or remove the datastore and run: retro build"
            ) from None

    def close(self) -> None:
        self._connection.close()

    def rows(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self._turn:
            return self._connection.execute(statement, parameters).fetchall()

    @contextmanager
    def transaction(self, write: bool = True) -> Iterator[None]:
        """All or nothing; everything that is read within is of one version. Within another it is part of that one."""
        with self._turn:
            if self._connection.in_transaction:
                yield
                return
            self._connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
            try:
                yield
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    def fact(self, name: str) -> Any:
        found = self.rows("SELECT value FROM facts WHERE name = ?", (name,))
        return json.loads(found[0][0]) if found else None

    def set_fact(self, name: str, value: Any) -> None:
        self.rows("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, json.dumps(value, ensure_ascii=False)))

    def version(self) -> Version:
        """The newest version; number 0 is the empty datastore."""
        found = self.rows(
            "SELECT version, action, documents, lineage FROM versions ORDER BY version DESC LIMIT 1"
        )
        return Version(*found[0]) if found else Version(0, "create", 0, "")

    def versions(self) -> list[Version]:
        return [
            Version(*row)
            for row in self.rows("SELECT version, action, documents, lineage FROM versions ORDER BY version")
        ]

    def commit(self, action: str, changes: Iterable[str], documents: int) -> Version:
        """Write the next version; within a transaction. `changes` name what was added or deleted; without any the lineage stays."""
        before, changed, digest = self.version(), False, hashlib.sha256(action.encode())
        for change in changes:
            digest.update(f"\n{change}".encode())
            changed = True
        lineage = (
            hashlib.sha256(f"{before.lineage}\n{digest.hexdigest()}".encode()).hexdigest()[:16]
            if changed
            else before.lineage
        )
        version = Version(before.number + 1, action, documents, lineage)
        self.rows(
            "INSERT INTO versions VALUES (?, ?, ?, ?)",
            (version.number, version.action, version.documents, version.lineage),
        )
        return version

    def segments(self) -> list[SegmentRow]:
        """The segments of the newest version, in the order of their chunks."""
        found = self.rows("SELECT name, files, report FROM segments ORDER BY name")
        return [SegmentRow(name, json.loads(files), json.loads(report)) for name, files, report in found]

    def add_segment(self, segment: SegmentRow, version: int) -> None:
        self.rows(
            "INSERT INTO segments VALUES (?, ?, ?, ?)",
            (segment.name, json.dumps(segment.files), json.dumps(segment.report), version),
        )

    def add_documents(self, segment: str, rows: Iterable[dict[str, Any]], version: int) -> None:
        """Rows with the columns of a token store's document table, and `number`, `first_chunk` and `num_chunks`."""
        values = (
            (
                row["number"],
                segment,
                *(row[name] for name in COLUMNS),
                row["first_chunk"],
                row["num_chunks"],
                version,
            )
            for row in rows
        )
        with self._turn:
            self._connection.executemany(
                f"INSERT INTO documents VALUES ({', '.join('?' * 12)}, NULL)", values
            )

    def mark_deleted(self, numbers: Sequence[int], version: int) -> None:
        with self._turn:
            self._connection.executemany(
                "UPDATE documents SET deleted = ? WHERE number = ?", ((version, number) for number in numbers)
            )

    def move_documents(self, segment: str, numbers: Sequence[int]) -> None:
        with self._turn:
            self._connection.executemany(
                "UPDATE documents SET segment = ? WHERE number = ?", ((segment, number) for number in numbers)
            )

    def deleted(self, segment: str) -> list[int]:
        """Numbers of a segment's documents that are no longer there."""
        return [
            number
            for (number,) in self.rows(
                "SELECT number FROM documents WHERE segment = ? AND deleted IS NOT NULL", (segment,)
            )
        ]

    def added_since(self, version: int) -> list[int]:
        """Numbers of the documents that were added after a version and are there."""
        return [
            n
            for (n,) in self.rows(
                "SELECT number FROM documents WHERE added > ? AND deleted IS NULL", (version,)
            )
        ]

    def documents(self, numbers: Sequence[int]) -> dict[int, dict[str, Any]]:
        """The rows of documents, by number."""
        names = ", ".join(COLUMNS)
        found: dict[int, dict[str, Any]] = {}
        for start in range(0, len(numbers), 500):
            part = [int(number) for number in numbers[start : start + 500]]
            marks = ", ".join("?" * len(part))
            for number, *values in self.rows(
                f"SELECT number, {names} FROM documents WHERE number IN ({marks})", part
            ):
                found[number] = dict(zip(COLUMNS, values, strict=True))
        return found

    def find(self, column: str, names: Sequence[str], deleted: bool = False) -> list[int]:
        """Numbers of the documents that have one of the names in a column, deleted ones too if asked for; an unknown name is an error."""
        assert column in COLUMNS
        numbers: list[int] = []
        for name in dict.fromkeys(names):
            found = self.rows(
                f"SELECT number FROM documents WHERE {column} = ? AND (? OR deleted IS NULL)", (name, deleted)
            )
            if not found:
                raise DataError(
                    f"no document of the datastore has the {column} {name!r}; expected one that is there; run: retro db info --documents"
                )
            numbers += [number for (number,) in found]
        return sorted(set(numbers))

    def truncate(self) -> None:
        """Rewrite the file without anything that was deleted from it, and empty the write-ahead log."""
        with self._turn:
            self._connection.execute("VACUUM")
            busy, *_ = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise ArtifactError(
                f"{self.path} is being read for longer than {BUSY_SECONDS:.0f} s; expected readers to pause; run: retro db compact"
            )

    def check(self) -> None:
        """SQLite's own look at every page."""
        found = self.rows("PRAGMA integrity_check")
        if found != [("ok",)]:
            raise ArtifactError(
                f"{self.path} is damaged ({found[0][0]}); restore it, or remove the datastore and run: retro build"
            )
