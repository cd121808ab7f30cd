"""Every format, written for real and read back."""

import bz2
import csv
import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from retro.corpus.documents import Document
from retro.corpus.readers import FieldMap, Problems, read, read_stdlib
from retro.corpus.readers.paths import format_by_content, format_by_name
from retro.errors import ConfigError, DataError

ROWS = [
    {
        "text": 'one, "quoted"\nand a second line',
        "id": "7",
        "title": "One",
        "language": "en",
        "source": "web",
    },
    {"text": "two\tcups ☕", "id": "8", "title": "Two", "language": "de", "source": "web"},
]
DOCUMENTS = [Document(**row) for row in ROWS]


def jsonl(rows: list[dict[str, str]]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def table(path: Path, delimiter: str) -> bytes:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(ROWS[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(ROWS)
    return path.read_bytes()


@pytest.mark.parametrize(
    "name",
    [
        "a.jsonl",
        "a.jsonl.gz",
        "a.jsonl.zst",
        "a.ndjson",
        "a.csv",
        "a.csv.gz",
        "a.csv.zst",
        "a.tsv",
        "a.tsv.gz",
        "a.parquet",
    ],
)
@pytest.mark.parametrize("in_folder", [False, True])
def test_what_was_written_comes_back(tmp_path: Path, name: str, in_folder: bool) -> None:
    path = tmp_path / name
    if name.endswith(".parquet"):
        pq.write_table(pa.Table.from_pylist(ROWS), path, row_group_size=1)
    else:
        content = jsonl(ROWS) if "json" in name else table(path, "\t" if ".tsv" in name else ",")
        pack = {".gz": gzip.compress, ".zst": zstandard.compress}.get(path.suffix, bytes)
        path.write_bytes(pack(content))
    assert list(read(str(tmp_path if in_folder else path))) == DOCUMENTS


def test_a_record_may_have_nothing_but_text(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.jsonl").write_text('\n{"text": "one", "id": null, "title": null}\n')
    (folder / "sub" / "a.jsonl").write_text('{"text": "two", "id": 0}\n{"text": "three"}')
    (folder / "t.csv").write_text("text\nfour\n")
    pq.write_table(pa.table({"text": ["five"]}), folder / "t.parquet")
    found = [(document.id, document.text, document.title, document.source) for document in read(str(folder))]
    assert found == [
        ("a.jsonl:2", "one", "", "mine"),
        ("0", "two", "", "mine"),
        ("sub/a.jsonl:2", "three", "", "mine"),
        ("t.csv:2", "four", "", "mine"),
        ("t.parquet:1", "five", "", "mine"),
    ]


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.parquet"])
def test_a_field_map_names_the_fields(tmp_path: Path, name: str) -> None:
    row = {"body": "one", "key": "k", "head": "One", "lang": "fr", "origin": "books", "text": "not this"}
    if name == "a.parquet":
        pq.write_table(pa.Table.from_pylist([row]), tmp_path / name)
    else:
        (tmp_path / name).write_bytes(
            jsonl([row]) if name == "a.jsonl" else f"{','.join(row)}\n{','.join(row.values())}\n".encode()
        )
    fields = FieldMap(text="body", id="key", title="head", language="lang", source="origin")
    assert list(read(str(tmp_path / name), fields)) == [Document("k", "one", "books", "One", "fr")]


def test_a_folder_gives_its_texts_in_order(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_bytes(b"\xef\xbb\xbftwo\r\n")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.md").write_text("one")
    (tmp_path / "sub" / "c.txt.gz").write_bytes(gzip.compress(b"three", mtime=0))
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    (tmp_path / "settings.xml").write_text("<settings/>")
    (tmp_path / "empty.txt").write_text(" \n")
    found = [(document.id, document.text) for document in read(str(tmp_path))]
    assert found == [("b.txt", "two\r\n"), ("sub/a.md", "one"), ("sub/c.txt.gz", "three")]


def test_the_standard_library_is_a_corpus() -> None:
    documents = {document.id: document for document in read_stdlib()}
    assert "def loads" in documents["json/__init__.py"].text
    assert not any("site-packages" in name or name.startswith("test/") for name in documents)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("a.JSONL.gz", "jsonl"),
        ("a.b.csv.zst", "table"),
        ("x.tsv", "table"),
        ("x.parquet", "parquet"),
        ("enwiki.xml.bz2", "dump"),
        ("README.md", "text"),
        ("data", None),
        ("a.json", None),
    ],
)
def test_names_tell_the_format(name: str, found: str | None) -> None:
    assert format_by_name(Path(name)) == found


@pytest.mark.parametrize(
    ("name", "content", "found"),
    [
        ("data", b'{"text": "a"}\n{"text": "b"}\n', "jsonl"),
        ("data", gzip.compress(b'{"text": "a"}\n', mtime=0), "jsonl"),
        ("data", zstandard.compress(b'{"text": "a"}\n'), "jsonl"),
        ("data", b'{"text": "' + b"a" * 100_000 + b'"}\n', "jsonl"),
        ("data.json", b'[\n{"text": "a"}\n]', None),
        ("data.json", b'{\n"text": "a"\n}', None),
        ("notes", b"{ a brace and words", "text"),
        ("data", b"PAR1....", "parquet"),
        ("enwik8", b"<mediawiki xmlns=", "dump"),
        ("enwik8", bz2.compress(b'<?xml version="1.0"?>\n<mediawiki'), "dump"),
        ("page", b"<html>", "text"),
        ("LICENSE", b"Words.", "text"),
        ("a.out", b"\x7fELF\0\0", "binary"),
    ],
)
def test_content_tells_the_format(tmp_path: Path, name: str, content: bytes, found: str | None) -> None:
    (tmp_path / name).write_bytes(content)
    assert format_by_content(tmp_path / name) == found


def test_a_file_of_no_known_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.out").write_bytes(b"\x7fELF\0")
    with pytest.raises(DataError, match=r"a.out is of no known format; expected .*\.jsonl"):
        list(read(str(tmp_path / "a.out")))


@pytest.mark.parametrize("name", ["wiki.xml", "wiki.xml.gz", "wiki.xml.bz2", "enwik8"])
def test_a_dump_goes_to_its_own_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    from retro.corpus.readers import paths

    pack = {".gz": gzip.compress, ".bz2": bz2.compress}.get(Path(name).suffix, bytes)
    (tmp_path / name).write_bytes(pack(b"<mediawiki></mediawiki>"))
    seen: list[object] = []
    monkeypatch.setattr(
        paths, "read_dump", lambda path, problems: seen.append((path, problems)) or iter(DOCUMENTS)
    )
    problems = Problems()
    assert list(read(str(tmp_path / name), problems=problems)) == DOCUMENTS
    assert seen == [(tmp_path / name, problems)]


def test_a_missing_source_names_the_catalogue() -> None:
    with pytest.raises(DataError, match=r"no corpus of the catalogue.*licences"):
        read("nowhere")


def test_each_source_may_have_fields_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("key,body,text\n1,one,not this\n")
    common = FieldMap(text="body")
    assert [document.text for document in read(f"{tmp_path / 'a.csv'}::text=body")] == ["one"]
    (document,) = read(f"{tmp_path / 'a.csv'}::id=key", common)
    assert document == Document("1", "one", "a.csv")
    # A file may really be called so.
    (tmp_path / "b.csv::text=body").write_text("words")
    assert [document.text for document in read(str(tmp_path / "b.csv::text=body"))] == ["words"]


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ("txt=body", r"names a field txt; expected some of text, id, title, language, source"),
        ("body", r"names its fields as 'body'; expected NAME=FIELD"),
        ("text=", r"expected NAME=FIELD"),
        ("text=a,text=b", r"each once"),
    ],
)
def test_a_field_map_that_cannot_be_is_refused(tmp_path: Path, own: str, message: str) -> None:
    (tmp_path / "a.csv").write_text("text\none\n")
    with pytest.raises(ConfigError, match=message):
        list(read(f"{tmp_path / 'a.csv'}::{own}"))
    with pytest.raises(ConfigError, match="expected licences alone"):
        read("licences::text=body")


def test_a_single_file_is_its_own_source(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "b.jsonl").write_text('{"text": "two"}\n{"text": "three", "source": "web"}\n')
    found = [document for name in ("a.txt", "b.jsonl") for document in read(str(tmp_path / name))]
    assert [(document.source, document.id) for document in found] == [
        ("a.txt", "a.txt"),
        ("b.jsonl", "b.jsonl:1"),
        ("web", "b.jsonl:2"),
    ]
