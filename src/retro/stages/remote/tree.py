"""What a mirror's folder holds: every file with its checksum, read again only where the file has changed."""

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from retro.stages.files import atomic_path, file_checksum
from retro.stages.remote.state import Content

PRIVATE = ".mirror"
"""The folder in a mirror where its own records lie; it is never pushed."""
RECORD = "record.json"
SQLITE = ".sqlite"
BESIDE = ("-wal", "-shm")
"""What SQLite keeps beside a file. What it pushes of one is a copy that SQLite makes, and holds all of it."""
UNFINISHED = (".tmp", *(SQLITE + ending for ending in BESIDE))
"""What the names of files end in that are nobody's yet, or SQLite's own."""
Signature = list[int]
"""What changes when a file does: size, time and number of the file, and of SQLite's log beside it."""


@dataclass(frozen=True)
class Entry:
    """A file of the mirror, as it was when its checksum was taken."""

    content: Content
    signature: Signature


@dataclass
class Record:
    """What a mirror knows of its address: the state that was pulled or pushed last, and what it had then."""

    address: str
    mirror: str
    number: int = 0
    files: dict[str, Content] = field(default_factory=dict)
    """Of the state with this number."""
    entries: dict[str, Entry] = field(default_factory=dict)
    """Files whose checksums are known."""
    arriving: dict[str, Content] = field(default_factory=dict)
    """What a pull was bringing in when it was killed."""

    @classmethod
    def read(cls, folder: Path) -> "Record | None":
        """The record of a mirror; None if the folder is none, or its record is damaged."""
        try:
            values = json.loads((folder / PRIVATE / RECORD).read_text())
            return cls(
                address=str(values["address"]),
                mirror=str(values["mirror"]),
                number=int(values["number"]),
                files=_contents(values["files"]),
                entries={
                    name: Entry(Content(size, checksum), [int(number) for number in signature])
                    for name, (size, checksum, signature) in values["entries"].items()
                },
                arriving=_contents(values["arriving"]),
            )
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return None

    @staticmethod
    def remove(folder: Path) -> None:
        (folder / PRIVATE / RECORD).unlink(missing_ok=True)

    @property
    def is_changed(self) -> bool:
        """Whether the folder holds other files than the state, as far as is known."""
        return {name: entry.content for name, entry in self.entries.items()} != self.files

    def write(self, folder: Path) -> None:
        place = folder / PRIVATE
        place.mkdir(parents=True, exist_ok=True)
        entries = {
            name: [entry.content.size, entry.content.checksum, entry.signature]
            for name, entry in self.entries.items()
        }
        values: dict[str, Any] = {"address": self.address, "mirror": self.mirror, "number": self.number}
        values |= {"files": _pairs(self.files), "entries": entries, "arriving": _pairs(self.arriving)}
        with atomic_path(place / RECORD) as path:
            path.write_text(json.dumps(values))  # escapes, as a name of a file need not be UTF-8


def _contents(values: dict[str, Any]) -> dict[str, Content]:
    return {name: Content(int(size), str(checksum)) for name, (size, checksum) in values.items()}


def _pairs(contents: dict[str, Content]) -> dict[str, list[Any]]:
    return {name: [content.size, content.checksum] for name, content in contents.items()}


def files_of(folder: Path) -> Iterator[str]:
    """The names of all files that belong to the workspace, in order."""
    for place, folders, names in os.walk(folder):
        if Path(place) == folder and PRIVATE in folders:
            folders.remove(PRIVATE)
        folders.sort()
        for name in sorted(names):
            path = Path(place, name)
            if not name.endswith(UNFINISHED) and path.is_file():
                yield path.relative_to(folder).as_posix()


def signature_of(path: Path) -> Signature:
    about = path.stat()
    signature = [about.st_size, about.st_mtime_ns, about.st_ino]
    if path.suffix == SQLITE:
        log = path.with_name(path.name + BESIDE[0])
        if log.exists() and log.stat().st_size:
            signature += [log.stat().st_size, log.stat().st_mtime_ns]
    return signature


def signatures(folder: Path) -> dict[str, Signature]:
    """Every file and its signature at one look; a file that vanishes meanwhile is not there."""
    found: dict[str, Signature] = {}
    for name in files_of(folder):
        try:
            found[name] = signature_of(folder / name)
        except FileNotFoundError:
            continue
    return found


def look(folder: Path, known: dict[str, Entry]) -> dict[str, Entry]:
    """Every file with its checksum, which is taken anew where the signature is another one."""
    found: dict[str, Entry] = {}
    for name, signature in signatures(folder).items():
        before = known.get(name)
        if before is not None and before.signature == signature:
            found[name] = before
            continue
        with readable(folder, name) as path:
            content = Content(path.stat().st_size, file_checksum(path))
        # SQLite may have written its log into the file when the last one closed it, who was ourselves.
        found[name] = Entry(content, signature_of(folder / name))
    return found


@contextmanager
def readable(folder: Path, name: str) -> Iterator[Path]:
    """A file's bytes, at a path for as long as they are read; of SQLite's a copy, which holds its log."""
    path = folder / name
    if path.suffix != SQLITE:
        yield path
        return
    place = folder / PRIVATE
    place.mkdir(exist_ok=True)
    with TemporaryDirectory(dir=place) as scratch:
        copy = Path(scratch, path.name)
        # Opening the file ourselves and closing it would take this process's locks on it away.
        with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)
        yield copy


def put(source: Path, target: Path) -> None:
    """Give a file that has arrived its place; what SQLite kept beside the old one belongs to the old one."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.suffix == SQLITE:
        for ending in BESIDE:
            target.with_name(target.name + ending).unlink(missing_ok=True)
    source.replace(target)


def take_out(folder: Path, name: str) -> None:
    """Remove a file, and the folders that it leaves empty."""
    path = folder / name
    path.unlink(missing_ok=True)
    if path.suffix == SQLITE:
        for ending in BESIDE:
            path.with_name(path.name + ending).unlink(missing_ok=True)
    for parent in path.parents:
        if parent == folder:
            break
        try:
            parent.rmdir()
        except OSError:
            break
