"""A SQLite file that many threads and processes read and one at a time writes."""

import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BUSY_SECONDS = 30.0
"""How long a writer waits for another."""


class SqliteFile:
    """The open file. Every thread has a connection of its own while it asks, so none waits for another.

    SQLite keeps readers and the one writer apart (write-ahead log).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._idle: list[sqlite3.Connection] = []
        self._held = threading.local()

    def _unreadable(self, reason: object) -> Exception:
        """What is raised where the file is damaged."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the connections that nobody uses at the moment."""
        while self._idle:
            self._idle.pop().close()

    @contextmanager
    def _lent(self) -> Iterator[sqlite3.Connection]:
        """This thread's connection within a transaction, and otherwise an idle or a new one."""
        held: sqlite3.Connection | None = getattr(self._held, "connection", None)
        if held is not None:
            yield held
            return
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._connect()
        try:
            yield connection
        finally:
            self._idle.append(connection)

    def _connect(self) -> sqlite3.Connection:
        # A connection serves one thread at a time, but not always the same one.
        connection = sqlite3.connect(
            self.path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            connection.execute("PRAGMA synchronous = FULL")
        except sqlite3.DatabaseError:
            connection.close()
            raise
        return connection

    def rows(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        try:
            with self._lent() as connection:
                return connection.execute(statement, parameters).fetchall()
        except sqlite3.DatabaseError as error:
            # A damaged page may be met at any question. A lock or a full disk is no damage.
            if type(error) is sqlite3.DatabaseError:
                raise self._unreadable(error) from None
            raise

    def _change(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        with self._lent() as connection:
            connection.executemany(statement, rows)

    @contextmanager
    def transaction(self, write: bool = True) -> Iterator[None]:
        """All or nothing; what is read within is of one version. Within another it is part of that one."""
        with self._lent() as connection:
            if connection.in_transaction:
                yield
                return
            # A writer takes its lock at once, rather than failing later when a reader turns into a writer.
            connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
            self._held.connection = connection
            try:
                yield
                connection.execute("COMMIT")
            except BaseException:
                # On a full disk SQLite has rolled back by itself.
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
            finally:
                self._held.connection = None
