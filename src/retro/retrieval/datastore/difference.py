"""What distinguishes a datastore from the documents that it should hold, found while these are read once."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from retro.errors import DataError
from retro.retrieval.datastore.ledger import Ledger
from retro.wording import counted


@dataclass(frozen=True)
class Synced:
    """How many documents were added, changed and removed, and the version that holds all of it.

    If nothing was to be done it is the version that was there.
    """

    version: int
    added: int
    changed: int
    removed: int
    unchanged: int

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.removed)

    def __str__(self) -> str:
        return (
            f"{counted(self.added, 'document')} added, {self.changed:,} changed, "
            f"{self.removed:,} removed, {self.unchanged:,} unchanged"
        )


class Difference:
    """The documents of a ledger, against which those that should be there are held one after the other."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._known: dict[tuple[str, str], tuple[int, str, str]] = {}
        self._sources: set[str] = set()
        self._seen: set[tuple[str, str]] = set()
        self.added = 0
        self.unchanged = 0
        self.replaced: list[int] = []
        """The numbers of documents whose text or title is another now."""

    def cover(self, sources: Iterable[str]) -> None:
        """Count the documents of these sources as gone unless they are met."""
        for source in set(sources) - self._sources:
            self._sources.add(source)
            rows = self._ledger.rows(
                "SELECT id, number, content_hash, title FROM documents "
                "WHERE source = ? AND deleted IS NULL ORDER BY number",
                (source,),
            )
            self._known |= {(source, name): (number, digest, title) for name, number, digest, title in rows}

    def is_new(self, source: str, name: str, content_hash: str, title: str) -> bool:
        """Whether a document is to be added, for the first time or in place of what it was before."""
        self.cover([source])
        key = (source, name)
        if key in self._seen:
            raise DataError(
                f"document {name!r} of source {source!r} is given twice; expected it once; "
                "nothing was changed"
            )
        self._seen.add(key)
        known = self._known.get(key)
        if known is None:
            self.added += 1
            return True
        number, digest, called = known
        if (digest, called) == (content_hash, title):
            self.unchanged += 1
            return False
        self.replaced.append(number)
        return True

    @property
    def num_seen(self) -> int:
        return len(self._seen)

    def missing(self) -> list[int]:
        """The numbers of documents that were not met; asked when all were."""
        return [number for key, (number, _, _) in self._known.items() if key not in self._seen]

    def synced(self, version: int, missing: Sequence[int]) -> Synced:
        return Synced(version, self.added, len(self.replaced), len(missing), self.unchanged)
