"""PDF files: their pages as text, and a reason where there is none."""

import sys
from pathlib import Path

import pytest

from retro.corpus.documents import Document
from retro.corpus.readers import Problems, read
from retro.corpus.readers.problems import Kind
from retro.errors import DataError, MissingExtraError
from tests.corpus.readers.pdfs import write_pdf


def test_the_pages_are_one_document_with_the_title_of_the_file(tmp_path: Path) -> None:
    path = write_pdf(tmp_path / "a.pdf", [["First page,", "second line"], [], ["Last page"]], "On pages")
    assert list(read(str(path))) == [
        Document("a.pdf", "First page,\nsecond line\n\nLast page\n", "a.pdf", "On pages")
    ]
    # By its content, under another name, and without a title.
    write_pdf(tmp_path / "folder-less", [["words"]])
    (document,) = read(str(tmp_path / "folder-less"))
    assert (document.text, document.title) == ("words\n", "folder-less")


def test_what_gives_no_text_says_why(tmp_path: Path) -> None:
    write_pdf(tmp_path / "scan.pdf", [[], []])
    write_pdf(tmp_path / "locked.pdf", [["secret"]], password="key")
    whole = write_pdf(tmp_path / "cut.pdf", [["words"]]).read_bytes()
    (tmp_path / "cut.pdf").write_bytes(whole[: len(whole) // 3])
    (tmp_path / "page.pdf").write_bytes(b"<html>not found</html>")
    (tmp_path / "a.txt").write_text("text")
    problems = Problems()
    assert [document.id for document in read(str(tmp_path), problems=problems)] == ["a.txt"]
    reasons = {Path(where).name: reason for where, reason in problems.rows}
    assert reasons["scan.pdf"].startswith("has 2 pages and no text, as a scan has")
    assert reasons["locked.pdf"].startswith("is encrypted")
    assert reasons["cut.pdf"].startswith("cannot be read")
    assert reasons["page.pdf"].startswith("is no PDF")
    assert set(problems.tallies) == {Kind.NO_TEXT, Kind.UNREADABLE}
    with pytest.raises(DataError, match=r"locked.pdf is encrypted"):
        list(read(str(tmp_path / "locked.pdf")))


@pytest.mark.parametrize(("name", "module", "extra"), [("a.pdf", "pypdf", "pdf"), ("a.html", "bs4", "html")])
def test_without_its_extra_a_file_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, module: str, extra: str
) -> None:
    write_pdf(tmp_path / name, [["words"]])
    (tmp_path / "b.txt").write_text("text")
    monkeypatch.setitem(sys.modules, module, None)
    problems = Problems()
    assert [document.id for document in read(str(tmp_path), problems=problems)] == ["b.txt"]
    tally = problems.tallies[Kind.EXTRA]
    assert (tally.documents, tally.num_bytes) == (1, (tmp_path / name).stat().st_size)
    assert f"pip install 'retro-lm[{extra}]'" in tally.first[0][1]
    with pytest.raises(MissingExtraError):
        list(read(str(tmp_path)))
