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
    if has_links:
        with pytest.raises(FileExistsError):
            link_or_copy(tmp_path / "second", tmp_path / "name")
    assert (tmp_path / "first").read_text() == "first"


def test_json_keeps_a_name_that_is_not_utf8(tmp_path: Path) -> None:
    value = {"place": "folder/\udcff", "title": "é雨"}
    write_json(tmp_path / "value.json", value)
    assert read_object(tmp_path / "value.json", "write it again") == value
    assert "é雨" in (tmp_path / "value.json").read_text(encoding="utf-8")
