import json
import shutil
from pathlib import Path

import pytest

from retro.artifacts import Artifact, Stage, atomic_write, open_artifact, run_stage
from retro.errors import ArtifactError


def write_letter(letter: str, path: Path, **config: object) -> Artifact:
    def work(stage: Stage) -> None:
        with stage.write("letter") as file:
            file.write(letter.encode())
        stage.counts["letters"] = 1

    return run_stage(path, "letters", dict(config), {"input": "abc"}, work, "make letters")


def test_a_finished_stage_is_reused(tmp_path: Path) -> None:
    first = write_letter("a", tmp_path / "out", size=1)
    again = write_letter("b", tmp_path / "out", size=1)
    assert again.file("letter").read_text() == "a"
    assert again.fingerprint == first.fingerprint
    again.check()


def test_other_settings_are_refused_and_named(tmp_path: Path) -> None:
    write_letter("a", tmp_path / "out", size=1)
    with pytest.raises(ArtifactError, match=r"size differ.*make letters"):
        write_letter("b", tmp_path / "out", size=2)
    assert (tmp_path / "out" / "letter").read_text() == "a"


def test_an_interrupted_stage_goes_on_with_what_it_has(tmp_path: Path) -> None:
    made: list[str] = []

    def work(stage: Stage) -> None:
        for name in "abc":
            if not stage.has(name):
                if name == "c" and len(made) == 2:
                    raise KeyboardInterrupt
                made.append(name)
                with stage.write(name) as file:
                    file.write(name.encode())

    with pytest.raises(KeyboardInterrupt):
        run_stage(tmp_path / "out", "letters", {}, {}, work, "make letters")
    assert not (tmp_path / "out").exists()
    made.append("pause")
    run_stage(tmp_path / "out", "letters", {}, {}, work, "make letters")
    assert made == ["a", "b", "pause", "c"]


def test_a_begun_stage_of_other_settings_is_refused(tmp_path: Path) -> None:
    """Hours of training may lie in it; a mistyped option must not cost them."""

    def broken(stage: Stage) -> None:
        with stage.write("old") as file:
            file.write(b"old")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        run_stage(tmp_path / "out", "letters", {"size": 1}, {"input": "abc"}, broken, "make letters")
    with pytest.raises(ArtifactError, match=r"out.partial was made with other settings or inputs \(size differ\)"):
        write_letter("a", tmp_path / "out", size=2)
    assert (tmp_path / "out.partial" / "old").exists()


def test_a_stage_that_left_nothing_may_begin_with_other_settings(tmp_path: Path) -> None:
    def broken(_stage: Stage) -> None:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        run_stage(tmp_path / "out", "letters", {"size": 1}, {"input": "abc"}, broken, "make letters")
    assert write_letter("a", tmp_path / "out", size=2).counts == {"letters": 1}


def test_a_kill_just_before_the_end_leaves_no_trace(tmp_path: Path) -> None:
    unbroken = write_letter("a", tmp_path / "unbroken", size=1)
    partial = tmp_path / "out.partial"
    shutil.copytree(unbroken.path, partial)  # the manifest stood there, the folder was not renamed yet
    (partial / "letter.tmp").write_text("half")
    artifact = write_letter("a", tmp_path / "out", size=1)
    artifact.check()
    assert artifact.manifest == unbroken.manifest
    assert {path.name for path in artifact.path.iterdir()} == {"letter", "manifest.json"}


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(OSError, match="full"), atomic_write(path) as file:
        file.write(b"half")
        raise OSError("full")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_changed_byte_is_found_and_named(tmp_path: Path) -> None:
    artifact = write_letter("a", tmp_path / "out")
    artifact.file("letter").write_text("b")
    with pytest.raises(ArtifactError, match="letter does not match its checksum"):
        artifact.check()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "manifest.json").unlink(), "no manifest.json"),
        (lambda folder: (folder / "manifest.json").write_text("{"), "not readable JSON"),
        (lambda folder: (folder / "manifest.json").write_text(json.dumps({"kind": "numbers", "format": 1})), "is a 'numbers' folder"),
    ],
)
def test_a_damaged_folder_says_what_to_run(tmp_path: Path, damage, message: str) -> None:  # type: ignore[no-untyped-def]
    write_letter("a", tmp_path / "out")
    damage(tmp_path / "out")
    with pytest.raises(ArtifactError, match=f"{message}.*make letters"):
        open_artifact(tmp_path / "out", "letters", "make letters")
