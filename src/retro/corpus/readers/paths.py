"""Files and folders: which format a file has, and the documents of a path."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

from retro.corpus.documents import Document
from retro.corpus.readers.records import FieldMap, Problems, decode_utf8, read_jsonl
from retro.corpus.readers.streams import BROKEN, metered, open_stream
from retro.corpus.readers.tables import read_csv, read_parquet
from retro.corpus.readers.trees import is_hidden, is_source_tree, list_files, read_tree
from retro.corpus.readers.wikipedia import read_dump
from retro.errors import DataError

TEXT_SUFFIXES = {".txt", ".md", ".markdown", ".rst", ".py", ".text"}
PACKINGS = (".gz", ".zst", ".bz2")
FORMATS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "table",
    ".tsv": "table",
    ".parquet": "parquet",
    ".xml": "dump",
}
HEAD = 64 * 1024

Reader = Callable[[Path, str, str, FieldMap, Problems], Iterator[Document]]
"""From the file, its name within the source, the source, the fields and the problems."""


def read_path(path: Path, fields: FieldMap, problems: Problems) -> Iterator[Document]:
    """Documents of a file, of a source tree, or of all files of known formats below a folder, by name."""
    if not path.is_dir():
        yield from _read_file(path, path.name, path.resolve().parent.name, fields, problems)
    elif is_source_tree(path):
        yield from read_tree(path, problems)
    else:
        files = files_of(path)
        if not files:
            known = ", ".join(sorted([*FORMATS.keys() - {".jsonl"}, *TEXT_SUFFIXES]))
            raise DataError(
                f"{path} holds no .jsonl, .jsonl.gz or other file of a known format ({known}); "
                "expected at least one"
            )
        for file in _unread(path, files):
            problems.add(str(file), "is of no known format; expected one in its name", harmless=True)
        for file in files:
            yield from _read_file(file, str(file.relative_to(path)), path.resolve().name, fields, problems)


def files_of(path: Path) -> list[Path]:
    """The files that reading the path reads, in order."""
    if not path.is_dir():
        return [path]
    if is_source_tree(path):
        return [path / name for name in list_files(path)]
    return sorted(file for file in path.rglob("*") if file.is_file() and _belongs(file))


def _unread(folder: Path, files: list[Path]) -> list[Path]:
    """All other files that are not hidden, nor in a hidden folder."""
    others = sorted({file for file in folder.rglob("*") if file.is_file()} - set(files))
    return [file for file in others if not is_hidden(file.relative_to(folder))]


def format_by_name(file: Path) -> str | None:
    """`jsonl`, `table`, `parquet`, `dump`, `text`, or nothing where the name does not tell."""
    name = file.name.lower()
    for packing in PACKINGS:
        name = name.removesuffix(packing)
    suffix = Path(name).suffix
    return "text" if suffix in TEXT_SUFFIXES else FORMATS.get(suffix)


def format_by_content(file: Path) -> str | None:
    """The same from the first bytes, unpacked; `binary` where they are no text."""
    try:
        # A meter of its own, whose count is dropped: the file is read again from its beginning.
        with metered(), open_stream(file) as stream:
            head = stream.read(HEAD)
    except BROKEN:
        return None
    if head.startswith(b"PAR1"):
        return "parquet"
    # A zero byte marks a binary file, as it does for git.
    if b"\0" in head:
        return "binary"
    start = head.lstrip()
    if start.startswith(b"<mediawiki") or (start.startswith(b"<?xml") and b"<mediawiki" in head):
        return "dump"
    if start.startswith((b"{", b"[")):
        if _opens_with_an_object(head):
            return "jsonl"
        # One large JSON value: no format of ours if the file is called so, and otherwise any text.
        return None if ".json" in file.suffixes else "text"
    return "text"


def _opens_with_an_object(head: bytes) -> bool:
    line, newline, _ = head.lstrip().partition(b"\n")
    if not newline and len(head) >= HEAD:
        return line.startswith(b'{"')  # a first record longer than the head
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _belongs(file: Path) -> bool:
    """Within a folder only names count, since it may hold anything; but an XML file may be any XML."""
    found = format_by_name(file)
    return found is not None and (found != "dump" or format_by_content(file) == "dump")


def _read_file(
    file: Path, name: str, source: str, fields: FieldMap, problems: Problems
) -> Iterator[Document]:
    found = format_by_name(file)
    # Names are believed, except that a dump may be called .txt, and a file may have no suffix at all.
    if found is None or (found == "text" and format_by_content(file) == "dump"):
        found = format_by_content(file)
    if found not in _READERS:
        known = ", ".join(sorted([*FORMATS, *TEXT_SUFFIXES]))
        raise DataError(
            f"{file} is of no known format; expected UTF-8 text, JSON Lines, or one of {known}; "
            "convert it to JSON Lines"
        )
    return _READERS[found](file, name, source, fields, problems)


def _read_text(
    file: Path, name: str, source: str, _fields: FieldMap, problems: Problems
) -> Iterator[Document]:
    """The whole file as one document."""
    try:
        with open_stream(file) as stream:
            content = stream.read()
    except BROKEN as error:
        problems.add(str(file), f"cannot be read ({error}); expected a whole file; fetch it again")
        return
    text = decode_utf8(content, str(file), problems)
    if text is not None and text.strip():
        yield Document(id=name, text=text, source=source, title=name)
    elif text is not None:
        problems.add(str(file), "is empty", harmless=True)


def _read_dump(
    file: Path, _name: str, _source: str, _fields: FieldMap, problems: Problems
) -> Iterator[Document]:
    return read_dump(file, problems)


_READERS: dict[str, Reader] = {
    "jsonl": read_jsonl,
    "table": read_csv,
    "parquet": read_parquet,
    "dump": _read_dump,
    "text": _read_text,
}
