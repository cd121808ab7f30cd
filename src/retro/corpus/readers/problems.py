"""What is left out of a corpus: counted by kind with its bytes, listed in full, and never unsaid."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import IO, Any

from retro.errors import DataError, MissingExtraError

MAX_ROWS = 1_000
EXAMPLES = 3
"""How many of each kind are kept to be shown."""


class Kind(StrEnum):
    """Why something is left out, in the words that a user reads."""

    UNREADABLE = "cannot be read"
    NO_TEXT = "record without text"
    EXTRA = "needs an extra that is not installed"
    TOO_LONG = "longer than --max-document-bytes"
    TOO_LARGE = "file above the limit of a source tree"
    FORMAT = "format that cannot be read"
    DATA = "XML or JSON that is no text"
    NOT_SAMPLED = "not sampled"
    EMPTY = "empty"
    BINARY = "binary"
    HIDDEN = "hidden"
    LINK = "link or special file"
    IGNORED = "ignored by git"
    NO_ARTICLE = "redirect, or no article"
    DUPLICATE = "the same as another document"
    CONTAMINATED = "too close to a held-out document"
    NAMED = "named to be removed"


FATAL = frozenset({Kind.UNREADABLE, Kind.NO_TEXT, Kind.EXTRA})
"""What stops a strict reading: text that was meant to be read, and could not be."""
LOST = FATAL | {Kind.TOO_LONG, Kind.TOO_LARGE, Kind.FORMAT, Kind.DATA, Kind.CONTAMINATED}
"""What is, or may be, text that the user would miss; the others hold none, or were left out on demand."""
QUIET = frozenset({Kind.NOT_SAMPLED, Kind.HIDDEN, Kind.IGNORED, Kind.LINK, Kind.NO_ARTICLE, Kind.EMPTY})
"""What is counted and listed, and of which no example need be shown."""


@dataclass
class Tally:
    """How much of one kind was left out, and the first few: (where, reason)."""

    documents: int = 0
    num_bytes: int = 0
    first: list[tuple[str, str]] = field(default_factory=list)

    def add(self, documents: int, num_bytes: int, rows: list[tuple[str, str]]) -> None:
        self.documents += documents
        self.num_bytes += num_bytes
        self.first = [*self.first, *rows][:EXAMPLES]


class Problems:
    """What was left out while reading: all of it is counted, the first thousand are kept as (where, reason).

    While `listed_in` a file, each is written there as well, whatever their number.
    """

    def __init__(self, strict: bool = False) -> None:
        self.strict = strict
        self.count = 0
        self.rows: list[tuple[str, str]] = []
        self.tallies: dict[str, Tally] = {}
        self.encodings: Counter[str] = Counter()
        """How many files were read in another encoding than UTF-8, by its name."""
        self._list: IO[bytes] | None = None

    def add(self, where: str, reason: str, kind: str = Kind.UNREADABLE, size: int = 0) -> None:
        """Note what is left out, of `size` bytes; a strict reading stops if it was meant to be read."""
        reason = " ".join(reason.split())
        if self.strict and kind in FATAL:
            raise DataError(f"{where} {reason}")
        # The list is bounded, as every row of a huge file may be bad; the count is not.
        self.count += 1
        if len(self.rows) < MAX_ROWS:
            self.rows.append((where, reason))
        self.tallies.setdefault(kind, Tally()).add(1, size, [(where, reason)])
        if self._list is not None:
            write_row(self._list, where, reason, kind, size)

    def add_missing(self, where: str, error: MissingExtraError, size: int) -> None:
        """Note a file that an optional library would read; a strict reading stops with the error itself."""
        if self.strict:
            raise error
        self.add(where, f"needs an extra: {error}", Kind.EXTRA, size)

    def absorb(self, others: "Problems") -> None:
        """Count what another one has counted."""
        self.count += others.count
        self.rows = [*self.rows, *others.rows][:MAX_ROWS]
        self.encodings.update(others.encodings)
        for kind, tally in others.tallies.items():
            self.tallies.setdefault(kind, Tally()).add(tally.documents, tally.num_bytes, tally.first)

    def to_json(self) -> dict[str, Any]:
        """All but the list, to be sent or kept."""
        encodings = dict(self.encodings)
        return {
            "count": self.count,
            "rows": self.rows,
            "tallies": to_counts(self.tallies),
            "encodings": encodings,
        }

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> "Problems":
        problems = Problems()
        problems.count = value["count"]
        problems.rows = [(where, reason) for where, reason in value["rows"]]
        problems.tallies = from_counts(value["tallies"])
        problems.encodings = Counter(value["encodings"])
        return problems

    @contextmanager
    def listed_in(self, file: IO[bytes]) -> Iterator[None]:
        """Write a row to the file for everything that is added within the block."""
        self._list = file
        try:
            yield
        finally:
            self._list = None


def write_row(file: IO[bytes], where: str, reason: str, kind: str, size: int) -> None:
    """One line of the list of what was left out."""
    row = {"where": where, "kind": kind, "reason": reason, "bytes": size}
    # A name on disk may hold bytes that are no UTF-8, which Python keeps as lone surrogates.
    file.write(json.dumps(row, ensure_ascii=False).encode(errors="backslashreplace") + b"\n")


def to_counts(tallies: Mapping[str, Tally]) -> dict[str, Any]:
    """The tallies as a manifest keeps them."""
    return {
        str(kind): {"documents": tally.documents, "bytes": tally.num_bytes, "first": tally.first}
        for kind, tally in tallies.items()
    }


def from_counts(counts: Mapping[str, Any]) -> dict[str, Tally]:
    """The tallies out of a manifest."""
    return {
        kind: Tally(row["documents"], row["bytes"], [(where, reason) for where, reason in row["first"]])
        for kind, row in counts.items()
    }


def lost_share(tallies: Mapping[str, Tally], kept_bytes: int) -> float:
    """Which part of the text, by bytes, was left out though a user would expect it to be read."""
    lost = sum(tally.num_bytes for kind, tally in tallies.items() if kind in LOST)
    return lost / (lost + kept_bytes) if lost else 0.0
