"""Files that have a second name, and what a kill leaves of them."""

from pathlib import Path

import pytest

from retro.stages.files import link_or_copy, read_object, write_json


@pytest.mark.parametrize("has_links", [True, False])
def test_a_link_is_never_written_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_links: bool
) -> None:
    (tmp_path / "first").write_text("first")
    (tmp_path / "second").write_text("second")
    if not has_links:
        monkeypatch.setattr("os.link", lambda *_: (_ for _ in ()).throw(OSError("no links here")))
    link_or_copy(tmp_path / "first", tmp_path / "name")
    assert (tmp_path / "name").read_text() == "first"
    link_or_copy(tmp_path / "second", tmp_path / "name")
    assert (tmp_path / "name").read_text() == "second"
    assert (tmp_path / "first").read_text() == "first"


def test_json_keeps_a_name_that_is_not_utf8(tmp_path: Path) -> None:
    value = {"place": "folder/\udcff", "title": "é雨"}
    write_json(tmp_path / "value.json", value)
    assert read_object(tmp_path / "value.json", "write it again") == value
    assert "é雨" in (tmp_path / "value.json").read_text(encoding="utf-8")


def test_a_second_name_can_be_given_again(tmp_path: Path) -> None:
    """As after a kill: the name may be there already, or that of another finished file."""
    source = tmp_path / "source"
    source.write_text("new")
    other = tmp_path / "other"
    other.write_text("finished")
    target = tmp_path / "target"
    for _ in range(2):
        link_or_copy(source, target)
        assert target.samefile(source)
    link_or_copy(other, target)
    link_or_copy(source, target)
    assert target.read_text() == "new"
    assert other.read_text() == "finished"
