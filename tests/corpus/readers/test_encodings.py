"""Text in other encodings than UTF-8 is read, binary files are not, and no name decides."""

import random
from pathlib import Path

import pytest

from retro.corpus.readers import Problems, read
from retro.corpus.readers.encodings import DAMAGED, is_binary
from retro.corpus.readers.problems import Kind
from retro.errors import DataError

FRENCH = "L'été dernier, à Noël, le garçon naïf mangea des crêpes près du château.\n"
GERMAN = "Über die größeren Straßen fährt der Bäcker mit süßem Gebäck nach München.\n"
ENGLISH = "He said “yes” – and “no”. It’s fine, though it costs 5 €.\n"
RUSSIAN = "Привет, как дела? Это простой русский текст для проверки.\n"


@pytest.mark.parametrize("name", ["a.txt", "a", "NOTES", "letter.1998"])
@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        (FRENCH, "latin-1"),
        (FRENCH * 500, "windows-1252"),
        (GERMAN, "windows-1252"),
        ("Plain words. " * 2000 + ENGLISH, "windows-1252"),
        ("café", "latin-1"),
        (RUSSIAN, "windows-1251"),
        (RUSSIAN, "koi8-r"),
        (FRENCH, "utf-16"),
        (FRENCH, "utf-16-le"),
        (FRENCH * 100, "utf-16-be"),
        (FRENCH, "utf-32"),
        (FRENCH, "utf-8-sig"),
        (FRENCH, "utf-8"),
    ],
)
def test_a_text_comes_back_whatever_its_encoding(tmp_path: Path, name: str, text: str, encoding: str) -> None:
    (tmp_path / name).write_bytes(text.encode(encoding))
    problems = Problems(strict=True)
    assert [document.text for document in read(str(tmp_path), problems=problems)] == [text]
    assert sum(problems.encodings.values()) == (not encoding.startswith("utf-8"))


def test_damaged_utf8_is_not_taken_for_another_encoding(tmp_path: Path) -> None:
    """It would become a text of other letters. The bytes that were lost do not cost the others."""
    (tmp_path / "a.txt").write_bytes((FRENCH * 50).encode() + b"\xe9 and more")
    problems = Problems()
    assert [document.text for document in read(str(tmp_path), problems=problems)] == [
        FRENCH * 50 + "\ufffd and more"
    ]
    assert problems.encodings == {DAMAGED: 1}
    with pytest.raises(DataError, match=r"is not UTF-8 \(byte \d+ is 0xe9\)"):
        list(read(str(tmp_path)))


@pytest.mark.parametrize(
    "content",
    [
        b"\x89PNG\r\n\x1a\n",
        b"\xff\xd8\xff\xe0 and words",
        b"PK\x03\x04 and words",
        b"text\0text",
        random.Random(0).randbytes(5_000),
        random.Random(1).randbytes(5_000).replace(b"\0", b"a"),
        bytes(range(128, 256)) * 10 + b"\x01\x02\x03" * 80,
    ],
)
@pytest.mark.parametrize("name", ["a.txt", "notes"])
def test_binary_files_are_known_by_content(tmp_path: Path, name: str, content: bytes) -> None:
    assert is_binary(content)
    (tmp_path / name).write_bytes(content)
    (tmp_path / "z.md").write_text("words")
    problems = Problems(strict=True)
    assert [document.id for document in read(str(tmp_path), problems=problems)] == ["z.md"]
    assert {kind: tally.num_bytes for kind, tally in problems.tallies.items()} == {Kind.BINARY: len(content)}


def test_what_is_left_out_of_a_folder_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    (folder / ".obsidian").mkdir(parents=True)
    (folder / ".obsidian" / "app.txt").write_text("settings")
    (folder / ".draft.txt").write_text("hidden words")
    (folder / "data.json").write_text('[\n{"a": 1}\n]')
    (folder / "drawing.svg").write_text("<svg></svg>")
    (folder / "settings.xml").write_text("<settings/>")
    (folder / "empty.txt").write_text("\n")
    (folder / "link").symlink_to(tmp_path)
    (folder / "gone.txt").symlink_to(tmp_path / "nowhere")
    (folder / "Makefile").write_text("all:\n\techo\n")
    (folder / "a.tex").write_text("\\section{One}")
    problems = Problems()
    assert [document.id for document in read(str(folder), problems=problems)] == ["Makefile", "a.tex"]
    assert {kind: tally.documents for kind, tally in problems.tallies.items()} == {
        Kind.HIDDEN: 2,
        Kind.DATA: 3,
        Kind.EMPTY: 1,
        Kind.LINK: 1,
        Kind.UNREADABLE: 1,
    }
    assert problems.tallies[Kind.HIDDEN].num_bytes == len("settings" + "hidden words")


@pytest.mark.parametrize("encoding", ["windows-1252", "utf-16", "utf-8", "utf-8-sig"])
def test_a_table_of_another_encoding_is_read(tmp_path: Path, encoding: str) -> None:
    """As spreadsheets save it; that one bad row does not decide is tested with the other problems."""
    (tmp_path / "a.csv").write_bytes(f'id,text\n1,"{FRENCH}"\n2,"{GERMAN}"\n'.encode(encoding))
    problems = Problems(strict=True)
    assert [document.text for document in read(str(tmp_path), problems=problems)] == [FRENCH, GERMAN]
    assert list(problems.encodings) == ([] if encoding.startswith("utf-8") else [encoding])


def test_documents_that_cannot_be_read_are_lost_text(tmp_path: Path) -> None:
    (tmp_path / "letter.docx").write_bytes(b"PK\x03\x04")
    (tmp_path / "old.rtf").write_text("{\\rtf1 words}")
    (tmp_path / "a.txt").write_text("words")
    problems = Problems(strict=True)
    assert [document.id for document in read(str(tmp_path), problems=problems)] == ["a.txt"]
    assert problems.tallies[Kind.FORMAT].documents == 2
