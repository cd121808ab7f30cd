"""Commands that are given an address in a workspace's place."""

import sys
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

import retro
from retro.cli.addresses import places, with_mirrors
from retro.cli.main import main
from retro.errors import ConfigError
from retro.mirrors import mirror_folder
from retro.stages.remote.address import RemoteFolder
from retro.stages.remote.lock import LOCK
from retro.stages.remote.mirror import Mirror
from retro.stages.remote.state import newest_state, state_numbers
from tests.full_disk import disk_of

WORK = "memory://bucket/work"


@pytest.fixture(autouse=True)
def mirrors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("RETRO_MIRRORS", str(tmp_path / "mirrors"))
    yield tmp_path / "mirrors"
    fsspec.filesystem("memory").store.clear()


@pytest.mark.parametrize(
    ("command", "arguments", "expected"),
    [
        ("ingest", ["s3://b/texts", "--out", "s3://b/w"], {2: True}),
        ("ingest", ["texts", "--out=s3://b/w", "--redo"], {1: True}),
        ("build", ["s3://b/w", "--redo"], {0: True}),
        ("build", ["--recipe", "tiny", "s3://b/w"], {2: True}),
        ("build", ["--redo", "s3://b/w"], {1: True}),
        ("train", ["--training.num-steps", "3", "file:///b/w"], {2: True}),
        ("neighbours", ["gs://b/w"], {0: True}),
        ("evaluate", ["s3://b/w", "retro"], {0: True}),
        ("evaluate", ["run", "--datastore", "s3://b/w"], {2: False}),
        ("evaluate", ["s3://b/w", "retro", "--datastore=s3://b/v"], {0: True, 2: False}),
        ("db", ["info", "s3://b/w"], {1: False}),
        ("db", ["add", "s3://b/w", "s3://b/more"], {1: True}),
        ("db", ["search", "s3://b/w", "s3://b/is-a-text"], {1: False}),
        ("db", ["search", ".", "s3://b/is-a-text"], {}),
        ("db", ["engine", "work", "milvus:http://host:19530"], {}),
        ("sample", ["s3://b/w", "A text"], {0: False}),
        ("sample", ["s3://b/w", "s3://is/a/text"], {0: False}),
        ("sample", [".", "s3://is/a/text"], {}),
        ("sample", ["work", "https://is.a/text"], {}),
        ("serve", ["s3://b/w"], {0: False}),
        ("serve", ["s3://b/w", "--allow-writes"], {0: True}),
        ("doctor", ["--work", "s3://b/w"], {1: False}),
        ("doctor", ["--work", "s3://b/w", "--mend"], {1: True}),
        ("mirror", ["info", "s3://b/w"], {}),
    ],
)
def test_which_arguments_stand_for_a_workspace(
    command: str, arguments: list[str], expected: dict[int, bool]
) -> None:
    assert places(command, arguments) == expected


def test_a_file_is_not_written_to_an_address() -> None:
    with pytest.raises(ConfigError, match=r"--out is s3://b/page.html; expected a place on this machine"):
        places("inspect", ["work", "--out", "s3://b/page.html"])


def test_the_address_is_printed_and_the_folder_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    with with_mirrors("ingest", ["texts", "--out", f"{WORK}/"]) as (arguments, named):
        folder = Path(arguments[2])
        assert folder == mirror_folder(WORK)
        (folder / "file").write_text("1")
        sys.stdout.write(f"{folder}/text is ready\n")
        assert named(f"run: retro build {folder}") == f"run: retro build {WORK}"
    assert f"{WORK}/text is ready" in capsys.readouterr().out
    assert set(newest_state(RemoteFolder(WORK)).contents) == {"file"}


def test_mirrors_of_addresses_that_look_alike_are_apart() -> None:
    addresses = ("s3://b/w", "gs://b/w", "s3://b-w", "s3://b/w/x")
    assert len({mirror_folder(address) for address in addresses}) == 4


def test_help_asks_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", "memory://nowhere", "--help"]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["build", "memory://bucket/none"], "holds no workspace; expected one that retro has written there"),
        (["db", "info", "nonsense://bucket/work"], "Protocol not known"),
        (["db", "info", "dropbox://bucket/work"], "needs a package that is not installed"),
        (["mirror", "info", "work"], "work is no address; expected one such as s3://bucket/work"),
        (["mirror", "push", WORK, "--drop"], "--drop is for pull"),
    ],
)
def test_bad_addresses_are_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 1
    shown = capsys.readouterr().err
    assert message in shown
    assert shown.count("\n") == 1


