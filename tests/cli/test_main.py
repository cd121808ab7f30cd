"""The command as a user meets it: help, one-line errors, exit codes, interruption, a full disk."""

import importlib.metadata
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from retro.cli.doctor import PURPOSES, OptionalPackage, optional_packages
from retro.cli.main import COMMANDS, COMPUTING, main
from retro.workspace import Workspace

SMALL_CORPUS = ["--vocab-size", "320", "--valid-fraction", "0.15", "--test-fraction", "0.15"]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Exit code and what went to standard error."""
    code = main(list(arguments))
    return code, capsys.readouterr().err


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown for name in COMMANDS)
    assert main(["--version"]) == 0


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_needs_no_heavy_library(command: str) -> None:
    code = (
        "import sys; from retro.cli.main import main; code = main(sys.argv[1:]);"
        "heavy = {'torch', 'transformers', 'faiss', 'matplotlib'} & set(sys.modules);"
        "sys.exit(str(heavy) if heavy else code)"
    )
    arguments = [command, "--help"] if command else ["--help"]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "usage" in done.stdout


def test_computing_commands_share_the_cores(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert set(COMPUTING) <= set(COMMANDS)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setenv("GOMP_SPINCOUNT", "")  # restored after the test
    monkeypatch.delenv("GOMP_SPINCOUNT")
    main(["sample", "--help"])
    assert "GOMP_SPINCOUNT" not in os.environ
    main(["train", "--help"])
    assert os.environ["GOMP_SPINCOUNT"] == "1000"


@pytest.mark.parametrize(("name", "value"), [("OMP_WAIT_POLICY", "active"), ("GOMP_SPINCOUNT", "7")])
def test_how_threads_wait_is_left_to_who_has_said_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, value: str
) -> None:
    for variable in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.setenv(variable, "")
        monkeypatch.delenv(variable)
    monkeypatch.setenv(name, value)
    main(["train", "--help"])
    assert {key: os.environ[key] for key in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT") if key in os.environ} == {
        name: value
    }


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["fly"], 2, "there is no command 'fly'"),
        (
            ["ingest", "nowhere", "--out", "{tmp}/w"],
            1,
            "nowhere is no file, no folder and no corpus of the catalogue",
        ),
        (["ingest", "{tmp}/empty", "--out", "{tmp}/w"], 1, "holds no .jsonl"),
        (["ingest", "{tmp}/blank.txt", "--out", "{tmp}/w"], 1, "no training document with text"),
        (["ingest", "{tmp}/bytes.txt", "--out", "{tmp}/w"], 1, "is not UTF-8 (byte 3 is 0x81)"),
        (["ingest", "{tmp}/short.txt", "--out", "{tmp}/w"], 1, "a vocabulary of 2048 cannot be learned"),
        (["build", "{tmp}/nothing"], 1, "run: retro ingest"),
        (["train", "{tmp}/nothing"], 1, "run: retro ingest"),
        (["train", "{tmp}/nothing", "--recipe", "huge"], 1, "there is no recipe 'huge'"),
        (["evaluate", "{tmp}/nothing", "retro"], 1, "run: retro train"),
        (["sample", "{tmp}/nothing", "text"], 1, "run: retro train"),
        (["ingest", "--out", "{tmp}/w"], 1, "no source was named"),
        (
            ["ingest", "{tmp}/short.txt", "--out", "{tmp}/w", "--max-document-bytes", "-1"],
            1,
            "max_document_bytes is -1; expected a positive number, or 0",
        ),
        (["ingest", "{tmp}/empty", "--out", "{tmp}/empty/w"], 1, "lies inside the source"),
        (
            ["ingest", "{tmp}/short.txt", "--out", "{tmp}/blank.txt/w"],
            1,
            "blank.txt is a file; expected a folder",
        ),
        (["ingest", "{tmp}/short.txt", "--out", "/proc/w"], 1, "cannot be made or found in /proc"),
        (
            ["ingest", "{tmp}/short.txt", "--out", "{tmp}/w", "--tokenizer", "x", "--vocab-size", "300"],
            1,
            "expected --vocab-size or --tokenizer, not both",
        ),
        (["ingest", "{tmp}/short.txt", "--out", "{tmp}/w", "--vocab-size", "9"], 1, "expected at least 2"),
        (["ingest", "{tmp}/short.txt::txt=a", "--out", "{tmp}/w"], 1, "names a field txt; expected some of"),
        (["fetch"], 1, "retro fetch --list"),
        (["fetch", "moon"], 1, "there is no 'moon' in the catalogue"),
    ],
)
def test_bad_input_gets_one_clear_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str], code: int, message: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "blank.txt").write_text(" \n")
    (tmp_path / "bytes.txt").write_bytes(b"caf\x81")
    (tmp_path / "short.txt").write_text("just a few words")
    found, error = run(capsys, *(argument.format(tmp=tmp_path) for argument in arguments))
    assert found == code
    assert message in error
    assert error.startswith("retro")
    assert error.count("\n") == 1
    assert not (tmp_path / "w" / "tokens" / "train").exists()


@pytest.mark.parametrize(
    "arguments",
    [["train"], ["train", "work", "--num-steps", "many"], ["sample", "work", "x", "--frobnicate"]],
)
def test_wrong_usage_exits_with_2(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert main(arguments) == 2


def test_the_commands_of_the_corpus(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text_folder: Path
) -> None:
    work = str(tmp_path / "w")
    assert main(["ingest", str(text_folder), "--out", work, "--dry-run"]) == 0
    assert "40" in capsys.readouterr().out
    assert not (tmp_path / "w").exists()
    assert main(["ingest", str(text_folder), "--out", work, *SMALL_CORPUS]) == 0
    assert "contaminated" in capsys.readouterr().out
    assert main(["tokenizer", "inspect", work, "the licence\n"]) == 0
    shown = capsys.readouterr().out
    assert "bytes a token" in shown
    assert "⏎" in shown
    assert (
        main(
            [
                "decontaminate",
                work,
                "--out",
                str(tmp_path / "clean"),
                "--against",
                str(text_folder / "00.txt"),
            ]
        )
        == 0
    )
    code, error = run(capsys, "decontaminate", work, "--out", str(tmp_path / "clean2"))
    assert code == 1
    assert "--against" in error


def test_one_document_shorter_than_a_chunk_goes_all_the_way(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, bert: str
) -> None:
    (tmp_path / "short.txt").write_text("just a few words")
    work = str(tmp_path / "w")
    common = ["--vocab-size", "275", "--valid-fraction", "0", "--test-fraction", "0"]
    assert main(["ingest", str(tmp_path / "short.txt"), "--out", work, *common]) == 0
    assert main(["build", work, "--embedder", bert]) == 0
    assert main(["neighbours", work]) == 0
    small = ["--num-steps", "2", "--warmup-steps", "1", "--batch-size", "1", "--seq-len", "64"]
    assert main(["train", work, *small]) == 0
    assert main(["sample", work, "just", "--max-tokens", "4"]) == 0
    capsys.readouterr()
    code, error = run(capsys, "evaluate", work, "retro")
    assert code == 1
    assert "no 'test' split" in error


def test_a_full_disk_is_one_line_and_the_next_run_goes_on(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text_folder: Path
) -> None:
    """A device that is always full stands where a file is to be written."""
    partial = tmp_path / "w" / "tokens" / "valid.partial"
    partial.mkdir(parents=True)
    (partial / "tokens.npy.tmp").symlink_to("/dev/full")
    arguments = ["ingest", str(text_folder), "--out", str(tmp_path / "w"), *SMALL_CORPUS]
    code, error = run(capsys, *arguments)
    assert code == 1
    assert "the disk is full" in error
    assert error.count("\n") == 1
    finished = (tmp_path / "w" / "tokens" / "train" / "manifest.json").stat().st_mtime_ns
    assert not (tmp_path / "w" / "tokens" / "valid").exists()
    assert main(arguments) == 0
    assert (tmp_path / "w" / "tokens" / "train" / "manifest.json").stat().st_mtime_ns == finished
    assert Workspace(tmp_path / "w").store("valid")


def test_ctrl_c_in_training_is_one_line_and_the_next_run_goes_on(
    tmp_path: Path, text_folder: Path, bert: str
) -> None:
    from tests.workspaces import small_workspace

    small_workspace(tmp_path / "w", text_folder, bert)
    command = [sys.executable, "-m", "retro", "train", str(tmp_path / "w"), "--name", "long"]
    command += [
        "--model.chunk-len",
        "8",
        "--seq-len",
        "64",
        "--batch-size",
        "2",
        "--num-steps",
        "60",
        "--warmup-steps",
        "1",
        "--checkpoint-every",
        "5",
        "--log-every",
        "1",
    ]
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }  # threads of tiny tensors wait for each other on a busy machine
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        # A suite that a shell runs in the background inherits a SIGINT that is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    checkpoints = tmp_path / "w" / "runs" / "long.partial" / "scratch" / "checkpoints"
    deadline = time.monotonic() + 60
    while (
        not list(checkpoints.glob("step-*/state.json"))
        and time.monotonic() < deadline
        and process.poll() is None
    ):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 1
    assert error == "retro train: interrupted; what was finished is kept; run the same command to go on\n"
    kept = {path.name for path in checkpoints.iterdir()}
    assert kept
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert "parameters" in done.stdout
    assert (tmp_path / "w" / "runs" / "long" / "model.safetensors").exists()


def test_a_dry_run_tells_what_would_be_skipped(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text_folder: Path
) -> None:
    folder = Path(shutil.copytree(text_folder, tmp_path / "two words"))
    (folder / "bytes.txt").write_bytes(b"caf\x81")
    (folder / "picture.png").write_bytes(b"\0")
    (folder / ".hidden").touch()
    arguments = ["ingest", str(folder), "--out", str(tmp_path / "w"), *SMALL_CORPUS]
    assert main([*arguments, "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert f"left out: {folder / 'bytes.txt'} is not UTF-8" in shown
    assert f"left out: {folder / 'picture.png'} is binary" in shown
    assert ".hidden" not in shown
    code, error = run(capsys, *arguments, "--dry-run", "--strict")
    assert code == 1
    assert "bytes.txt is not UTF-8" in error
    assert not (tmp_path / "w").exists()
    assert main([*arguments, "--max-document-bytes", "300"]) == 0
    shown = capsys.readouterr().out
    assert "left out: " in shown
    assert f"{tmp_path / 'w' / 'text' / 'left-out.jsonl'} lists all that was left out" in shown


def test_own_text_has_no_limit_and_what_one_costs_is_a_warning(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text_folder: Path
) -> None:
    folder = Path(shutil.copytree(text_folder, tmp_path / "mine"))
    (folder / "long.txt").write_text("the licence permits anyone to use this software. " * 1_000)
    arguments = ["ingest", str(folder), "--out", str(tmp_path / "w"), "--dry-run"]
    assert main(arguments) == 0
    shown = capsys.readouterr()
    assert "left out:" not in shown.out + shown.err
    assert main([*arguments, "--max-document-bytes", "10000"]) == 0
    shown = capsys.readouterr()
    assert "left out: mine/long.txt has 49,000 bytes; expected at most 10,000" in shown.out
    assert "of the text is left out" in shown.err


def test_sources_with_field_maps_of_their_own(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, texts: list[str]
) -> None:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"body": text}) + "\n" for text in texts[:20]))
    (tmp_path / "b.jsonl").write_text("".join(json.dumps({"words": text}) + "\n" for text in texts[20:]))
    common = ["--out", str(tmp_path / "w"), *SMALL_CORPUS, "--fields.text", "body"]
    own = f"{tmp_path / 'b.jsonl'}::text=words"
    assert main(["ingest", str(tmp_path / "a.jsonl"), own, *common]) == 0
    by_source = Workspace(tmp_path / "w").by_source()
    assert {source: counts["documents"] for source, counts in by_source.items()} == {
        "a.jsonl": 20,
        "b.jsonl": 20,
    }
    code, error = run(capsys, "ingest", str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl"), *common)
    assert code == 1
    assert "b.jsonl::text=words differ" in error


def test_other_field_names_are_another_corpus(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, texts: list[str]
) -> None:
    source = tmp_path / "data.jsonl"
    source.write_text("".join(json.dumps({"body": text, "text": text[::-1]}) + "\n" for text in texts))
    arguments = ["ingest", str(source), "--out", str(tmp_path / "w"), *SMALL_CORPUS]
    assert main([*arguments, "--fields.text", "body"]) == 0
    code, error = run(capsys, *arguments)
    assert code == 1
    assert "(fields.text differ)" in error


def test_each_step_of_ingesting_has_its_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text_folder: Path
) -> None:
    """Where nobody watches, each step is told once, at its end."""
    assert main(["ingest", str(text_folder), "--out", str(tmp_path / "w"), *SMALL_CORPUS]) == 0
    lines = capsys.readouterr().out.splitlines()
    steps = (
        "Reading: ",
        "Learning a tokenizer: took ",
        "Cutting text into tokens: ",
        "Removing duplicates and contamination: took ",
    )
    for line, step in zip(lines, steps, strict=False):
        assert line.startswith(step)
        assert ", took 0:" in line.replace(": took", ", took")
    assert "40 documents, 0.0 MB" in lines[0]


def test_doctor_knows_every_extra(capsys: pytest.CaptureFixture[str]) -> None:
    """Those of the package's own metadata, each with its version or how to install it."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert set(PURPOSES) == set(project["optional-dependencies"])
    known = {(item.extra, item.name) for item in optional_packages()}
    listed = importlib.metadata.metadata("retro-lm").get_all("Provides-Extra")
    assert {extra for extra, _ in known} == set(listed)
    assert ("dev", "pytest") in known
    assert ("harness", "lm-eval") in known
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert f"pytest {importlib.metadata.version('pytest')} {PURPOSES['dev']}" in " ".join(shown.split())
    assert all(item.name in shown for item in optional_packages())
    assert OptionalPackage("ray", "scale", "").found == "missing; run: pip install 'retro-lm[scale]'"


def test_doctor_wants_a_corpus(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, error = run(capsys, "doctor", "--work", str(tmp_path / "nowhere"))
    assert code == 1
    assert "holds no finished stage of a corpus" in error


def test_doctor_finds_and_mends_a_broken_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text_folder: Path
) -> None:
    arguments = ["ingest", str(text_folder), "--out", str(tmp_path / "w"), *SMALL_CORPUS]
    assert main(arguments) == 0
    assert main(["doctor", "--work", str(tmp_path / "w")]) == 0
    broken = tmp_path / "w" / "encoded" / "000000.npy"
    whole = broken.read_bytes()
    broken.write_bytes(whole[:-1])
    capsys.readouterr()
    code, error = run(capsys, "doctor", "--work", str(tmp_path / "w"))
    assert code == 1
    assert "000000.npy does not match its checksum" in error
    assert main(["doctor", "--work", str(tmp_path / "w"), "--mend"]) == 0
    assert main(arguments) == 0
    assert broken.read_bytes() == whole
