"""Records that cannot be read: counted with their place and skipped, or fatal when strict."""

import gzip
import json
import random
import re
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from retro.corpus.readers import FieldMap, Problems, read
from retro.corpus.readers.problems import Kind
from retro.errors import DataError

WORDS = "".join(random.Random(0).choices("abcdefghij \n", k=400_000)).encode()
PACKED_LINES = b"".join(
    json.dumps({"text": line}).encode() + b"\n" for line in WORDS.decode().split("\n") if line.strip()
)

CASES = [
    ("bad.txt", b"fine \x81\x8f\x90", [], "bad.txt", r"is not UTF-8 \(byte 5 is 0x81\)"),
    ("bad.jsonl", b'{"text": "a"}\n{oops\n{"text": "b"}\n', ["a", "b"], "bad.jsonl line 2", "is not JSON"),
    ("bad.jsonl", b'{"text": "a"}\n{"body": "b"}\n', ["a"], "bad.jsonl line 2", "has no text"),
    ("bad.jsonl", b'{"text": " "}\n{"text": "b"}\n', ["b"], "bad.jsonl line 1", "has no text"),
    ("bad.jsonl", b'["text"]\n{"text": "b"}\n', ["b"], "bad.jsonl line 1", "has no text"),
    ("bad.jsonl", b'{"text": 3}\n{"text": "b"}\n', ["b"], "bad.jsonl line 1", "has no text"),
    ("bad.jsonl", b'{"text": "\xff"}\n{"text": "b"}', ["b"], "bad.jsonl line 1", "is not UTF-8"),
    ("bad.jsonl", b'{"text": "\\ud83d half"}\n{"text": "b"}', ["b"], "bad.jsonl line 1", "surrogate"),
    (
        "bad.jsonl",
        b'{"text": "a", "title": "\\ud83d"}\n{"text": "b"}',
        ["b"],
        "bad.jsonl line 1",
        "surrogate",
    ),
    ("bad.jsonl", b"[" * 100_000 + b'\n{"text": "b"}', ["b"], "bad.jsonl line 1", "is not JSON"),
    ("bad.jsonl", b'{"id": ' + b"1" * 5000 + b'}\n{"text": "b"}', ["b"], "bad.jsonl line 1", "is not JSON"),
    ("bad.csv", b'id,text\n1,"a\nb"\n2,\n3,c\n', ["a\nb", "c"], "bad.csv line 4", "has no text"),
    ("bad.csv", b'id,text\n1,"a\n\xff"\n2,c\n', ["c"], "bad.csv line 2", "is not UTF-8"),
    ("bad.csv", b"id,text\n1,a,b\n2,c\n", ["c"], "bad.csv line 2", "has 3 columns; expected 2"),
    ("bad.csv", b"id,text\n1\n2,c\n", ["c"], "bad.csv line 2", "has 1 columns; expected 2"),
    ("bad.csv", b"id,body\n1,a\n", [], "bad.csv line 1", "has no column text but id, body"),
    ("bad.csv", b'id,text\n1,"a" b\n2,c\n', ["c"], "bad.csv line 2", "is no row of the table"),
    ("bad.csv", b'id,text\n1,a\n2,"c\nnever closed\n', ["a"], "bad.csv line 3", "is no row of the table"),
    ("bad.csv", b'id,"text\n1,a\n', [], "bad.csv line 1", "is no header of a table"),
    ("bad.parquet", b"PAR1 and no more", [], "bad.parquet row 1", "cannot be read"),
]


@pytest.mark.parametrize(("name", "content", "texts", "where", "reason"), CASES)
def test_what_cannot_be_read_is_listed_and_skipped(
    tmp_path: Path, name: str, content: bytes, texts: list[str], where: str, reason: str
) -> None:
    (tmp_path / name).write_bytes(content)
    problems = Problems()
    assert [document.text for document in read(str(tmp_path), problems=problems)] == texts
    assert problems.count == 1
    assert problems.rows[0][0] == str(tmp_path / where)
    assert re.search(reason, problems.rows[0][1])


@pytest.mark.parametrize(("name", "content", "texts", "where", "reason"), CASES)
def test_strict_stops_at_it_with_one_line(
    tmp_path: Path, name: str, content: bytes, texts: list[str], where: str, reason: str
) -> None:
    (tmp_path / name).write_bytes(content)
    for problems in (None, Problems(strict=True)):
        with pytest.raises(DataError, match=f"{where} .*{reason}") as caught:
            list(read(str(tmp_path), problems=problems))
        assert "\n" not in str(caught.value)


def test_a_folder_without_anything_to_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.pdf").write_bytes(b"%PDF")
    with pytest.raises(DataError, match=r"holds no \.jsonl"):
        list(read(str(tmp_path), problems=Problems()))


