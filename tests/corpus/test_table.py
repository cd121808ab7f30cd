"""The table of documents: by row, by column, without holding it, and never a crash where it is damaged."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from retro.corpus import table as module
from retro.corpus.table import COLUMNS, DocumentTable, TableWriter
from retro.errors import ArtifactError
from retro.retrieval.chunks import short_hash


def rows(number: int) -> list[dict[str, Any]]:
    return [
        {
            "id": f"id {index}",
            "source": f"source {index // 7 % 3}",
            "title": "naïve „Grüße“ 雨" if index % 2 else "",
            "language": "en",
            "content_hash": f"{index * 0x123456789ABCDEF:032x}",
        }
        for index in range(number)
    ]


def write(path: Path, number: int) -> DocumentTable:
    with path.open("wb") as file, TableWriter(file) as table:
        for row in rows(number):
            table.add({**row, "num_tokens": 3})
    return DocumentTable.open(path, "make it again")


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH", 5)


@pytest.mark.parametrize("number", [0, 1, 5, 12, 40])
def test_rows_and_columns_are_those_that_were_written(tmp_path: Path, number: int) -> None:
    table, expected = write(tmp_path / "t.arrow", number), rows(number)
    assert len(table) == number
    assert list(table) == expected
    assert [table[index] for index in range(number)] == expected
    assert [table[index - number] for index in range(number)] == expected
    assert list(table[2:9:2]) == expected[2:9:2]
    for name in COLUMNS:
        assert table.column(name).tolist() == [row[name] for row in expected]
        names, codes = table.coded(name)
        assert [names[code] for code in codes] == [row[name] for row in expected]
        assert names == list(dict.fromkeys(row[name] for row in expected))
    hashes = [short_hash(row["content_hash"]) for row in expected]
    assert table.short_hashes().tolist() == hashes
    assert table.short_hashes().dtype == np.uint64
    with pytest.raises(IndexError):
        table[number]


class Counting(io.BytesIO):
    """Counts what is read."""

    num_read = 0

    def read(self, size: int | None = -1) -> bytes:
        found = super().read(size)
        self.num_read += len(found)
        return found


def test_opening_and_a_row_read_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH", 1000)
    file = io.BytesIO()
    with TableWriter(file) as table:
        for row in rows(40_000):
            table.add(row)
    counting = Counting(file.getvalue())
    opened = DocumentTable(pa.PythonFile(counting, mode="r"))
    size = len(counting.getvalue())
    # The first batch and the last are asked how long they are.
    assert counting.num_read < 0.1 * size
    before = counting.num_read
    assert opened[23_456]["id"] == "id 23456"
    assert counting.num_read - before < 0.05 * size


def test_a_mapped_table_is_not_read_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH", 1000)
    path = tmp_path / "t.arrow"
    before = pa.total_allocated_bytes()
    table = write(path, 20_000)
    assert sum(1 for _ in table) == 20_000
    assert pa.total_allocated_bytes() - before < 0.1 * path.stat().st_size


def test_lines_of_an_earlier_version_are_read(tmp_path: Path) -> None:
    path = tmp_path / "documents.jsonl"
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows(12)))
    assert list(DocumentTable.open(path, "")) == rows(12)
    for damaged in ("{", "{}", "[]", '{"id": 1}', path.read_text().replace("0123", "wxyz")):
        path.write_text(damaged)
        with pytest.raises(ArtifactError, match=r"documents.jsonl is damaged .*one JSON object a line; mend"):
            DocumentTable.open(path, "mend it")


def test_other_columns_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.arrow"
    table = pa.table({"id": ["a"]})
    with pa.ipc.new_file(str(path), table.schema) as file:
        file.write_table(table)
    with pytest.raises(ArtifactError, match=r"t.arrow is damaged \(it has the columns id\).*make it again"):
        DocumentTable.open(path, "make it again")


def test_a_document_without_a_value_is_refused(tmp_path: Path) -> None:
    with pa.ipc.new_file(str(tmp_path / "t.arrow"), module.SCHEMA) as file:
        file.write_batch(pa.RecordBatch.from_pylist([{**rows(1)[0], "content_hash": None}], module.SCHEMA))
    with pytest.raises(ArtifactError, match="without all columns"):
        DocumentTable.open(tmp_path / "t.arrow", "make it again")[0]


def test_any_damage_is_told_in_one_line_or_does_no_harm(tmp_path: Path) -> None:
    """Bytes anywhere: what Arrow would follow out of the file is found first."""
    path = tmp_path / "t.arrow"
    write(path, 23)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    told = []
    for _ in range(400):
        data = bytearray(whole)
        place = int(rng.integers(len(data)))
        data[place : place + 4] = rng.integers(0, 256, 4, dtype=np.uint8).tobytes()
        path.write_bytes(data[: len(whole)] if rng.random() < 0.9 else data[: int(rng.integers(len(data)))])
        try:
            table = DocumentTable.open(path, "make it again")
            list(table)
            table.short_hashes()
            table.coded("source")
        except ArtifactError as error:
            told.append(str(error))
    assert len(told) > 100
    assert all(text.startswith(f"{path} is damaged (") and "\n" not in text for text in told)
