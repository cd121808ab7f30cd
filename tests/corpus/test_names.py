from pathlib import Path

import pytest

from retro.corpus.documents import Document
from retro.corpus.names import matches_names, names_of, read_names, title_key
from retro.errors import DataError


def document(id: str, title: str = "") -> Document:
    return Document(id=id, text="text", source="wikipedia", title=title)


def test_titles_match_in_any_of_their_forms() -> None:
    names = names_of(["Lockheed AC @-@ 130", "Iron_Man", "Cafe\u0301", "Ocean 's 11"])
    for title in (
        "Lockheed AC-130",
        "Iron Man",
        "Iron_Man",
        "Caf\u00e9",
        "Ocean's 11",
        "Lockheed AC @-@ 130",
    ):
        assert matches_names(document("1", title), names), title
    for title in ("Lockheed AC 130", "Iron man", "Cafe", "Oceans 11", "Iron", ""):
        assert not matches_names(document("1", title), names), title


def test_ids_match_exactly() -> None:
    names = names_of(["12", "en_7"])
    assert matches_names(document("12"), names)
    assert matches_names(document("en_7"), names)
    assert not matches_names(document("1 2"), names)
    assert not matches_names(document("en 7"), names)


def test_a_plain_set_of_titles_will_do() -> None:
    assert matches_names(document("1", "Iron Man"), frozenset({"Iron Man"}))
    assert not matches_names(document("1"), frozenset())
    assert not matches_names(document("1"), frozenset({""}))


def test_a_file_has_one_name_a_line(tmp_path: Path) -> None:
    path = tmp_path / "names.txt"
    path.write_text("Robert Boulter\n\n  Du Fu \r\n# 1\n", encoding="utf-8")
    assert read_names(path) == {"Robert Boulter", "RobertBoulter", "Du Fu", "DuFu", "# 1", "#1"}


@pytest.mark.parametrize(
    ("content", "message"), [(None, "does not exist"), (b"\n \n", "no names"), (b"a\n\xff\n", "byte 2")]
)
def test_unusable_files_are_refused(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "names.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_names(path)


def test_title_key_leaves_other_signs_alone() -> None:
    assert title_key("C++") != title_key("C#") != title_key("C")
    assert title_key("me@x@y") == "me@x@y"
