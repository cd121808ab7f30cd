"""Mistakes that users make: each gets one line, at once, and nothing is lost."""

import errno
import os
import time
from pathlib import Path

import pytest

from retro.cli.explaining import explain, unexpected
from retro.cli.main import main
from retro.jobs.training import train_run
from retro.recipes import baseline_of
from tests.workspaces import small_run, small_workspace

SMALL = ["--model.chunk-len", "8", "--seq-len", "32", "--batch-size", "2", "--num-steps", "2"]
SMALL += ["--warmup-steps", "1", "--name", "new"]
PLAIN = [*SMALL, "--baseline"]
OURS = ["--tokenizer", "{work}/tokenizer"]
WINDOWS = ["--window", "32", "--stride", "16"]
SHORT = ["--max-tokens", "2"]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory, text_folder: Path, static_encoder: str) -> Path:
    """A workspace with two trained runs."""
    run = small_run(static_encoder)
    workspace = small_workspace(tmp_path_factory.mktemp("bad") / "work", text_folder, static_encoder)
    for name, config in (("retro", run), ("baseline", baseline_of(run))):
        train_run(workspace, name, config.model, config.training)
    return workspace.path


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        # Places that cannot be written.
        (["ingest", "{texts}", "--out", "{tmp}/file"], "{tmp}/file is a file; expected a folder"),
        (["ingest", "{texts}", "--out", "{tmp}/file/w"], "{tmp}/file is a file; expected a folder"),
        (["ingest", "{texts}", "--out", "/proc/w"], "in /proc ("),
        (["study", "{texts}", "--out", "{tmp}/file/w"], "{tmp}/file is a file; expected a folder"),
        (["study", "{texts}", "--out", "/proc/w"], "in /proc ("),
        (["study", "{texts}", "--out", "{texts}/work"], "lies inside the source {texts}"),
        (["demo", "--out", "{tmp}/file/w"], "{tmp}/file is a file; expected a folder"),
        (["demo", "--out", "/proc/w"], "in /proc ("),
        (["reproduce", "all", "--out", "{tmp}/file/w"], "{tmp}/file is a file; expected a folder"),
        (["decontaminate", "{work}", "--out", "{tmp}/file/w", "--remove-names", "{tmp}/file"], "is a file"),
        (["decontaminate", "{work}", "--out", "/proc/w", "--remove-names", "{tmp}/file"], "in /proc ("),
        (
            ["evaluate", "{work}", "--out", "{tmp}/file/w", "--on", "{texts}", *WINDOWS],
            "{tmp}/file is a file; expected a folder",
        ),
        (["sample", "{work}", "x", *SHORT, "--html", "{tmp}"], "--html is {tmp}, which is a folder"),
        (["sample", "{work}", "x", *SHORT, "--html", "{tmp}/file/page.html"], "is no folder; expected"),
        (["sample", "{work}", "x", *SHORT, "--html", "/proc/page.html"], "which cannot be written"),
        (["inspect", "{work}", "--out", "/proc/page.html"], "run: retro evaluate"),
        # Names that nothing has, also where nothing would be searched for.
        (["sample", "{work}", "x", *SHORT, "--sources", "nowhere"], "the source 'nowhere'; expected one of"),
        (["sample", "{work}", "x", *SHORT, "--exclude", "nobody"], "the id 'nobody'; expected one of"),
        (["sample", "{work}", "x", "--name", "nobody"], "runs/nobody does not exist"),
        (["knn", "{work}", "baseline", "--index", "FOO"], "'FOO' is no index of keys"),
        (["build", "{tmp}/fresh", "--index", "FOO", "--chunk-len", "8"], "'FOO' is no index of keys"),
        # Numbers that mean nothing.
        (["sample", "{work}", "x", "--num-neighbours", "0"], "num_neighbours is 0; expected at least 1"),
        (
            ["evaluate", "{work}", "--num-neighbours", "0"],
            "num_neighbours is 0; expected each to be",
        ),
        (["train", "{work}", *SMALL, "--num-neighbours", "0"], "num_neighbours is 0; expected a positive"),
        (["train", "{work}", *SMALL, "--seq-len", "10000000"], "GB of memory, and this machine has"),
        (["train", "{work}", *PLAIN, "--seq-len", "400000"], "GB of memory, and this machine has"),
        (["db", "search", "{work}", ""], "the text to search for is empty"),
        # Options that would be ignored, be they as the default or not.
        (["ingest", "{texts}", "--out", "{tmp}/v", *OURS, "--vocab-size", "2048"], "--vocab-size is for"),
        (["ingest", "{texts}", "--out", "{tmp}/v", *OURS, "--vocab_size=99"], "--vocab-size is for"),
        # The hub, which nobody can reach from a test.
        (["build", "{work}", "--embedder", "someone/model"], "the hub cannot be reached"),
        (["build", "{work}", "--embedder", "./no/such/folder"], "is no folder and no id of the hub"),
        (["ingest", "{texts}", "--out", "{tmp}/h", "--tokenizer", "someone/x"], "the hub cannot be reached"),
        (["ingest", "hf:someone/data", "--out", "{tmp}/h"], "hf:someone/data could not be opened"),
    ],
)
def test_a_mistake_is_one_line(
    arguments: list[str],
    expected: str,
    work: Path,
    tmp_path: Path,
    text_folder: Path,
    static_encoder: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").write_text("a title\n")
    (tmp_path / "fresh").mkdir()
    for part in ("tokens", "tokenizer"):
        (tmp_path / "fresh" / part).symlink_to(work / part)
    names = {"work": work, "tmp": tmp_path, "texts": text_folder}
    filled = [argument.format(**names) for argument in arguments]
    if filled[0] == "build" and "--embedder" not in filled:
        filled += ["--embedder", static_encoder]
    before = everything(work)
    begun = time.monotonic()
    assert main(filled) == 1
    assert time.monotonic() - begun < 20
    error = capsys.readouterr().err
    assert expected.format(**names) in error
    assert error.startswith(f"retro {filled[0]}: ")
    assert error.count("\n") == 1
    assert everything(work) == before


def everything(folder: Path) -> dict[Path, int]:
    """Every finished file, and when it was written; what a refused command began is no loss."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    finished = [file for file in files if not any(part.endswith(".partial") for part in file.parts)]
    # SQLite removes its log and writes it anew whenever a datastore is read.
    return {file: file.stat().st_mtime_ns for file in finished if "sqlite" not in file.name}


def test_an_unexpected_error_is_one_line_and_keeps_its_trace() -> None:
    with pytest.raises(KeyError) as raised:
        raise KeyError("two\nlines")
    assert explain(raised.value) is None
    told = unexpected(raised.value)
    assert told.startswith(r"this should not have happened (KeyError: 'two\nlines')")
    trace = Path(told.rpartition(" in ")[2])
    assert "raise KeyError" in trace.read_text()
    trace.unlink()


def test_the_systems_refusals_are_told_in_words(tmp_path: Path) -> None:
    for number, expected in (
        (errno.EROFS, "is on a file system that is read-only"),
        (errno.EACCES, "cannot be read or written"),
        (errno.ENOSPC, "the disk is full"),
        (errno.EDQUOT, "the disk is full"),
        (errno.EFBIG, "the disk is full"),
        (errno.ENAMETOOLONG, "cannot be used (File name too long)"),
    ):
        error = OSError(number, os.strerror(number), str(tmp_path / "x"))
        assert expected in str(explain(error))
        assert str(tmp_path / "x") in str(explain(error))
