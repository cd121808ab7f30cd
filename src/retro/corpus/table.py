"""The table of a token store's documents: an Arrow file that is read by row or by column where it lies.

Opening it reads its last few bytes, and neither that nor any row depends on how many documents there are.
"""

import json
import mmap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa

from retro.errors import ArtifactError
from retro.stages.files import DAMAGED

NAME = "documents.arrow"
LINES = "documents.jsonl"
"""What earlier versions wrote: one JSON object a line."""
COLUMNS = ("id", "source", "title", "language", "content_hash")
HASH = "content_hash"
HASH_BYTES = 16
SCHEMA = pa.schema([(name, pa.binary(HASH_BYTES) if name == HASH else pa.string()) for name in COLUMNS])
BATCH = 1 << 14
"""Documents that are written together. All batches but the last have as many."""


class DocumentTable(Sequence[dict[str, str]]):
    """Id, source, title, language and content hash of every document, as dictionaries or by column."""

    def __init__(self, file: Any, name: str = "a table of documents", remedy: str = "make it again") -> None:
        """`file` is Arrow's, mapped or in memory; the others say what it is called, and what mends it."""
        self._name = name
        self._remedy = remedy
        self._sound: set[int] = set()
        # The last batches stay at hand: rows are mostly asked for in turn.
        self._batch = lru_cache(maxsize=4)(self._read_batch)
        try:
            self._reader = pa.ipc.open_file(file)
            if self._reader.schema != SCHEMA:
                raise ValueError(f"it has the columns {', '.join(self._reader.schema.names)}")
            self._num_batches = self._reader.num_record_batches
            ends = [self._reader.get_batch(number).num_rows for number in self._ends()]
        except DAMAGED as error:
            raise self._damaged(error) from None
        self._batch_len = ends[0] if ends else BATCH
        self._len = self._batch_len * (self._num_batches - 1) + ends[-1] if ends else 0

    @staticmethod
    def open(path: Path, remedy: str) -> "DocumentTable":
        """The table of a file; one of an earlier version is read into memory."""
        is_older = path.suffix == Path(LINES).suffix
        try:
            if is_older:
                return DocumentTable.of(_lines(path))
            file = _mapped(path)
        except DAMAGED as error:
            expected = "expected one JSON object a line" if is_older else EXPECTED
            raise ArtifactError(f"{path} is damaged ({_one_line(error)}); {expected}; {remedy}") from None
        return DocumentTable(file, str(path), remedy)

    @staticmethod
    def of(rows: Iterable[dict[str, Any]]) -> "DocumentTable":
        """A table in memory."""
        file = pa.BufferOutputStream()
        with TableWriter(file) as table:
            for row in rows:
                table.add(row)
        return DocumentTable(pa.BufferReader(file.getvalue()))

    def __len__(self) -> int:
        return self._len

    def __getitem__(self, key):  # type: ignore[no-untyped-def]
        if isinstance(key, slice):
            return DocumentTable.of(self[number] for number in range(*key.indices(len(self))))
        number = range(len(self))[key]  # counts from the end where it is negative, and raises IndexError
        batch = self._batch(number // self._batch_len)
        return _row(batch.slice(number % self._batch_len, 1).to_pylist()[0])

    def __iter__(self) -> Iterator[dict[str, str]]:
        for batch in self._batches():
            yield from map(_row, batch.to_pylist())

    def column(self, name: str) -> np.ndarray:
        """One column as an array of strings, which are in memory."""
        parts = [_texts(batch.column(name).to_pylist()) for batch in self._batches()]
        return np.concatenate([np.zeros(0, dtype=object), *parts])

    def coded(self, name: str) -> tuple[list[str], np.ndarray]:
        """The different values of a column, in the order in which they come, and the number of each row's
        among them: four bytes a document."""
        numbers: dict[str, int] = {}
        codes = np.empty(len(self), dtype=np.int32)
        start = 0
        for batch in self._batches():
            encoded = batch.column(name).dictionary_encode()
            known = [
                numbers.setdefault(_text(value), len(numbers)) for value in encoded.dictionary.to_pylist()
            ]
            # Arrow's own way to NumPy would load pandas.
            indices = np.frombuffer(encoded.indices.buffers()[1], dtype=np.int32)[: len(encoded)]
            codes[start : start + len(encoded)] = np.array(known, dtype=np.int32)[indices]
            start += len(encoded)
        return list(numbers), codes

    def short_hashes(self) -> np.ndarray:
        """The first 64 bits of every content hash."""
        hashes = np.empty(len(self), dtype=np.uint64)
        start = 0
        for batch in self._batches():
            digests = np.frombuffer(batch.column(HASH).buffers()[1], dtype=np.uint8)
            digests = digests[: batch.num_rows * HASH_BYTES].reshape(-1, HASH_BYTES)
            hashes[start : start + len(digests)] = np.ascontiguousarray(digests[:, :8]).view(">u8")[:, 0]
            start += len(digests)
        return hashes

    def _ends(self) -> tuple[int, ...]:
        return (0, self._num_batches - 1) if self._num_batches else ()

    def _batches(self) -> Iterator[Any]:
        for number in range(self._num_batches):
            yield self._batch(number)

    def _read_batch(self, number: int) -> Any:
        """A batch, looked through once before it is used: a damaged one could lead anywhere in memory."""
        try:
            batch = self._reader.get_batch(number)
            if number not in self._sound:
                batch.validate(full=True)
                is_last = number == self._num_batches - 1
                if batch.num_rows != self._batch_len and not is_last:
                    raise ValueError(f"batch {number} holds {batch.num_rows} documents")
                if any(column.null_count for column in batch.columns):
                    raise ValueError(f"batch {number} has documents without all columns")
        except DAMAGED as error:
            raise self._damaged(error) from None
        self._sound.add(number)
        return batch

    def _damaged(self, error: Exception) -> ArtifactError:
        return ArtifactError(f"{self._name} is damaged ({_one_line(error)}); {EXPECTED}; {self._remedy}")


class TableWriter:
    """Writes rows, of which a batch is held."""

    def __init__(self, file: IO[bytes] | Any) -> None:
        self._writer = pa.ipc.new_file(file, SCHEMA)
        self._rows: list[dict[str, Any]] = []

    def __enter__(self) -> "TableWriter":
        return self

    def add(self, row: dict[str, Any]) -> None:
        """Write a row; what it has beside the columns is dropped."""
        values = {name: row[name] for name in COLUMNS}
        digest = bytes.fromhex(values[HASH])
        if len(digest) != HASH_BYTES:
            raise ValueError(f"content hash {values[HASH]!r} has {len(digest)} bytes; expected {HASH_BYTES}")
        self._rows.append(values | {HASH: digest})
        if len(self._rows) == BATCH:
            self._flush()

    def _flush(self) -> None:
        if self._rows:
            columns = [_packed(name, [row[name] for row in self._rows]) for name in COLUMNS]
            self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))
            self._rows = []

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._flush()
            self._writer.close()
            return
        # The file is given up. Arrow would complain that it ends nowhere, in place of the error itself.
        with suppress(OSError, ValueError):
            self._writer.close()


EXPECTED = "expected a whole table of documents"


def _mapped(path: Path) -> Any:
    """A file where it lies. Arrow's own way to map one takes no path that is not UTF-8."""
    with path.open("rb") as file:
        return pa.BufferReader(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def _packed(name: str, values: list[Any]) -> Any:
    """A column of a batch. From a list, Arrow would load pandas to see whether it is one of its own."""
    if name == HASH:
        digests = pa.py_buffer(b"".join(values))
        return pa.Array.from_buffers(SCHEMA.field(name).type, len(values), [None, digests])
    texts = [value.encode() for value in values]
    ends = np.cumsum([0, *map(len, texts)], dtype=np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(texts))]
    return pa.Array.from_buffers(SCHEMA.field(name).type, len(values), buffers)


def _row(values: dict[str, Any]) -> dict[str, str]:
    return values | {HASH: values[HASH].hex()}


def _text(value: str | bytes) -> str:
    return value.hex() if isinstance(value, bytes) else value


def _texts(values: list[str | bytes]) -> np.ndarray:
    texts = np.empty(len(values), dtype=object)
    texts[:] = [_text(value) for value in values]
    return texts


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
