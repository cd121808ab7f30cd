"""Files and folders: the documents of a path, and what of it is left out."""

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from retro.corpus.documents import Document
from retro.corpus.readers.encodings import decode
from retro.corpus.readers.formats import KNOWN, format_by_content, format_by_name, format_of
from retro.corpus.readers.html import read_html
from retro.corpus.readers.pdf import read_pdf
from retro.corpus.readers.problems import Kind, Problems
from retro.corpus.readers.records import FieldMap, read_jsonl
from retro.corpus.readers.streams import BROKEN, open_stream
from retro.corpus.readers.tables import read_csv, read_parquet
from retro.corpus.readers.trees import is_source_tree, list_files, plain_name, read_tree, size_below
from retro.corpus.readers.wikipedia import read_dump
from retro.errors import DataError

__all__ = ["files_of", "format_by_content", "format_by_name", "read_path"]

Reader = Callable[[Path, str, str, FieldMap, Problems], Iterator[Document]]
"""From the file, its name within the source, the source, the fields and the problems."""


def read_path(path: Path, fields: FieldMap, problems: Problems) -> Iterator[Document]:
    """Documents of a file, of a source tree, or of all files of a folder that hold text, by name."""
    if not path.is_dir():
        yield from _read_file(path, fields, problems)
    elif is_source_tree(path):
        yield from read_tree(path, problems)
    else:
        files = list_folder(path, problems)
        expect_text(path, files)
        yield from read_listed(path, files, fields, problems)


def read_listed(
    folder: Path, files: Iterable[Path], fields: FieldMap, problems: Problems
) -> Iterator[Document]:
    """The documents of some files of a folder; what no reader is for is left out."""
    source = plain_name(folder.resolve().name)
    for file in files:
        format = format_of(file)
        if format in _READERS:
            name = plain_name(str(file.relative_to(folder)))
            yield from _READERS[format](file, name, source, fields, problems)
        else:
            _leave_out(file, format, problems)


def expect_text(folder: Path, files: Iterable[Path]) -> None:
    """Refuse a folder with nothing to read in it."""
    if not any(format_of(file) in _READERS for file in files):
        raise DataError(
            f"{folder} holds no .jsonl, .jsonl.gz or other file that can be read ({KNOWN}, or text under "
            "any other name); expected at least one"
        )


def files_of(path: Path) -> list[Path]:
    """The files that reading the path reads, in order."""
    if not path.is_dir():
        return [path]
    if is_source_tree(path):
        return [path / name for name in list_files(path)]
    return [file for file in list_folder(path, Problems()) if format_of(file) in _READERS]


def list_folder(folder: Path, problems: Problems) -> list[Path]:
    """All files below a folder in the order of their names, but for what is hidden and links to folders."""
    files: list[Path] = []

    def unreadable(error: OSError) -> None:
        problems.add(str(error.filename), f"cannot be read ({error.strerror}); expected a readable folder")

    for place, folders, names in os.walk(folder, onerror=unreadable):
        folders.sort()  # the order in which they are entered
        for name in list(folders):
            path = Path(place, name)
            if name.startswith("."):
                problems.add(str(path), "is a hidden folder", Kind.HIDDEN, size_below(path))
                folders.remove(name)  # and so it is not entered
            # It may lead out of the folder, or in a circle.
            elif path.is_symlink():
                problems.add(str(path), "is a link to a folder; name that folder as well", Kind.LINK)
        for name in sorted(names):
            path = Path(place, name)
            if name.startswith("."):
                problems.add(str(path), "is hidden", Kind.HIDDEN, path.lstat().st_size)
            elif path.is_file():
                files.append(path)
            elif path.is_symlink():
                problems.add(str(path), "is a link to nothing; expected a file; remove it")
            else:
                problems.add(str(path), "is no regular file", Kind.LINK)
    return sorted(files)


def _leave_out(file: Path, format: str | None, problems: Problems) -> None:
    """Note a file of a folder that no reader is for."""
    size = file.stat().st_size
    if format == "office":
        reason = "is of a format that cannot be read; save it as PDF, HTML or text"
        problems.add(str(file), reason, Kind.FORMAT, size)
    elif format == "binary":
        problems.add(str(file), "is binary; expected text", Kind.BINARY, size)
    elif format_by_name(file) == "pdf":
        problems.add(str(file), "is no PDF, whatever its name says; fetch it again", size=size)
    else:
        reason = (
            "is XML or JSON; expected a Wikipedia dump, or JSON Lines, or text; convert it to one of them"
        )
        problems.add(str(file), reason, Kind.DATA, size)


def _read_file(file: Path, fields: FieldMap, problems: Problems) -> Iterator[Document]:
    """A file that was named itself, so that it must be of a format that can be read."""
    format = format_of(file)
    # What is called .xml is taken for a dump here, whose reader says what it misses.
    if format is None and format_by_name(file) in ("dump", "pdf"):
        format = format_by_name(file)
    if format not in _READERS:
        raise DataError(
            f"{file} is of no known format; expected text, JSON Lines, or one of {KNOWN}; "
            "convert it to JSON Lines"
        )
    return _READERS[format](file, plain_name(file.name), plain_name(file.resolve().name), fields, problems)


def _read_text(
    file: Path, name: str, source: str, _fields: FieldMap, problems: Problems
) -> Iterator[Document]:
    """The whole file as one document."""
    try:
        with open_stream(file) as stream:
            content = stream.read()
    except BROKEN as error:
        reason = f"cannot be read ({error}); expected a whole file; fetch it again"
        problems.add(str(file), reason, size=file.lstat().st_size)
        return
    text = decode(content, str(file), problems)
    if text is not None and text.strip():
        yield Document(id=name, text=text, source=source, title=name)
    elif text is not None:
        problems.add(str(file), "is empty", Kind.EMPTY, len(content))


def _read_dump(
    file: Path, _name: str, _source: str, _fields: FieldMap, problems: Problems
) -> Iterator[Document]:
    return read_dump(file, problems)


_READERS: dict[str | None, Reader] = {
    "jsonl": read_jsonl,
    "table": read_csv,
    "parquet": read_parquet,
    "dump": _read_dump,
    "html": read_html,
    "pdf": read_pdf,
    "text": _read_text,
    "broken": _read_text,  # which says what is wrong with it
}
