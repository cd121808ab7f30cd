"""Source trees: the text files of a checkout, without those that git would ignore."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pathspec

from retro.corpus.documents import Document
from retro.corpus.readers.records import Problems, decode_utf8
from retro.corpus.readers.streams import count_bytes
from retro.errors import DataError

MAX_BYTES = 1_000_000
"""Larger files in a source tree are data or generated."""

IGNORE_FILE = ".gitignore"
Rules = list[tuple[Path, pathspec.GitIgnoreSpec]]


def is_source_tree(path: Path) -> bool:
    """A checkout, or a folder with rules of its own; rules in hidden folders, left by tools, do not count."""
    folders = (file.parent.relative_to(path) for file in path.rglob(IGNORE_FILE))
    return (path / ".git").exists() or not all(is_hidden(folder) for folder in folders)


def is_hidden(relative: Path) -> bool:
    """Whether a file or folder, or one that it lies in, begins with a point."""
    return any(part.startswith(".") for part in relative.parts)


def read_tree(root: Path, problems: Problems) -> Iterator[Document]:
    """One document a file. Binary, empty and large files are counted and left out, also if strict."""
    found = False
    for name in list_files(root):
        where = str(root / name)
        content = _content_of(root / name, where, problems)
        text = decode_utf8(content, where, problems) if content is not None else None
        if text is not None:
            found = True
            yield Document(id=name, text=text, source=root.resolve().name, title=name)
    if not found:
        raise DataError(
            f"{root} is a source tree without a text file of at most {MAX_BYTES:,} bytes; "
            "expected at least one"
        )


def _content_of(file: Path, where: str, problems: Problems) -> bytes | None:
    try:
        size = file.stat().st_size
        content = file.read_bytes() if size <= MAX_BYTES else b""
        count_bytes(size)
    except OSError as error:
        problems.add(where, f"cannot be read ({error.strerror}); expected a readable file")
        return None
    if size > MAX_BYTES:
        problems.add(where, f"has {size:,} bytes; expected at most {MAX_BYTES:,}", harmless=True)
    elif b"\0" in content:
        problems.add(where, "is binary; expected text", harmless=True)
    elif not content.strip():
        problems.add(where, "is empty", harmless=True)
    else:
        return content
    return None


def list_files(root: Path) -> list[str]:
    """The paths of the files that git does not ignore, in order; git itself says so where it can."""
    listed = _list_by_git(root) if (root / ".git").exists() else None
    return sorted(_list_by_rules(root, root, []) if listed is None else listed)


def _list_by_git(root: Path) -> set[str] | None:
    """What git lists; nothing where it is missing or refuses.

    No program is run that the checkout's own settings may name (`core.fsmonitor`).
    """
    git = shutil.which("git")
    if git is None:
        return None
    # A command that runs within a git hook has variables that point to another repository.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = [git, "-c", "core.fsmonitor=false", "-C", str(root)]
    command += ["ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, capture_output=True, env=environment, check=False)
    if done.returncode != 0:
        return None
    names = {os.fsdecode(name) for name in done.stdout.split(b"\0") if name}
    # A name may be a submodule, a link, or a file that was deleted but is still in the index.
    return {name for name in names if (root / name).is_file() and not (root / name).is_symlink()}


def _list_by_rules(root: Path, folder: Path, rules: Rules) -> Iterator[str]:
    ignore_file = folder / IGNORE_FILE
    if ignore_file.is_file():
        lines = ignore_file.read_text(encoding="utf-8", errors="replace").splitlines()
        rules = [*rules, (folder, pathspec.GitIgnoreSpec.from_lines(lines))]
    for entry in os.scandir(folder):
        path = Path(entry.path)
        # A link may lead out of the tree, or in a circle.
        if entry.name == ".git" or entry.is_symlink():
            continue
        is_folder = entry.is_dir()
        if not _is_ignored(path, is_folder, rules):
            if is_folder:
                yield from _list_by_rules(root, path, rules)
            elif entry.is_file():
                yield str(path.relative_to(root))


def _is_ignored(path: Path, is_folder: bool, rules: Rules) -> bool:
    """The rules nearest to the file decide. An ignored folder is not entered: nothing in it comes back."""
    for folder, spec in reversed(rules):
        # A slash at the end tells a folder: some rules are for folders alone.
        name = path.relative_to(folder).as_posix() + ("/" if is_folder else "")
        verdict = spec.check_file(name).include
        if verdict is not None:
            return verdict
    return False
