"""Every reader of the user's own files: records, tables, text, dumps, packed streams, folders, hub names."""

import bz2
import gzip
import io
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from retro.corpus import readers
from retro.corpus.decontamination import read_names
from retro.corpus.readers import FieldMap, Problems
from retro.corpus.readers.sources import fingerprint_of
from retro.questions.examples import read_passages, read_questions
from tests.corpus.readers.pdfs import write_pdf
from tests.fuzz.mutations import WORDS, changed_bytes, changed_file
from tests.fuzz.watch import expect_sound, inputs

ROWS = [
    {"id": number, "text": f"Text {number}, „quoted“.", "title": "A", "x": [1, {}]} for number in range(4)
]
PAGE = "<page><title>{0}</title><ns>0</ns><id>{0}</id><revision><text>'''A''' [[b|c]] {{{{d}}}} {0}</text>"
DUMP = (
    '<mediawiki xml:lang="en"><siteinfo><namespaces><namespace key="6">File</namespace></namespaces>'
    + "</siteinfo>"
    + "".join(PAGE.format(number) + "</revision></page>" for number in range(3))
    + "</mediawiki>"
)


def _parquet() -> bytes:
    import pyarrow
    from pyarrow import parquet

    file = io.BytesIO()
    rows = [{key: str(value) for key, value in row.items()} for row in ROWS]
    parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    return file.getvalue()


def _pdf() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        pages = [["A page of text.", "Its second line."], ["Another page."]]
        return write_pdf(Path(folder, "a.pdf"), pages, "A title").read_bytes()


HTML = "<html lang='en'><head><title>T</title><style>p {}</style></head><body><p>A <b>text</b> &amp; é."
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
TABLE = 'id,text,title\n1,"first, ""quoted""\nline",A\n2,second,B\n3,é雨,C\n'.encode()
FILES: dict[str, bytes] = {
    "records.jsonl": LINES,
    "table.csv": TABLE,
    "table.tsv": TABLE.replace(b",", b"\t"),
    "text.txt": "A text, é雨.\n".encode() * 9,
    "dump.xml": DUMP.encode(),
    "table.parquet": _parquet(),
    "page.html": f"{HTML}</p><script>x()</script></body></html>".encode(),
    "paper.pdf": _pdf(),
    "latin.txt": "Ein schöner Text über Größe und Maß. ".encode("latin-1") * 9,
    "wide.txt": "A text of two bytes a letter, é雨. ".encode("utf-16") * 3,
    "no suffix": LINES,
    "records.jsonl.gz": gzip.compress(LINES),
    "text.txt.bz2": bz2.compress(b"A text.\n" * 9),
    "dump.xml.bz2": bz2.compress(DUMP.encode()),
    "records.jsonl.zst": zstandard.compress(LINES),
    "table.csv.zst": zstandard.compress(TABLE),
}
QUESTION = {"question": "Who?", "answers": ["A", "B"], "ctxs": [{"title": "T", "text": "A b.", "score": "1"}]}
SQUAD = {
    "title": "T_1",
    "paragraphs": [{"context": "A b.", "qas": [{"question": "Who?", "answers": [{"text": "A"}]}]}],
}


def read_all(path: Path, text_field: str = "text", strict: bool = False) -> list[object]:
    """The documents, by the way of `retro ingest`."""
    fingerprint_of(str(path))
    return list(readers.read(str(path), FieldMap(text=text_field), Problems(strict)))


@pytest.mark.parametrize("name", FILES)
def test_files(name: str, tmp_path: Path) -> None:
    @inputs(0.01)
    @given(
        content=changed_file(name, FILES[name]),
        strict=st.booleans(),
        text_field=st.sampled_from(["text", ""]),
    )
    def check(content: bytes, strict: bool, text_field: str) -> None:
        (tmp_path / name).write_bytes(content)
        expect_sound(f"reader {name}", lambda: read_all(tmp_path / name, text_field, strict))

    assert read_all_of(tmp_path, name, FILES[name])
    check()


def read_all_of(folder: Path, name: str, content: bytes) -> list[object]:
    (folder / name).write_bytes(content)
    return read_all(folder / name)


@inputs(0.03)
@given(data=st.data())
def test_folders(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Files of several formats side by side, at times a source tree, with odd names and a changed file."""
    folder = tmp_path_factory.mktemp("folder")
    for name in data.draw(st.lists(st.sampled_from(list(FILES)), unique=True, max_size=4)):
        (folder / name).write_bytes(data.draw(changed_bytes(FILES[name])))
    odd = data.draw(
        st.sampled_from(
            ["", "é雨.txt", ".hidden", "a b.md", "page.html", "no suffix", "\udcff.txt", "x" * 200]
        )
    )
    if odd:
        (folder / odd).write_bytes(data.draw(st.sampled_from([b"", b"text", b"\0", b"\xff\xfe"])))
    kind = data.draw(st.sampled_from(["plain", "tree", "loop", "dead link"]))
    if kind == "tree":
        (folder / "pyproject.toml").write_bytes(b"[project]")
        (folder / ".gitignore").write_bytes(data.draw(changed_bytes(b"*.txt\n!a b.md\n[a-z\n")))
    elif kind == "loop":
        (folder / "loop").symlink_to(folder)
    elif kind == "dead link":
        (folder / "dead.txt").symlink_to(folder / "nowhere")
    expect_sound("reader folders", lambda: read_all(folder))


@inputs(0.02)
@given(name=st.one_of(WORDS, st.text(max_size=12)), prefix=st.sampled_from(["hf:", "hf:a/", ""]))
def test_names(name: str, prefix: str) -> None:
    """Names of the hub, of the catalogue and of paths that are not there."""
    if prefix + name in (".", "/", "..", "../.."):
        return
    expect_sound("reader names", lambda: list(readers.read(prefix + name)))


LISTS: dict[str, tuple[bytes, Callable[[Path], object]]] = {
    "questions.jsonl": (json.dumps(QUESTION).encode() + b"\n", read_questions),
    "questions.json": (json.dumps([QUESTION, QUESTION]).encode(), read_questions),
    "squad.json": (json.dumps({"data": [SQUAD]}).encode(), read_questions),
    "passages.jsonl": (json.dumps(QUESTION["ctxs"][0]).encode() + b"\n", read_passages),  # type: ignore[index]
    "names.txt": ("A name\nAn id é\n".encode(), read_names),
}


@pytest.mark.parametrize("name", LISTS)
def test_lists(name: str, tmp_path: Path) -> None:
    content, read = LISTS[name]

    @inputs(0.01)
    @given(content=changed_file(name, content))
    def check(content: bytes) -> None:
        (tmp_path / name).write_bytes(content)
        expect_sound(f"reader {name}", lambda: read(tmp_path / name))

    (tmp_path / name).write_bytes(content)
    assert read(tmp_path / name)
    check()