@pytest.mark.parametrize("name", ["cut.jsonl.gz", "cut.jsonl.zst", "cut.csv.gz"])
def test_an_archive_that_was_cut_off_gives_what_it_has(tmp_path: Path, name: str) -> None:
    content = b"text\n" + WORDS.replace(b"\n", b"x\n") if ".csv" in name else PACKED_LINES
    packed = zstandard.compress(content) if name.endswith("zst") else gzip.compress(content)
    (tmp_path / name).write_bytes(packed[: len(packed) // 2])
    problems = Problems()
    num_read = len(list(read(str(tmp_path / name), problems=problems)))
    assert num_read > 100
    where, reason = problems.rows[-1]
    assert "cannot be read" in reason
    if ".jsonl" in name:
        assert where.endswith(f" line {num_read + 1}")
    with pytest.raises(DataError, match="cut"):
        list(read(str(tmp_path / name)))


def test_zstd_files_of_many_frames_are_read_to_the_end(tmp_path: Path) -> None:
    frames = [zstandard.compress(b'{"text": "%d"}\n' % number) for number in range(3)]
    skippable = b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc"
    (tmp_path / "a.jsonl.zst").write_bytes(skippable + b"".join(frames))
    assert [document.text for document in read(str(tmp_path / "a.jsonl.zst"))] == ["0", "1", "2"]


@pytest.mark.parametrize("checksum", [False, True])
def test_a_zstd_file_is_whole_at_its_last_byte_only(tmp_path: Path, checksum: bool) -> None:
    """Also with a block of one repeated byte, whose size in the header is not the size that it takes."""
    line = b'{"text": "' + b"a" * 300_000 + b'"}\n'
    packed = zstandard.ZstdCompressor(write_checksum=checksum).compress(line)
    path = tmp_path / "a.jsonl.zst"
    for size in range(20, len(packed)):
        path.write_bytes(packed + packed[:size])
        problems = Problems()
        list(read(str(path), problems=problems))
        assert "cannot be read" in problems.rows[-1][1]
    path.write_bytes(packed + packed)
    assert len(list(read(str(path)))) == 2


def test_parquet_names_the_row(tmp_path: Path) -> None:
    raw = pa.array([b"one", b"\xff\xfe", None, b"four"], type=pa.binary())
    text = pa.Array.from_buffers(pa.string(), 4, raw.buffers())
    pq.write_table(pa.table({"text": text}), tmp_path / "a.parquet")
    problems = Problems()
    assert [document.text for document in read(str(tmp_path / "a.parquet"), problems=problems)] == [
        "one",
        "four",
    ]
    assert [(where.rsplit("/")[-1], reason.split(";")[0]) for where, reason in problems.rows] == [
        ("a.parquet row 2", "is not UTF-8"),
        ("a.parquet row 3", "has no text"),
    ]
    problems = Problems()
    assert list(read(str(tmp_path / "a.parquet"), FieldMap(text="body"), problems)) == []
    assert "no column body but text" in problems.rows[0][1]


def test_all_problems_are_counted_and_a_thousand_kept(tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text("{\n" * 1500 + '{"text": "good"}\n')
    problems = Problems()
    assert len(list(read(str(tmp_path), problems=problems))) == 1
    assert (problems.count, len(problems.rows)) == (1500, 1000)


def test_a_harmless_problem_never_stops() -> None:
    problems = Problems(strict=True)
    problems.add("a.png", "is\nbinary", Kind.BINARY)
    assert (problems.count, problems.rows) == (1, [("a.png", "is binary")])


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.csv"])
def test_memory_is_bounded_by_a_record(tmp_path: Path, name: str) -> None:
    """Ten megabytes pass through less than one."""
    lines = [WORDS[start : start + 2000].replace(b"\n", b" ") for start in range(0, len(WORDS), 2000)] * 25
    content = (
        b"text\n" + b"\n".join(lines)
        if name == "a.csv"
        else b"".join(b'{"text": "%b"}\n' % line for line in lines)
    )
    pack = {".gz": gzip.compress, ".zst": zstandard.compress}.get(Path(name).suffix, bytes)
    (tmp_path / name).write_bytes(pack(content))
    del content
    tracemalloc.start()
    assert sum(1 for _ in read(str(tmp_path / name))) == len(lines)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1e6


def test_parquet_holds_one_batch_and_not_a_row_group(tmp_path: Path) -> None:
    texts = [
        f"{number} " + WORDS[start : start + 2000].decode()
        for number, start in enumerate([*range(0, 390_000, 2000)] * 50)
    ]
    pq.write_table(
        pa.table({"text": texts}), tmp_path / "a.parquet", row_group_size=len(texts), compression="none"
    )
    before = pa.total_allocated_bytes()
    held = [pa.total_allocated_bytes() - before for _ in read(str(tmp_path / "a.parquet"))]
    assert len(held) == len(texts)
    assert max(held) < 8e6 < (tmp_path / "a.parquet").stat().st_size / 2
