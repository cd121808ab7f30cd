import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from retro.errors import ArtifactError
from retro.stages import stage as stages
from retro.stages.files import atomic_write
from retro.stages.stage import (
    Artifact,
    Stage,
    find_finished,
    open_artifact,
    recorded_inputs,
    reopen_broken,
    run_stage,
)


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
    with pytest.raises(
        ArtifactError, match=r"out.partial was made with other settings or inputs \(size differ\)"
    ):
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
        (
            lambda folder: (folder / "manifest.json").write_text(
                json.dumps({"kind": "numbers", "format": 1})
            ),
            "is a 'numbers' folder",
        ),
    ],
)
def test_a_damaged_folder_says_what_to_run(tmp_path: Path, damage, message: str) -> None:
    write_letter("a", tmp_path / "out")
    damage(tmp_path / "out")
    with pytest.raises(ArtifactError, match=f"{message}.*make letters"):
        open_artifact(tmp_path / "out", "letters", "make letters")


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
def test_a_damaged_manifest_is_found(tmp_path: Path, damage: str) -> None:
    """A count that is off by one is still JSON; only the manifest's own checksum tells."""
    artifact = write_letter("a", tmp_path / "out")
    artifact.check()
    manifest = artifact.file("manifest.json")
    whole = manifest.read_text()
    assert '"letters": 1' in whole
    manifest.write_text(whole.replace('"letters": 1', '"letters": 3') if damage == "flip" else whole[:-9])
    if damage == "remove":
        manifest.unlink()
    for look in (artifact.check, lambda: reopen_broken(artifact.path)):
        with pytest.raises(
            ArtifactError,
            match=r"manifest.json is missing or does not match its checksum; remove .*out and run",
        ):
            look()
    assert artifact.file("letter").exists()


def test_a_kill_while_mending_leaves_a_folder_that_can_be_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = write_letter("a", tmp_path / "out")
    artifact.file("letter").write_text("b")

    def killed(_: Path) -> Path:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(stages, "partial_of", killed)  # asked for just before the folder is renamed
        reopen_broken(artifact.path)
    assert reopen_broken(artifact.path) == [str(artifact.file("letter"))]
    assert write_letter("a", tmp_path / "out").manifest == artifact.manifest


def test_what_is_finished_or_begun_says_with_which_inputs(tmp_path: Path) -> None:
    def broken(_stage: Stage) -> None:
        raise RuntimeError

    path = tmp_path / "out"
    assert recorded_inputs(path) == {}
    assert find_finished(path, "letters", {"size": 1}, {"input": "abc"}, "make letters") is None
    with pytest.raises(RuntimeError):
        run_stage(path, "letters", {"size": 1}, {"input": "begun"}, broken, "make letters")
    assert recorded_inputs(path) == {"input": "begun"}
    artifact = write_letter("a", path, size=1)
    assert recorded_inputs(path) == {"input": "abc"}
    assert find_finished(path, "letters", {"size": 1}, {"input": "abc"}, "make letters") == artifact
    with pytest.raises(ArtifactError, match=r"size differ.*make letters"):
        find_finished(path, "letters", {"size": 2}, {"input": "abc"}, "make letters")


HOLD = """
import sys, time
from pathlib import Path
from retro.stages.stage import run_stage

def work(stage):
    (stage.path / "begun").touch()
    print("begun", flush=True)
    time.sleep(60)

run_stage(Path(sys.argv[1]), "letters", {"size": 1}, {"input": "abc"}, work, "make letters")
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process in the midst of the stage."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "out")], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        yield process
        process.kill()


def test_two_processes_do_not_write_one_folder(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    pytest.importorskip("fcntl")
    with pytest.raises(
        ArtifactError, match=r"out.partial is being written by another process; .* wait until it ends"
    ):
        write_letter("a", tmp_path / "out", size=1)
    assert not (tmp_path / "out.partial" / "letter").exists()
    write_letter("a", tmp_path / "another", size=1)


def test_a_kill_frees_the_folder(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    artifact = write_letter("a", tmp_path / "out", size=1)
    assert {path.name for path in tmp_path.iterdir()} == {"out"}
    assert set(artifact.manifest["files"]) == {"begun", "letter"}


def test_a_stage_that_another_process_finished_meanwhile_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the first look for the folder and the lock."""
    lock = stages.locked

    def late(partial: Path) -> AbstractContextManager[None]:
        monkeypatch.undo()
        write_letter("first", tmp_path / "out", size=1)
        partial.mkdir()
        return lock(partial)

    monkeypatch.setattr(stages, "locked", late)
    assert write_letter("second", tmp_path / "out", size=1).file("letter").read_text() == "first"
    assert {path.name for path in tmp_path.iterdir()} == {"out"}
