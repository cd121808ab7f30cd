"""Source trees: what git ignores stays out, with git and without it."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from retro.corpus.readers import Problems, read
from retro.corpus.readers.trees import list_files
from retro.errors import DataError
from tests.corpus.readers.pdfs import write_pdf

FILES = {
    ".gitignore": b"*.log\nbuild/\n!keep.log\n/only-here.txt\n",
    "main.py": b"print('hello')\n",
    "debug.log": b"noise",
    "keep.log": b"kept",
    "only-here.txt": b"ignored at the root",
    "build/out.c": b"int x;",
    "build/keep.log": b"lost with its folder",
    "sub/only-here.txt": b"not ignored below",
    "sub/.gitignore": b"*.tmp\n!loud.log\n",
    "sub/a.tmp": b"ignored by the nearer file",
    "sub/loud.log": b"brought back by the nearer file",
    "a.tmp": b"not ignored above",
    "docs/café.md": b"words",
}
KEPT = [
    ".gitignore",
    "a.tmp",
    "docs/café.md",
    "keep.log",
    "main.py",
    "sub/.gitignore",
    "sub/loud.log",
    "sub/only-here.txt",
]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, content in FILES.items():
        file = tmp_path / "project" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return tmp_path / "project"


def but_ignored(problems: Problems) -> list[tuple[str, str]]:
    """What was left out, without what the rules of the tree say."""
    return [(where, reason) for where, reason in problems.rows if reason != "is ignored by git"]


def git(tree: Path, *arguments: str) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    subprocess.run(["git", "-C", str(tree), *arguments], check=True, capture_output=True, env=environment)


def test_a_tree_without_git_follows_its_gitignore_files(tree: Path) -> None:
    documents = list(read(str(tree)))
    assert [document.id for document in documents] == KEPT
    assert {document.source for document in documents} == {"project"}
    assert next(document for document in documents if document.id == "main.py").text == "print('hello')\n"


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_git_says_the_same_of_a_checkout(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(tree, "init", "--quiet")
    (tree / ".git" / "info" / "exclude").write_text("a.tmp\n")  # only git itself knows of it
    git(tree, "add", "main.py")
    (tree / "gone.py").write_text("soon deleted")
    git(tree, "add", "gone.py")
    (tree / "gone.py").unlink()
    (tree / "link.py").symlink_to(tree / "main.py")
    monkeypatch.setenv("GIT_DIR", "/nowhere")  # as within a hook; it must not be followed
    expected = [name for name in KEPT if name != "a.tmp"]
    assert [document.id for document in read(str(tree))] == expected


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_a_checkout_s_own_settings_run_nothing(tree: Path) -> None:
    git(tree, "init", "--quiet")
    hook = tree / ".git" / "watch"
    hook.write_text(f"#!/bin/sh\ntouch {tree}/was-run.txt\n")
    hook.chmod(0o755)
    git(tree, "config", "core.fsmonitor", str(hook))
    list_files(tree)
    assert not (tree / "was-run.txt").exists()


def test_a_checkout_that_git_refuses_is_read_by_its_rules(tree: Path) -> None:
    (tree / ".git").mkdir()
    assert list_files(tree) == KEPT


def test_binary_large_and_empty_files_are_counted(tree: Path) -> None:
    (tree / "picture.png").write_bytes(b"\x89PNG\0\0")
    (tree / "data.txt").write_bytes(b"a" * 1_000_001)
    (tree / "fits.txt").write_bytes(b"a" * 1_000_000)
    (tree / "__init__.py").write_bytes(b"")
    problems = Problems(strict=True)  # none of these stops even a strict reading
    assert [document.id for document in read(str(tree), problems=problems)] == sorted([*KEPT, "fits.txt"])
    assert [(Path(where).name, reason) for where, reason in but_ignored(problems)] == [
        ("__init__.py", "is empty"),
        (
            "data.txt",
            "has 1,000,001 bytes; expected at most 1,000,000 in a source tree; name it as well to read it",
        ),
        ("picture.png", "is binary; expected text"),
    ]


def test_a_source_file_that_is_not_utf8_is_a_problem(tree: Path) -> None:
    (tree / "old.c").write_bytes(b"/* caf\x81 */")
    problems = Problems()
    assert [document.id for document in read(str(tree), problems=problems)] == KEPT
    assert but_ignored(problems) == [
        (
            str(tree / "old.c"),
            "is not UTF-8 (byte 6 is 0x81), nor in another encoding that can be told; expected UTF-8; "
            "convert or remove it",
        )
    ]
    with pytest.raises(DataError, match=r"old.c is not UTF-8"):
        list(read(str(tree)))


def test_links_are_not_followed(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("outside")
    (tree / "link.txt").symlink_to(tmp_path / "secret.txt")
    (tree / "loop").symlink_to(tree)
    assert [document.id for document in read(str(tree))] == KEPT


def test_a_tree_without_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("")
    (tmp_path / "a.bin").write_bytes(b"\0")
    with pytest.raises(DataError, match="source tree without a text file"):
        list(read(str(tmp_path)))


def test_a_tree_that_ignores_all_that_it_holds_is_told_so(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("/*\n!/debian/\n")
    for name in ("kernel.c", "README"):
        (tmp_path / name).write_text("text")
    with pytest.raises(DataError, match=r"expected at least one; git ignores 3 files and folders there"):
        list(read(str(tmp_path)))


def test_rules_in_a_hidden_folder_make_no_source_tree(tmp_path: Path) -> None:
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache" / ".gitignore").write_text("*")
    (tmp_path / "a.jsonl").write_text('{"text": "one"}')
    assert [document.text for document in read(str(tmp_path))] == ["one"]


def test_a_pdf_in_a_tree_is_read(tree: Path) -> None:
    write_pdf(tree / "docs" / "paper.pdf", [["words"]], "A paper")
    found = {document.id: document for document in read(str(tree))}
    assert (found["docs/paper.pdf"].title, found["docs/paper.pdf"].text) == ("A paper", "words\n")
    assert sorted(found) == sorted([*KEPT, "docs/paper.pdf"])
