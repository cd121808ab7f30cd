"""What every reader shares: the names of the fields, the problems met on the way, and a record's turning into a document."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from retro.corpus.documents import Document
from retro.errors import DataError

MAX_ROWS = 1_000
BYTE_ORDER_MARK = "\ufeff"


@dataclass(frozen=True, kw_only=True)
class FieldMap:
    """The names under which a record keeps the parts of a document; all but the text may be absent."""

    text: str = "text"
    """The text; a record without it is skipped."""
    id: str = "id"
    """What tells the record from the others of its source; else the name of the file and the line."""
    title: str = "title"
    language: str = "language"
    source: str = "source"
    """Where the record comes from, in files that mix several sources; else the name of the folder."""

    def names(self) -> tuple[str, ...]:
        return (self.text, self.id, self.title, self.language, self.source)


class Problems:
    """The records that could not be read: all are counted, the first thousand are kept as (where, reason)."""

    def __init__(self, strict: bool = False) -> None:
        self.strict = strict
        self.count = 0
        self.rows: list[tuple[str, str]] = []

    def add(self, where: str, reason: str, *, harmless: bool = False) -> None:
        """Note a record that is left out. `harmless` is for what no strictness should stop at, as a picture in a source tree."""
        reason = " ".join(reason.split())
        if self.strict and not harmless:
            raise DataError(f"{where} {reason}")
        self.count += 1
        if len(self.rows) < MAX_ROWS:
            self.rows.append((where, reason))


def decode_utf8(content: bytes, where: str, problems: Problems) -> str | None:
    """The text without a byte order mark; nothing, and a problem, where it is not UTF-8."""
    try:
        return content.decode("utf-8").removeprefix(BYTE_ORDER_MARK)
    except UnicodeDecodeError as error:
        problems.add(where, not_utf8(content, error.start))
        return None


def not_utf8(content: bytes, position: int) -> str:
    return (
        f"is not UTF-8 (byte {position} is 0x{content[position]:02x}); expected UTF-8; convert or remove it"
    )


def to_document(
    record: Any, where: str, fallback_id: str, source: str, fields: FieldMap, problems: Problems
) -> Document | None:
    """The document of a record; nothing, and a problem, where it has no text or cannot be written as UTF-8."""
    text = record.get(fields.text) if isinstance(record, Mapping) else None
    if not isinstance(text, str) or not text.strip():
        problems.add(
            where, f"has no text; expected an object with a string called {fields.text}{_hint(record)}"
        )
        return None
    document = Document(
        id=_string(record.get(fields.id)) or fallback_id,
        text=text,
        source=_string(record.get(fields.source)) or source,
        title=_string(record.get(fields.title)),
        language=_string(record.get(fields.language)),
    )
    for part in (document.text, document.id, document.source, document.title, document.language):
        if not _is_encodable(part):
            problems.add(
                where, "holds half of a surrogate pair; expected whole characters; mend or remove it"
            )
            return None
    return document


def _hint(record: Any) -> str:
    """The fields that there are, where one of them may be the text under another name."""
    names = (
        [str(name) for name, value in record.items() if isinstance(value, str)]
        if isinstance(record, Mapping)
        else []
    )
    return f"; found {', '.join(names[:9])}; name the right one with --fields.text" if names else ""


def _string(value: Any) -> str:
    return "" if value is None else str(value)


def _is_encodable(text: str) -> bool:
    """JSON can spell half a surrogate pair, which no UTF-8 file can hold: it would only fail when the tokens are written."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
