"""The plan of what is read where: files in units that workers read, and streams that the command reads.

Folders, source trees and files are cut into units by their names and sizes alone, so that the plan, and all
that follows from it, is the same wherever the work is done. What is no file of its own (the catalogue, the
hub), and dumps, whose cleaning takes far longer than their reading, are streams. So is whatever there is only
one unit of: then it is the work on what was read that is shared, batch by batch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from retro.corpus.documents import Document
from retro.corpus.readers import READERS, FieldMap, Problems, read_path
from retro.corpus.readers.catalogued import DUMPS
from retro.corpus.readers.hub import PREFIX
from retro.corpus.readers.paths import expect_text, format_by_content, list_folder
from retro.corpus.readers.paths import read_listed as read_of_folder
from retro.corpus.readers.records import split_fields
from retro.corpus.readers.sources import read_raw
from retro.corpus.readers.trees import is_source_tree, list_files, no_text_in
from retro.corpus.readers.trees import read_listed as read_of_tree
from retro.corpus.readers.wikipedia import RawPage

UNIT_BYTES = 32 << 20
"""Files of a unit, as they lie on disk; a larger file is a unit of its own."""
UNIT_FILES = 4096
"""At most so many files, as their names are sent to the worker."""


@dataclass(frozen=True)
class Files:
    """Some files of a source in their order, which any machine can read that sees them."""

    path: Path
    """What the user named: a folder, a source tree, or a file."""
    kind: Literal["folder", "tree", "file"]
    names: tuple[str, ...]
    """The files below the path; none for a file."""
    fields: FieldMap

    def read(self, problems: Problems) -> Iterator[Document]:
        if self.kind == "folder":
            return read_of_folder(self.path, [self.path / name for name in self.names], self.fields, problems)
        if self.kind == "tree":
            return read_of_tree(self.path, self.names, problems)
        return read_path(self.path, self.fields, problems)


@dataclass(frozen=True)
class Stream:
    """What the command reads itself, and what it has to leave out of it."""

    items: Iterator[Document | RawPage]
    problems: Problems


def plan_reading(sources: Sequence[str], fields: FieldMap | None, problems: Problems) -> list[Files | Stream]:
    """The units of all sources in their order. What is left out by its name alone goes to `problems`."""
    units = [unit for source in sources for unit in _units_of(source, fields, problems)]
    if len(units) == 1 and isinstance(units[0], Files):
        own = Problems(problems.strict)
        return [Stream(_read_alone(units[0], own), own)]
    return units


def expect_trees_with_text(units: Sequence[Files | Stream], num_items: Sequence[int]) -> None:
    """Refuse a source tree of which nothing was read; `num_items` were read of each unit."""
    found: dict[Path, int] = {}
    for unit, number in zip(units, num_items, strict=True):
        if isinstance(unit, Files) and unit.kind == "tree":
            found[unit.path] = found.get(unit.path, 0) + number
    for path, number in found.items():
        if not number:
            raise no_text_in(path)


def _units_of(source: str, fields: FieldMap | None, problems: Problems) -> Iterator[Files | Stream]:
    name, own_fields = split_fields(source, fields)
    path = Path(name)
    if name in READERS or name.startswith(PREFIX) or name in DUMPS or not path.exists():
        yield _stream(source, fields, problems.strict)
    elif path.is_dir():
        is_tree = is_source_tree(path)
        if is_tree:
            names = list_files(path, problems)
        else:
            files = list_folder(path, problems)
            expect_text(path, files)
            names = [str(file.relative_to(path)) for file in files]
        for group in _groups(path, names):
            yield Files(path, "tree" if is_tree else "folder", group, own_fields)
    elif format_by_content(path) == "dump":
        yield _stream(source, fields, problems.strict)
    else:
        yield Files(path, "file", (), own_fields)


def _stream(source: str, fields: FieldMap | None, strict: bool) -> Stream:
    own = Problems(strict)
    # A source that is not there is refused by this call, before anything is read.
    return Stream(read_raw(source, fields, own), own)


def _groups(folder: Path, names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The names in groups of about `UNIT_BYTES`; of no names at all, one group."""
    group: list[str] = []
    size = 0
    for name in names:
        group.append(name)
        size += (folder / name).lstat().st_size
        if size >= UNIT_BYTES or len(group) == UNIT_FILES:
            yield tuple(group)
            group = []
            size = 0
    if group or not names:
        yield tuple(group)


def _read_alone(unit: Files, problems: Problems) -> Iterator[Document]:
    """A unit that is all there is; a tree without any text is refused as soon as it is read."""
    found = False
    for document in unit.read(problems):
        found = True
        yield document
    if not found and unit.kind == "tree":
        raise no_text_in(unit.path)
