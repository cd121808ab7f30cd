import gzip
import json
from pathlib import Path

import pytest

from retro.corpus.readers import read, read_stdlib
from retro.errors import DataError


def test_a_folder_gives_its_texts_in_order(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("two")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.md").write_text("one")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    assert [(document.id, document.text) for document in read(str(tmp_path))] == [("b.txt", "two"), ("sub/a.md", "one")]


@pytest.mark.parametrize("packed", [False, True])
def test_jsonl_keeps_what_it_is_given(tmp_path: Path, packed: bool) -> None:
    rows = [{"text": "one", "id": 7, "title": "One", "source": "web"}, {"text": "two ☕"}]
    content = ("\n".join(map(json.dumps, rows)) + "\n\n").encode()
    path = tmp_path / ("data.jsonl.gz" if packed else "data.jsonl")
    path.write_bytes(gzip.compress(content) if packed else content)
    first, second = read(str(path))
    assert (first.id, first.text, first.title, first.source) == ("7", "one", "One", "web")
    assert (second.id, second.text, second.source) == (f"{path.name}:2", "two ☕", tmp_path.name)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("bad.txt", b"fine \xff\xfe", r"bad.txt is not UTF-8 \(byte 5 is 0xff\)"),
        ("bad.jsonl", b'{"text": "a"}\n{oops\n', "line 2 is not JSON"),
        ("bad.jsonl", b'{"text": "a"}\n{"body": "b"}\n', "line 2 has no text"),
        ("bad.jsonl", b'{"text": "\xff"}\n', "line 1 is not UTF-8"),
        ("other.pdf", b"%PDF", "holds no .jsonl"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        list(read(str(tmp_path)))


def test_a_missing_source_names_the_catalogue() -> None:
    with pytest.raises(DataError, match=r"no corpus of the catalogue.*licences"):
        read("nowhere")


def test_the_standard_library_is_a_corpus() -> None:
    documents = {document.id: document for document in read_stdlib()}
    assert "def loads" in documents["json/__init__.py"].text
    assert not any("site-packages" in name or name.startswith("test/") for name in documents)
