"""What a user names as a source: its fingerprint, and its items before the slow part of reading them."""

import sys
from collections.abc import Iterator
from pathlib import Path

from retro import catalogue
from retro.corpus.documents import Document
from retro.corpus.readers import READERS, FieldMap, Problems, read
from retro.corpus.readers.catalogued import DUMPS, dump_path
from retro.corpus.readers.hub import PREFIX
from retro.corpus.readers.paths import files_of, format_by_content
from retro.corpus.wikipedia import RawPage, read_raw_pages
from retro.stages.files import make_fingerprint


def fingerprint_of(source: str) -> str:
    """What tells whether a source is still the same: the catalogue's pin, or names, sizes and times of the files."""
    if source in catalogue.ENTRIES:
        return catalogue.fetched(source).fingerprint
    path = Path(source)
    if source in catalogue.LOCAL or not path.exists():
        return make_fingerprint(source, sys.version)
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    return make_fingerprint(
        [(str(file.relative_to(path.parent)), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    )


def size_of(source: str) -> int:
    """Bytes of the files that reading the source reads, packed as they lie there; 0 where nobody knows before the end."""
    if source in DUMPS:
        return dump_path(source).stat().st_size
    if source in READERS or source.startswith(PREFIX) or not Path(source).exists():
        return 0
    return sum(file.stat().st_size for file in files_of(Path(source)))


def read_raw(source: str, fields: FieldMap | None, problems: Problems) -> Iterator[Document | RawPage]:
    """The source's documents; for a Wikipedia dump its raw pages, whose cleaning is left to the workers."""
    dump = dump_path(source) if source in DUMPS else Path(source)
    if dump.is_file() and format_by_content(dump) == "dump":
        return read_raw_pages(dump)
    return read(source, fields, problems)
