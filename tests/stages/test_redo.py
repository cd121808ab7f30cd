"""What is removed before a stage begins anew, and what is not."""

from pathlib import Path

import pytest

from retro.errors import ArtifactError
from retro.stages.redo import removal_of
from retro.stages.stage import Stage, run_stage


def make(path: Path, fails: bool = False) -> None:
    def work(stage: Stage) -> None:
        with stage.write("letter") as file:
            file.write(b"a" * 2_000_000)
        if fails:
            raise RuntimeError

    run_stage(path, "letters", {}, {}, work, "make letters")


def test_it_is_told_before_it_is_done(tmp_path: Path) -> None:
    make(tmp_path / "done")
    with pytest.raises(RuntimeError):
        make(tmp_path / "begun", fails=True)
    (tmp_path / "below").mkdir()
    found = removal_of(
        [tmp_path / "done", tmp_path / "begun", tmp_path / "absent"],
        [tmp_path / "absent.json"],
        [tmp_path / "below", tmp_path / "none"],
    )
    assert found.lines() == [
        f"removes {tmp_path / 'done'} (2.0 MB)",
        f"removes {tmp_path / 'begun.partial'} (2.0 MB)",
        f"{tmp_path / 'below'} was made from it and stays as it is",
    ]
    assert (tmp_path / "done").exists()
    found.carry_out()
    assert {path.name for path in tmp_path.iterdir()} == {"below"}
    make(tmp_path / "done")
    assert not removal_of([tmp_path / "absent"])


def test_what_no_stage_has_made_is_never_removed(tmp_path: Path) -> None:
    make(tmp_path / "done")
    mine = tmp_path / "done" / "my-notes.txt"
    mine.write_text("mine")
    with pytest.raises(ArtifactError, match=r"my-notes.txt was not made by this stage; .* move it away"):
        removal_of([tmp_path / "done"])
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "photo").write_text("mine")
    (tmp_path / "other.partial").mkdir()
    (tmp_path / "other.partial" / "photo").write_text("mine")
    for name in ("folder", "other"):
        with pytest.raises(ArtifactError, match="was not made by this stage"):
            removal_of([tmp_path / name])
    assert mine.read_text() == "mine"


def test_a_kill_while_removing_leaves_no_half_of_a_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / "done")

    def killed(path: Path, ignore_errors: bool = False) -> None:
        if not ignore_errors:
            (path / "letter").unlink()
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("retro.stages.redo.shutil.rmtree", killed)
        removal_of([tmp_path / "done"]).carry_out()
    assert not (tmp_path / "done").exists()
    make(tmp_path / "done")
    removal_of([tmp_path / "done"]).carry_out()
    assert list(tmp_path.iterdir()) == []
