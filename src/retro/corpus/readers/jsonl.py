"""JSON Lines: one object a line, plain or packed."""

import json
from collections.abc import Iterator
from pathlib import Path

from retro.corpus.documents import Document
from retro.corpus.readers.records import FieldMap, Problems, decode_utf8, to_document
from retro.corpus.readers.streams import BROKEN, open_stream


def read_jsonl(
    file: Path, name: str, source: str, fields: FieldMap, problems: Problems
) -> Iterator[Document]:
    """One document a line. A record without an id is called `NAME:LINE`."""
    number = 0
    try:
        with open_stream(file) as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    document = _parse(
                        line, f"{file} line {number}", f"{name}:{number}", source, fields, problems
                    )
                    if document is not None:
                        yield document
    except BROKEN as error:
        problems.add(
            f"{file} line {number + 1}", f"cannot be read ({error}); expected a whole file; fetch it again"
        )


def _parse(
    line: bytes, where: str, fallback_id: str, source: str, fields: FieldMap, problems: Problems
) -> Document | None:
    text = decode_utf8(line, where, problems)
    if text is None:
        return None
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        # ValueError alone: a number of thousands of digits
        problems.add(where, f"is not JSON ({getattr(error, 'msg', error)}); expected one object a line")
        return None
    return to_document(record, where, fallback_id, source, fields, problems)
