"""Every command that a message tells to run exists, and its own parser reads what is written there."""

import ast
import importlib
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from retro.cli.console import parse
from retro.cli.main import COMMANDS, main
from retro.stages.hints import with_paths
from tests.workspaces import small_workspace

SOURCE = Path(__file__).parent.parent.parent / "src" / "retro"
FILLED = "2"
"""Stands for whatever a message fills in: it can be a path, a name or a number."""
HINT = re.compile(r"(?:^|run: |run again: |then: |now |with: )retro ([a-z]+)((?: [^;,)\n]*)?)")
"""A command at the start of a text, or after what announces one; it ends with the part of its sentence."""


class Parsed(Exception):  # noqa: N818 — it is how a command is stopped, no error
    """The options were read; the command itself is not run."""


def read_command(command: str, words: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the command's own parser read its arguments."""
    module = importlib.import_module(f"retro.cli.{command}")

    def parse_alone(*arguments: Any) -> None:
        parse(*arguments)
        raise Parsed

    monkeypatch.setattr(module, "parse", parse_alone)
    with pytest.raises(Parsed):
        module.main(list(words))


def texts_of(file: Path) -> Iterator[str]:
    """The strings of a module, with what they fill in, but not its docstrings."""
    tree = ast.parse(file.read_text())
    aside: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            aside.add(id(node.value))
        if isinstance(node, ast.JoinedStr):
            aside.update(map(id, node.values))
    for node in ast.walk(tree):
        if id(node) in aside:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else FILLED for part in node.values]
            yield "".join(map(str, parts))


def hints_of(text: str) -> list[tuple[str, str]]:
    return [(command, words.strip()) for command, words in HINT.findall(text)]


HINTS = sorted(
    {
        (str(file.relative_to(SOURCE)), *hint)
        for file in SOURCE.rglob("*.py")
        for text in texts_of(file)
        for hint in hints_of(text)
        # The commands' own titles and their usage are no hints.
        if not (file.parent.name == "cli" and not hint[1])
    }
)


def test_there_are_hints_to_read() -> None:
    assert len(HINTS) > 30
    assert {"build", "db", "doctor", "evaluate", "fetch", "ingest", "neighbours", "train"} <= {
        command for _, command, _ in HINTS
    }


@pytest.mark.parametrize(("file", "command", "words"), HINTS)
def test_hints_are_read_by_their_own_parser(
    file: str, command: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command in COMMANDS
    read_command(command, shlex.split(words), monkeypatch)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("{tmp}/w/datastore/segments/s", "retro knn {tmp}/w RUN"),
        ("{tmp}/w/datastore.partial", "retro knn {tmp}/w RUN"),
        ("{tmp}/w/tokens/train", "retro knn {tmp}/w RUN"),
        ("{tmp}/w/runs/mine/tokenizer", "retro knn {tmp}/w mine"),
        ("{tmp}/w/datastore/tokenizer", "retro knn {tmp}/w RUN"),
        ("{tmp}/two words/knn/b.partial/index", "retro knn '{tmp}/two words' b"),
        ("{tmp}/elsewhere/evaluations/mine/test", "retro knn WORK mine"),
        ("{tmp}/elsewhere", "retro knn WORK RUN"),
    ],
)
def test_a_folder_tells_its_workspace_and_its_run(tmp_path: Path, path: str, expected: str) -> None:
    found = with_paths("retro knn WORK RUN", Path(path.format(tmp=tmp_path)))
    assert found == expected.format(tmp=tmp_path)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory, text_folder: Path, static_encoder: str) -> Path:
    """A workspace without runs, in a folder whose name a shell would cut in two."""
    folder = tmp_path_factory.mktemp("hints") / "two words"
    return small_workspace(folder, text_folder, static_encoder, splits=("train",)).path


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["sample", "{work}", "text"], "train"),
        (["evaluate", "{work}", "retro"], "train"),
        (["inspect", "{work}"], "evaluate"),
        (["train", "{work}/none"], "ingest"),
        (["build", "{work}/none"], "ingest"),
        (["neighbours", "{work}/none"], "ingest"),
        (["db", "info", "{work}/none"], "build"),
        (["db", "search", "{work}", "words", "--source", "nowhere"], "db"),
        (["tokenizer", "inspect", "{work}/none"], "ingest"),
        (["doctor", "--work", "{work}/none"], "ingest"),
        (["fetch", "moon"], "fetch"),
        (["ingest", "{texts}", "--out", "{work}", "--vocab-size", "999"], "ingest"),
        (["ingest", "{texts}", "--out", "{texts}/work"], "ingest"),
        (["study", "{texts}", "--out", "{texts}/work"], "study"),
    ],
)
def test_what_an_error_tells_to_run_is_read_with_the_users_paths(
    arguments: list[str],
    command: str,
    work: Path,
    text_folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code = main([argument.format(work=work, texts=text_folder) for argument in arguments])
    error = capsys.readouterr().err
    assert code == 1, error
    assert "WORK" not in error
    hints = hints_of(error.strip().partition(": ")[2])
    assert [name for name, _ in hints] == [command], error
    read_command(command, shlex.split(hints[0][1]), monkeypatch)
    if command != "fetch":
        told = " ".join(shlex.split(hints[0][1]))
        assert str(work) in told or str(text_folder) in told


def test_what_was_ingested_is_named_again(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "manifest.json").write_text(
        '{"inputs": {"my notes": "1", "b.csv::text=body": "2", "fields.id": "key"}}'
    )
    found = with_paths("retro ingest SOURCE --out WORK", tmp_path / "tokenizer")
    assert found == f"retro ingest 'my notes' b.csv::text=body --fields.id=key --out {tmp_path}"
    (tmp_path / "text" / "manifest.json").write_text("{")
    assert "SOURCE" in with_paths("retro ingest SOURCE --out WORK", tmp_path / "tokenizer")
