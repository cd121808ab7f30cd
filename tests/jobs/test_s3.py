"""A workspace in S3, spoken to over HTTP: one machine begins, is killed, and another one goes on."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file

from retro.cli.main import main
from retro.config.as_json import to_dict
from tests.workspaces import small_run

pytest.importorskip("s3fs")
moto_server = pytest.importorskip("moto.server")

from retro.stages.remote.address import RemoteFolder  # noqa: E402
from retro.stages.remote.state import newest_state, object_names, state_numbers  # noqa: E402

BUCKET = "s3://bucket"
WORK = f"{BUCKET}/work"
KILLED = """
import os, signal, sys
from retro.cli.main import main
from retro.stages.remote.address import RemoteFolder

create, count = RemoteFolder.create, 0

def killing(self, name, content):
    global count
    count += name.startswith("states/")
    if count == int(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)
    create(self, name, content)

RemoteFolder.create = killing
main(sys.argv[2:])
"""
"""A command that is killed when all of a push is done but its last step, which readers would see."""
TIMED = ("metrics.jsonl", "manifest.json", "index.json", "README.md")
"""Files that hold how long something took, or how quick it was measured to be."""
SAME = ("tokens", "neighbours", "runs", "evaluations", "text", "tokenizer", "datastore/segments")


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """A server that speaks S3 on this machine."""
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    yield f"http://127.0.0.1:{port}"
    server.stop()


@pytest.fixture(autouse=True)
def account(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an account's user has in the environment, and an empty bucket."""
    import fsspec
    import s3fs

    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    s3fs.S3FileSystem.clear_instance_cache()
    files = fsspec.filesystem("s3")
    if files.exists("bucket"):
        files.rm("bucket", recursive=True)
    files.mkdir("bucket")


@pytest.fixture
def recipe(tmp_path: Path, static_encoder: str) -> str:
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps(to_dict(small_run(static_encoder))))
    return str(path)


def on(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on commands run on this machine, as far as mirrors are concerned."""
    monkeypatch.setenv("RETRO_MIRRORS", str(machine))


@pytest.mark.slow
def test_another_machine_goes_on_with_a_training_that_was_killed_in_a_push(
    tmp_path: Path,
    text_folder: Path,
    recipe: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    local = str(tmp_path / "local")
    with_recipe = ["--recipe", recipe]
    for work in (local, WORK):
        on(tmp_path / "a", monkeypatch)
        assert main(["ingest", str(text_folder), "--out", work, *with_recipe]) == 0
        assert main(["build", work, *with_recipe]) == 0
        assert main(["neighbours", work]) == 0
    shown = capsys.readouterr()
    assert f"{WORK}/datastore is ready" in shown.out
    assert str(tmp_path / "a") not in shown.out + shown.err
    remote = RemoteFolder(WORK)
    before = newest_state(remote).number
    train = ["train", WORK, *with_recipe]
    environment = {**os.environ, "RETRO_MIRROR_SECONDS": "0"}
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, "5", *train],
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )
    assert killed.returncode == -9, killed.stderr
    state = newest_state(remote)
    assert state.number == before + 4  # four pushes in between; the fifth never was
    assert any("runs/retro.partial/scratch/checkpoints/step-" in name for name in state.contents)

    on(tmp_path / "b", monkeypatch)
    assert main(["db", "info", WORK]) == 0  # a reader is not kept out
    assert main(train) == 1
    assert f"run: retro mirror unlock {WORK}" in capsys.readouterr().err
    assert main(["mirror", "unlock", WORK]) == 0
    assert main(train) == 0
    assert main(["train", local, *with_recipe]) == 0
    on(tmp_path / "c", monkeypatch)
    for work in (local, WORK):
        assert main(["evaluate", work, *with_recipe]) == 0
        assert main(["sample", work, "The licence permits anyone to use", "--max-tokens", "4"]) == 0

    folder = tmp_path / "back"
    assert main(["mirror", "pull", WORK, "--folder", str(folder)]) == 0
    remote_results, local_results = results(folder), results(Path(local))
    assert remote_results.keys() == local_results.keys()
    assert [name for name, made in local_results.items() if remote_results[name] != made] == []
    assert state_numbers(remote) == [newest_state(remote).number]
    named = {content.object_name for content in newest_state(remote).contents.values()}
    assert set(object_names(remote)) == named  # nothing is left of any kill

    # What the first machine had of its own was never pushed, and is not written over.
    on(tmp_path / "a", monkeypatch)
    assert main(["db", "info", WORK]) == 1
    assert "were never pushed" in capsys.readouterr().err
    assert main(["mirror", "pull", WORK, "--drop"]) == 0
    assert main(["db", "delete", WORK, "--id", "03.txt"]) == 0, capsys.readouterr().err
    assert main(["db", "compact", WORK]) == 0
    on(tmp_path / "c", monkeypatch)
    assert main(["db", "info", WORK, "--documents"]) == 0
    assert "03.txt" not in capsys.readouterr().out


def results(folder: Path) -> dict[str, bytes]:
    """All that was made, but for how long it took. Of a checkpoint its tensors: their order in the file is
    another one in a run that was resumed."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if not path.is_file() or not name.startswith(SAME) or path.name in TIMED:
            continue
        if ".checkpoint/" in name and path.suffix == ".safetensors":
            found |= {
                f"{name} {tensor}": value.numpy().tobytes() for tensor, value in load_file(path).items()
            }
        else:
            found[name] = path.read_bytes()
    return found


def test_a_kill_before_the_first_state_leaves_no_workspace(
    tmp_path: Path, text_folder: Path, recipe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    on(tmp_path / "a", monkeypatch)
    ingest = ["ingest", str(text_folder), "--out", WORK, "--recipe", recipe]
    killed = subprocess.run([sys.executable, "-c", KILLED, "1", *ingest], check=False, capture_output=True)
    assert killed.returncode == -9
    remote = RemoteFolder(WORK)
    assert newest_state(remote).number == 0
    assert object_names(remote)
    assert main(ingest) == 0  # its own lock does not keep it out; nothing is made or sent twice
    assert newest_state(remote).number == 1


@pytest.mark.parametrize(
    ("address", "environment", "message"),
    [
        ("s3://nobody-s/work", {}, "The specified bucket does not exist); expected a bucket that is there"),
        (f"{BUCKET}/nothing", {}, "holds no workspace; expected one that retro has written there"),
        (WORK, {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, "Could not connect"),
        (
            WORK,
            {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_EC2_METADATA_DISABLED": "true"},
            "expected credentials that may read and write there, such as AWS_ACCESS_KEY_ID",
        ),
    ],
    ids=["bucket", "workspace", "connection", "credentials"],
)
def test_what_cannot_be_reached_is_one_line(
    tmp_path: Path,
    address: str,
    environment: dict[str, str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    import s3fs

    on(tmp_path / "a", monkeypatch)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    if environment:
        s3fs.S3FileSystem.clear_instance_cache()
    assert main(["db", "info", address]) == 1
    shown = capsys.readouterr().err
    assert message in shown
    assert shown.count("\n") == 1
