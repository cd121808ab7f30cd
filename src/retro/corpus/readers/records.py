"""Records: their fields, the problems met on the way, how one becomes a document, and JSON Lines."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retro.corpus.documents import Document
from retro.corpus.readers.streams import BROKEN, open_stream
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
        """Note a record that is left out. What is `harmless` never stops a strict reading: a picture, say."""
        reason = " ".join(reason.split())
        if self.strict and not harmless:
            raise DataError(f"{where} {reason}")
        # The list is bounded, as every row of a huge file may be bad; the count is not.
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
    """The document of a record; nothing, and a problem, where it has no text or is not fit for UTF-8."""
    text = record.get(fields.text) if isinstance(record, Mapping) else None
    if not isinstance(text, str) or not text.strip():
        reason = f"has no text; expected an object with a string called {fields.text}{_hint(record)}"
        problems.add(where, reason)
        return None
    document = Document(
        id=_string(record.get(fields.id)) or fallback_id,
        text=text,
        source=_string(record.get(fields.source)) or source,
        title=_string(record.get(fields.title)),
        language=_string(record.get(fields.language)),
    )
    # All parts are written as UTF-8 later, the id and the title too.
    for part in (document.text, document.id, document.source, document.title, document.language):
        if not _is_encodable(part):
            reason = "holds half of a surrogate pair; expected whole characters; mend or remove it"
            problems.add(where, reason)
            return None
    return document


def read_jsonl(
    file: Path, name: str, source: str, fields: FieldMap, problems: Problems
) -> Iterator[Document]:
    """One document a line, plain or packed. A record without an id is called `NAME:LINE`."""
    number = 0
    try:
        with open_stream(file) as lines:
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    continue
                where = f"{file} line {number}"
                record = _parse_json(line, where, problems)
                if record is None:
                    continue
                document = to_document(record, where, f"{name}:{number}", source, fields, problems)
                if document is not None:
                    yield document
    except BROKEN as error:
        reason = f"cannot be read ({error}); expected a whole file; fetch it again"
        problems.add(f"{file} line {number + 1}", reason)


def _parse_json(line: bytes, where: str, problems: Problems) -> Any:
    """The value of a line; nothing, and a problem, where it is not JSON or null."""
    text = decode_utf8(line, where, problems)
    if text is None:
        return None
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        # A plain ValueError, without `msg`, is that of a number of thousands of digits.
        problems.add(where, f"is not JSON ({getattr(error, 'msg', error)}); expected one object a line")
        return None
    # The value null is JSON, but must not be taken for a line that was reported above.
    return {} if record is None else record


def _hint(record: Any) -> str:
    """The fields that there are, since one of them may be the text under another name."""
    fields = record if isinstance(record, Mapping) else {}
    names = [str(name) for name, value in fields.items() if isinstance(value, str)]
    return f"; found {', '.join(names[:9])}; name the right one with --fields.text" if names else ""


def _string(value: Any) -> str:
    return "" if value is None else str(value)


def _is_encodable(text: str) -> bool:
    """Whether UTF-8 can hold the text. JSON can spell half a surrogate pair, which would only fail later."""
    # Most texts are ASCII, and to know that is far quicker than to encode.
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
