"""Tables with a header: CSV and TSV, plain or packed, and Parquet."""

import csv
import importlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from retro.corpus.documents import Document
from retro.corpus.readers.encodings import UTF8, encoding_of_table
from retro.corpus.readers.problems import Kind, Problems
from retro.corpus.readers.records import FieldMap, to_document
from retro.corpus.readers.streams import BROKEN, count_bytes, metered, open_stream

MAX_FIELD = 64 * 2**20
"""Characters of one CSV field; it bounds what an unclosed quote can swallow."""

HEAD = 64 * 1024
"""Bytes that tell the encoding of a table."""
BATCH_ROWS = 256
READ_BYTES = 2**20
"""What is read of a Parquet column at a time; Arrow would otherwise hold all of a row group's column."""


def read_csv(file: Path, name: str, source: str, fields: FieldMap, problems: Problems) -> Iterator[Document]:
    """One document a row, called `NAME:LINE` if it has no id. Tabs separate the columns of a .tsv file."""
    delimiter = "\t" if ".tsv" in file.name.lower() else ","
    number = 0
    try:
        with open_stream(file) as stream:
            size = file.stat().st_size
            encoding = _encoding_of(file, problems)
            rows = csv_records(stream, str(file), delimiter, fields.text, problems, size, encoding)
            for number, record in rows:
                document = to_document(
                    record, f"{file} line {number}", f"{name}:{number}", source, fields, problems
                )
                if document is not None:
                    yield document
    except BROKEN as error:
        problems.add(
            f"{file} line {number + 1}",
            f"or one soon after it cannot be read ({error}); expected a whole file; fetch it again",
        )


def _encoding_of(file: Path, problems: Problems) -> str:
    # A meter of its own, whose count is dropped: the file is read again from its beginning.
    with metered(), open_stream(file) as stream:
        encoding = encoding_of_table(stream.read(HEAD))
    if encoding != UTF8:
        problems.encodings[encoding] += 1
    return encoding


def csv_records(
    stream: IO[bytes],
    where: str,
    delimiter: str,
    required: str,
    problems: Problems,
    size: int = 0,
    encoding: str = UTF8,
) -> Iterator[tuple[int, dict[str, str]]]:
    """The rows by column, each with the number of its first line; `size` is that of the file in bytes.

    Bytes that are not UTF-8 pass the parser as lone surrogates, so that one bad row does not shift the quotes
    of the others.
    """
    csv.field_size_limit(max(csv.field_size_limit(), MAX_FIELD))
    with io.TextIOWrapper(stream, encoding=encoding, errors="surrogateescape", newline="") as lines:
        # Strict: a quote out of place is an error, not a guess.
        rows = csv.reader(lines, delimiter=delimiter, strict=True)
        try:
            header = next(rows, [])
        except (csv.Error, UnicodeDecodeError) as error:
            problems.add(
                f"{where} line 1", f"is no header of a table ({error}); expected the names of the columns"
            )
            return
        if required not in header:
            found = ", ".join(header).encode(errors="replace").decode() or "nothing"
            problems.add(
                f"{where} line 1",
                f"has no column {required} but {found}; expected it; name the right one with --fields.text",
                Kind.NO_TEXT,
                size,
            )
            return
        while True:
            # A row may span several lines; it is named by its first.
            number = rows.line_num + 1
            try:
                row = next(rows)
            except StopIteration:
                return
            except csv.Error as error:
                problems.add(
                    f"{where} line {number}",
                    f"is no row of the table ({error}); expected {len(header)} columns",
                )
                continue
            except UnicodeDecodeError as error:
                # Half a character of UTF-16 is at the very end, where nothing can follow.
                problems.add(f"{where} line {number}", f"ends within a character ({error.reason})")
                return
            fault = _fault_of(row, header)
            if fault:
                problems.add(f"{where} line {number}", fault, size=sum(map(len, row)))
            elif row:
                yield number, dict(zip(header, row, strict=True))


def _fault_of(row: list[str], header: list[str]) -> str | None:
    if any(not field.isascii() and _has_bad_bytes(field) for field in row):
        return "is not UTF-8; expected UTF-8; convert or remove it"
    if row and len(row) != len(header):
        return f"has {len(row)} columns; expected {len(header)} as in the header"
    return None


def _has_bad_bytes(field: str) -> bool:
    """Whether a byte came through as a lone surrogate; encoding is quicker than looking at each character."""
    try:
        field.encode()
    except UnicodeEncodeError:
        return True
    return False


def read_parquet(
    file: Path, name: str, source: str, fields: FieldMap, problems: Problems
) -> Iterator[Document]:
    """One document a row, from one batch of a row group at a time; only the mapped columns are read."""
    # Parquet is loaded where there is such a file, as it takes a moment.
    arrow: Any = importlib.import_module("pyarrow")
    parquet: Any = importlib.import_module("pyarrow.parquet")
    number = 0
    try:
        with parquet.ParquetFile(file, pre_buffer=False, buffer_size=READ_BYTES) as table:
            found = table.schema_arrow.names
            if fields.text not in found:
                reason = f"has no column {fields.text} but {', '.join(found)}; expected it; "
                reason += "name the right one with --fields.text"
                problems.add(str(file), reason, Kind.NO_TEXT, file.stat().st_size)
                return
            # Each column once, even if two fields are mapped to the same.
            columns = [column for column in dict.fromkeys(fields.names()) if column in found]
            for batch in table.iter_batches(batch_size=BATCH_ROWS, columns=columns):
                # Arrow opens the file itself, so its bytes are counted by the share of rows that were read.
                count_bytes(file.stat().st_size * batch.num_rows // table.metadata.num_rows)
                for record in _rows(batch):
                    number += 1
                    where = f"{file} row {number}"
                    if record is None:
                        problems.add(where, "is not UTF-8; expected UTF-8; convert or remove it")
                    elif document := to_document(record, where, f"{name}:{number}", source, fields, problems):
                        yield document
    except (arrow.ArrowException, OSError) as error:
        problems.add(
            f"{file} row {number + 1}",
            f"cannot be read ({error}); expected a whole Parquet file; fetch it again",
        )


def _rows(batch: Any) -> list[dict[str, Any] | None]:
    """The rows of a batch, None for one that is not UTF-8: Arrow finds that only when it makes strings."""
    try:
        return batch.to_pylist()
    except UnicodeDecodeError:
        return [_row(batch.slice(index, 1)) for index in range(batch.num_rows)]


def _row(batch: Any) -> dict[str, Any] | None:
    try:
        return batch.to_pylist()[0]
    except UnicodeDecodeError:
        return None
