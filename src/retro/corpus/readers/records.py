"""Records: their fields, how one becomes a document, and JSON Lines."""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from retro.corpus.documents import Document
from retro.corpus.readers.problems import Kind, Problems
from retro.corpus.readers.streams import BROKEN, open_stream
from retro.errors import ConfigError

BYTE_ORDER_MARK = "\ufeff"
FIELDS_MARK = "::"
"""Stands between a source and the field map that is its own."""


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
    """Where the record comes from, in files that mix several sources; else the name of the file or folder
    that was named."""

    def names(self) -> tuple[str, ...]:
        return (self.text, self.id, self.title, self.language, self.source)

    def with_own(self, given: str, where: str) -> "FieldMap":
        """The same map with what `NAME=FIELD,…` says otherwise, for the one source that it stands behind."""
        own: dict[str, str] = {}
        for part in given.split(","):
            name, equals, value = (piece.strip() for piece in part.partition("="))
            if not equals or not value or name in own:
                raise ConfigError(
                    f"{where} names its fields as {part!r}; expected NAME=FIELD, each once, as in "
                    "notes.csv::text=body,id=key"
                )
            own[name] = value
        known = [item.name for item in dataclasses.fields(self)]
        if unknown := sorted(own.keys() - set(known)):
            raise ConfigError(
                f"{where} names a field {', '.join(unknown)}; expected some of {', '.join(known)}"
            )
        return replace(self, **own)


def split_fields(source: str, fields: FieldMap | None = None) -> tuple[str, FieldMap]:
    """A source as it was named, perhaps with a field map of its own (`notes.csv::text=body`), and its fields.

    `fields` are those of all sources, for what the own map does not say.
    """
    fields = fields or FieldMap()
    path, mark, own = source.rpartition(FIELDS_MARK)
    # A file may really be called so.
    if not mark or Path(source).exists():
        return source, fields
    return path, fields.with_own(own, source)


def _decode_line(line: bytes, where: str, problems: Problems) -> str | None:
    """A line's text without a byte order mark; nothing, and a problem, where it is not UTF-8, as JSON is."""
    try:
        return line.decode("utf-8").removeprefix(BYTE_ORDER_MARK)
    except UnicodeDecodeError as error:
        reason = f"is not UTF-8 (byte {error.start} is 0x{line[error.start]:02x}); expected UTF-8; "
        problems.add(where, reason + "convert or remove it", size=len(line))
        return None


def to_document(
    record: Any, where: str, fallback_id: str, source: str, fields: FieldMap, problems: Problems
) -> Document | None:
    """The document of a record; nothing, and a problem, where it has no text or is not fit for UTF-8."""
    text = record.get(fields.text) if isinstance(record, Mapping) else None
    if not isinstance(text, str) or not text.strip():
        reason = f"has no text; expected an object with a string called {fields.text}{_hint(record)}"
        if isinstance(text, str):
            reason = f"has no text, as its {fields.text} is empty; expected some"
        problems.add(where, reason, Kind.NO_TEXT, _size_of(record))
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
            problems.add(where, reason, size=len(text))
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
    text = _decode_line(line, where, problems)
    if text is None:
        return None
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        # A plain ValueError, without `msg`, is that of a number of thousands of digits.
        reason = f"is not JSON ({getattr(error, 'msg', error)}); expected one object a line"
        problems.add(where, reason, size=len(line))
        return None
    # The value null is JSON, but must not be taken for a line that was reported above.
    return {} if record is None else record


def _hint(record: Any) -> str:
    """The fields that there are, since one of them may be the text under another name."""
    fields = record if isinstance(record, Mapping) else {}
    names = [str(name) for name, value in fields.items() if isinstance(value, str)]
    return f"; found {', '.join(names[:9])}; name the right one with --fields.text" if names else ""


def _size_of(record: Any) -> int:
    """Characters of the fields that are strings: one of them may be the text under another name."""
    fields = record if isinstance(record, Mapping) else {}
    return sum(len(value) for value in fields.values() if isinstance(value, str))


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