def test_several_processes_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["train", WORK]) == 1
    assert "given to several processes; expected a folder" in capsys.readouterr().err


def test_the_time_between_pushes_is_a_number(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RETRO_MIRROR_SECONDS", "often")
    assert main(["train", WORK]) == 1
    assert "RETRO_MIRROR_SECONDS is 'often'; expected a number of seconds" in capsys.readouterr().err


def test_a_workspace_of_this_machine_moves_to_an_address_and_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own/text").mkdir(parents=True)
    (tmp_path / "own/text/0").write_text("one")
    assert main(["mirror", "push", WORK, "--folder", str(tmp_path / "own")]) == 0
    assert main(["mirror", "pull", WORK, "--folder", str(tmp_path / "other")]) == 0
    assert (tmp_path / "other/text/0").read_text() == "one"
    assert main(["mirror", "info", WORK, "--folder", str(tmp_path / "other")]) == 0
    assert "1 file" in capsys.readouterr().out
    (tmp_path / "other/text/0").write_text("two")
    assert main(["mirror", "pull", WORK, "--folder", str(tmp_path / "other"), "--drop"]) == 0
    assert (tmp_path / "other/text/0").read_text() == "one"


def test_only_a_workspace_is_sent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters/one").write_text("private")
    assert main(["mirror", "push", WORK, "--folder", str(tmp_path)]) == 1
    assert "is neither a workspace nor a mirror of memory://bucket/work; expected" in capsys.readouterr().err
    assert RemoteFolder(WORK).names("") == {}
    # What a command that was killed has left in a mirror is sent, though it is no workspace yet.
    mirror = Mirror(WORK, tmp_path / "begun")
    with mirror.held(), mirror.locked():
        (tmp_path / "begun/text.partial").mkdir()
        (tmp_path / "begun/text.partial/0").write_text("half")
    assert main(["mirror", "push", WORK, "--folder", str(tmp_path / "begun")]) == 0


def test_a_lock_is_shown_and_broken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mirror = Mirror(WORK, tmp_path / "lost")
    with mirror.held():
        left = mirror.locked()
        left.__enter__()
    assert main(["ingest", str(tmp_path), "--out", WORK]) == 1
    line = capsys.readouterr().err
    assert "is being written by" in line
    assert f"run: retro mirror unlock {WORK}" in line
    assert main(["mirror", "info", WORK]) == 0
    assert "since" in capsys.readouterr().out
    assert main(["mirror", "unlock", WORK]) == 0
    assert "is no longer locked by" in capsys.readouterr().out
    assert main(["mirror", "unlock", WORK]) == 0
    assert "is not locked" in capsys.readouterr().out
    assert mirror.remote.names(LOCK) == {}


def test_an_error_of_the_command_names_the_address(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Mirror(WORK, tmp_path / "a").session(writes=True, creates=True) as folder:
        (folder / "file").write_text("1")
    assert main(["build", WORK]) == 1
    shown = capsys.readouterr().err
    assert f"{WORK}/tokens" in shown
    assert "mirrors" not in shown
    assert state_numbers(RemoteFolder(WORK)) == [1]


def test_python_has_the_same(tmp_path: Path) -> None:
    with retro.mirrored(WORK, writes=True, creates=True) as work:
        assert work.path == mirror_folder(WORK)
        work.text_path.mkdir()
        (work.text_path / "0").write_text("one")
    with retro.mirrored(WORK, folder=tmp_path / "own") as work:
        assert (tmp_path / "own/text/0").read_text() == "one"
        assert work.text_path == tmp_path / "own/text"


def test_a_full_disk_is_one_line_and_the_pull_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with retro.mirrored(WORK, writes=True, creates=True, folder=tmp_path / "a") as work:
        (work.path / "small").write_text("s")
        (work.path / "large").write_bytes(bytes(100_000))
    pull = ["mirror", "pull", WORK, "--folder", str(tmp_path / "b")]
    with disk_of(50_000):
        assert main(pull) == 1
    line = capsys.readouterr().err
    assert "the disk is full" in line
    assert line.count("\n") == 1
    assert not (tmp_path / "b/large").exists()
    assert main(pull) == 0
    assert (tmp_path / "b/large").stat().st_size == 100_000
