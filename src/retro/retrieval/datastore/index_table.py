"""The ledger's table of indexes over several segments, and its cells of JSON.

Older ledgers do not have it. It is made with the first such index, so that a datastore without one is a file
like those of before.
"""

import json
from dataclasses import dataclass
from typing import Any

from retro.retrieval.datastore.sqlite_file import SqliteFile

SCHEMA = """
CREATE TABLE IF NOT EXISTS indexes (
    name TEXT PRIMARY KEY, segments TEXT NOT NULL, files TEXT NOT NULL, report TEXT NOT NULL
) WITHOUT ROWID
"""


@dataclass(frozen=True)
class IndexRow:
    """An index, its segments in the order of its rows, its files' checksums, and what was measured."""

    name: str
    segments: list[str]
    files: dict[str, str]
    report: dict[str, Any]


class IndexTable(SqliteFile):
    """A file that may have such a table."""

    def _value(self, text: Any) -> Any:
        """A cell that holds JSON."""
        try:
            return json.loads(text)
        except (TypeError, ValueError, RecursionError) as error:
            raise self._unreadable(getattr(error, "msg", error)) from None

    def indexes(self) -> list[IndexRow]:
        """The indexes over several segments, of the newest version."""
        if not self.rows("SELECT name FROM sqlite_master WHERE name = 'indexes'"):
            return []
        found = self.rows("SELECT name, segments, files, report FROM indexes ORDER BY name")
        return [self._index(*row) for row in found]

    def _index(self, name: Any, segments: Any, files: Any, report: Any) -> IndexRow:
        row = IndexRow(name, self._value(segments), self._value(files), self._value(report))
        is_sound = isinstance(row.files, dict) and isinstance(row.report, dict)
        names = row.segments if isinstance(row.segments, list) else [None]
        if not (is_sound and all(isinstance(value, str) for value in (name, *names))):
            raise self._unreadable(f"index {name!r} is described by {segments!r}, {files!r} and {report!r}")
        return row

    def set_index(self, index: IndexRow | None) -> None:
        """Replace the indexes over several segments by this one, or by none."""
        self.rows(SCHEMA)
        self.rows("DELETE FROM indexes")
        if index is not None:
            cells = (json.dumps(cell) for cell in (index.segments, index.files, index.report))
            self.rows("INSERT INTO indexes VALUES (?, ?, ?, ?)", (index.name, *cells))
