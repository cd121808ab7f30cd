"""Every command with arguments of all kinds on a finished workspace: an exit code, one line, no traceback."""

import gc
import io
import json
import shutil
import sqlite3
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from hypothesis import given

from retro.cli.db import ACTIONS
from retro.cli.main import COMMANDS, main
from retro.retrieval.datastore.ledger import FILE as LEDGER
from retro.stages.files import file_checksum, make_fingerprint
from retro.stages.stage import CARD
from tests.fuzz.arguments import BASES, arguments, options_of
from tests.fuzz.watch import alarm, count, inputs, watched

PATIENCE = 6.0
"""A command that works for longer is interrupted, as by Ctrl-C."""
SHARES = {"ingest": 0.02, "train": 0.02, "fit": 0.015, "sample": 0.03, "evaluate": 0.02, "harness": 0.002}
SHARES |= {"evaluate --documents": 0.01}
SHARES |= {
    "demo": 0.005,
    "reproduce": 0.005,
    "fetch": 0.005,
    "plan": 0.005,
    "knn": 0.01,
    "fit --base": 0.005,
    "fit --from": 0.005,
    "fit --task qa": 0.01,
    "study": 0.005,
    "study --fitted": 0.005,
    "serve": 0.005,
}


def test_no_command_is_left_out() -> None:
    assert {command.split()[0] for command in BASES} == set(COMMANDS)
    assert {command.split()[1] for command in BASES if command.startswith("db ")} == set(ACTIONS)


REMOVED_BY_REDO = {
    "build": ("datastore", "neighbours"),
    "neighbours": ("neighbours",),
    "train": ("runs",),
    "fit": ("runs",),
    "evaluate": ("evaluations",),
}
"""What each command removes, after it has said so, when it is told to begin anew."""


class Place:
    """A workspace that commands may change, beside a copy from which it is restored."""

    def __init__(self, finished: Path, folder: Path, names: dict[str, str]) -> None:
        self.finished = finished
        self.folder = folder
        self.work = folder / "work"
        self.names = {
            **names,
            "WORK": str(self.work),
            "OUT": str(folder / "out"),
            "FILE": str(folder / "file"),
        }
        self.names["MISSING"] = str(folder / "missing")
        self.restore()
        self.whole = self.state()

    def restore(self) -> None:
        gc.collect()  # closes the ledgers that a command left open
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.finished, self.work)
        (self.folder / "file").write_text("A file.\n")

    def state(self) -> dict[str, str]:
        """Checksums of what is finished. Cards are written again, and a ledger counts by what it says."""
        found = {
            str(file.relative_to(self.work)): file_checksum(file)
            for file in sorted(self.work.rglob("*"))
            if file.is_file() and not file.name.startswith(LEDGER) and file.name != CARD
        }
        ledger = self.work / "datastore" / LEDGER
        if ledger.exists():  # or it was removed, to begin anew
            connection = sqlite3.connect(ledger)
            found[f"datastore/{LEDGER}"] = make_fingerprint(*connection.iterdump())
            connection.close()
        return found

    def fill(self, words: list[str]) -> list[str]:
        """The words with the names of places in them."""
        filled = []
        for word in words:
            for name, path in self.names.items():
                if word == name or word.startswith((f"{name}/", f"{name}.")):
                    word = path + word.removeprefix(name)
            filled.append(word)
        return filled


@pytest.fixture(scope="module")
def place(
    finished: Path,
    text_folder: Path,
    own_text: Path,
    static_encoder: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Place:
    more = tmp_path_factory.mktemp("more")
    # So many that not all of them are held out, which their names decide.
    for number in range(12):
        (more / f"new-{number}.txt").write_text(f"Some new words of licence {number}. " * 9)
    questions = tmp_path_factory.mktemp("questions") / "questions.jsonl"
    passage = {"title": "A", "text": "The licence permits use."}
    row = {"question": "What permits?", "answers": ["licence"], "ctxs": [passage]}
    questions.write_text("".join(json.dumps(row | {"question": f"What is {n}?"}) + "\n" for n in range(30)))
    names = {"SOURCE": str(text_folder), "ENCODER": static_encoder, "MORE": str(more)}
    names["OWN"] = str(own_text)
    names["QUESTIONS"] = str(questions)
    return Place(finished, tmp_path_factory.mktemp("place") / "here", names)


def run(words: list[str]) -> tuple[int, str]:
    """The exit code of a command, and what it wrote to standard error."""
    # As a terminal has them: what UTF-8 cannot hold is an error on one, and an escape on the other.
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")
    stdin, sys.stdin = sys.stdin, io.StringIO("Words of standard input.")
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = main(words)
    finally:
        sys.stdin = stdin
    out.flush()
    err.flush()
    return code, err.buffer.getvalue().decode()  # type: ignore[attr-defined]


def expect_one_line(place: Place, words: list[str]) -> None:
    """The command ends in one of three ways, and one that failed has changed nothing that was finished."""
    command = words[0]
    target = f"retro {' '.join(words[:2]) if command == 'db' else command}"
    # Ctrl-C once the patience is over, which a user may press at any time.
    with watched(target), alarm(PATIENCE, KeyboardInterrupt()):
        code, error = run(place.fill(words))
    after = place.state()
    try:
        assert code in (0, 1, 2), (code, error)
        assert "Traceback" not in error
        assert "this should not have happened" not in error, error
        if code == 1:
            lines = [line for line in error.splitlines() if not line.startswith("!")]
            assert len(lines) == 1, error
            assert lines[0].startswith(f"retro {command}: "), error
        if code:
            removable = REMOVED_BY_REDO.get(command, ()) if "--redo" in words else ()
            lost = [
                name
                for name, checksum in place.whole.items()
                if after.get(name) != checksum and Path(name).parts[0] not in removable
            ]
            assert not lost, f"{lost} were finished and are not as they were"
        count(target, "refused" if code else "read")
    finally:
        if after != place.whole or (place.folder / "out").exists() or len(list(place.folder.iterdir())) > 2:
            place.restore()


@pytest.mark.usefixtures("small_models")
@pytest.mark.parametrize("command", BASES)
def test_commands(command: str, place: Place) -> None:
    @inputs(SHARES.get(command, 0.01))
    @given(words=arguments(command))
    def check(words: list[str]) -> None:
        expect_one_line(place, words)

    options_of(command)  # read beforehand: the modules draw random numbers when they are imported
    check()
