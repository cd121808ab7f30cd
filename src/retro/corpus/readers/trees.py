"""Source trees: the text files of a checkout, without those that git would ignore."""

import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import pathspec

from retro.corpus.documents import Document
from retro.corpus.readers.encodings import decode
from retro.corpus.readers.pdf import read_pdf
from retro.corpus.readers.problems import Kind, Problems
from retro.corpus.readers.records import FieldMap
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
    """One document a file, web pages as they are written; what is binary, empty or large is left out."""
    found = False
    for document in read_listed(root, list_files(root, problems), problems):
        found = True
        yield document
    if not found:
        raise no_text_in(root)


def read_listed(root: Path, names: Iterable[str], problems: Problems) -> Iterator[Document]:
    """The documents of some files of a tree."""
    source = plain_name(root.resolve().name)
    for name in names:
        yield from _read_file(root / name, plain_name(name), source, problems)


def no_text_in(root: Path) -> DataError:
    problems = Problems()
    list_files(root, problems)
    ignored = problems.tallies.get(Kind.IGNORED)
    # A tree that a distribution has packed may ignore all that it holds.
    hint = f"; git ignores {ignored.documents:,} files and folders there, see .gitignore" if ignored else ""
    return DataError(
        f"{root} is a source tree without a text file of at most {MAX_BYTES:,} bytes; expected at least one"
        + hint
    )


def _read_file(file: Path, name: str, source: str, problems: Problems) -> Iterator[Document]:
    if file.suffix.lower() == ".pdf":
        yield from read_pdf(file, name, source, FieldMap(), problems)
        return
    content = _content_of(file, str(file), problems)
    text = decode(content, str(file), problems) if content is not None else None
    if text is not None:
        yield Document(id=name, text=text, source=source, title=name)


def _content_of(file: Path, where: str, problems: Problems) -> bytes | None:
    try:
        size = file.stat().st_size
        content = file.read_bytes() if size <= MAX_BYTES else b""
        count_bytes(size)
    except OSError as error:
        problems.add(where, f"cannot be read ({error.strerror}); expected a readable file")
        return None
    if size > MAX_BYTES:
        reason = (
            f"has {size:,} bytes; expected at most {MAX_BYTES:,} in a source tree; name it as well to read it"
        )
        problems.add(where, reason, Kind.TOO_LARGE, size)
        return None
    if not content.strip():
        problems.add(where, "is empty", Kind.EMPTY, size)
        return None
    return content


def list_files(root: Path, problems: Problems | None = None) -> list[str]:
    """The paths of the files that git does not ignore, in order; git itself says so where it can.

    Links and what is ignored go to `problems`, if they are asked for; an ignored folder counts as one.
    """
    listed = _list_by_git(root, problems) if (root / ".git").exists() else None
    return sorted(_list_by_rules(root, root, [], problems) if listed is None else listed)


def _list_by_git(root: Path, problems: Problems | None) -> set[str] | None:
    """What git lists; nothing where it is missing or refuses."""
    names = _ask_git(root, "--cached", "--others", "--exclude-standard")
    if names is None:
        return None
    files = set()
    for name in names:
        # A name may be a submodule, a link, or a file that was deleted but is still in the index.
        if (root / name).is_symlink() or (root / name).is_dir():
            _leave_out(root / name, "is a link, or another checkout", Kind.LINK, problems)
        elif (root / name).is_file():
            files.add(name)
    if problems is not None:
        for name in _ask_git(root, "--others", "--ignored", "--exclude-standard", "--directory") or ():
            _leave_out(root / name, "is ignored by git", Kind.IGNORED, problems)
    return files


def _ask_git(root: Path, *options: str) -> list[str] | None:
    """The names that `git ls-files` lists.

    No program is run that the checkout's own settings may name (`core.fsmonitor`).
    """
    git = shutil.which("git")
    if git is None:
        return None
    # A command that runs within a git hook has variables that point to another repository.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = [git, "-c", "core.fsmonitor=false", "-C", str(root), "ls-files", "-z", *options]
    done = subprocess.run(command, capture_output=True, env=environment, check=False)
    if done.returncode != 0:
        return None
    return sorted({os.fsdecode(name) for name in done.stdout.split(b"\0") if name})


def _is_rule(line: str) -> bool:
    """Whether a line of an ignore file means anything; git passes over others, such as a lone `!`."""
    try:
        pathspec.GitIgnoreSpec.from_lines([line])
    except ValueError:
        return False
    return True


def _list_by_rules(root: Path, folder: Path, rules: Rules, problems: Problems | None) -> Iterator[str]:
    ignore_file = folder / IGNORE_FILE
    if ignore_file.is_file():
        lines = ignore_file.read_text(encoding="utf-8", errors="replace").splitlines()
        rules = [*rules, (folder, pathspec.GitIgnoreSpec.from_lines(filter(_is_rule, lines)))]
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        path = Path(entry.path)
        if entry.name == ".git":
            continue
        # A link may lead out of the tree, or in a circle.
        if entry.is_symlink():
            _leave_out(path, "is a link", Kind.LINK, problems)
            continue
        is_folder = entry.is_dir()
        if _is_ignored(path, is_folder, rules):
            _leave_out(path, "is ignored by git", Kind.IGNORED, problems)
        elif is_folder:
            yield from _list_by_rules(root, path, rules, problems)
        elif entry.is_file():
            yield str(path.relative_to(root))
        else:
            _leave_out(path, "is no regular file", Kind.LINK, problems)


def _leave_out(path: Path, reason: str, kind: Kind, problems: Problems | None) -> None:
    if problems is not None:
        problems.add(str(path), reason, kind, size_below(path) if kind == Kind.IGNORED else 0)


def size_below(path: Path) -> int:
    """Bytes of a file, or of all files below a folder; what vanishes meanwhile counts as nothing."""
    total = 0
    files = [Path(place, name) for place, _, names in os.walk(path) for name in names]
    for file in files or [path]:
        with suppress(OSError):
            total += file.lstat().st_size
    return total


def plain_name(name: str) -> str:
    """A file's name as UTF-8 can hold it; bytes that are none are spelled out."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _is_ignored(path: Path, is_folder: bool, rules: Rules) -> bool:
    """The rules nearest to the file decide. An ignored folder is not entered: nothing in it comes back."""
    for folder, spec in reversed(rules):
        # A slash at the end tells a folder: some rules are for folders alone.
        name = path.relative_to(folder).as_posix() + ("/" if is_folder else "")
        verdict = spec.check_file(name).include
        if verdict is not None:
            return verdict
    return False
