"""What a user names as a source: its fingerprint, its size, and its items before the slow cleaning."""

import platform
from collections.abc import Iterator
from pathlib import Path

from retro import catalogue
from retro.corpus.documents import Document
from retro.corpus.readers import READERS, FieldMap, Problems, read
from retro.corpus.readers.catalogued import DUMPS, dump_path
from retro.corpus.readers.hub import PREFIX, parse_hub_name, revision_of
from retro.corpus.readers.paths import files_of, format_by_content
from retro.corpus.readers.records import split_fields
from retro.corpus.readers.wikipedia import RawPage, read_raw_pages
from retro.stages.files import make_fingerprint


def fingerprint_of(source: str, recorded: str = "") -> str:
    """What tells whether a source is still the same.

    For an entry of the catalogue that is its pin; for `stdlib` the version of Python; for files their names,
    sizes and times; for a hub dataset the commit of its newest revision. Where the hub cannot be asked, what
    was `recorded` when the corpus was made is taken to be true still, and without a record the name alone
    counts. A field map of its own, behind the source, does not.
    """
    source, _ = split_fields(source)
    if source in catalogue.ENTRIES:
        catalogue.fetch_if_missing(source)
        return catalogue.fetched(source).fingerprint
    if source in catalogue.LOCAL:
        return make_fingerprint(source, platform.python_version())
    if source.startswith(PREFIX):
        return _fingerprint_of_hub(source, recorded)
    path = Path(source)
    return _fingerprint_of_files(path) if path.exists() else make_fingerprint(source)


def _fingerprint_of_hub(source: str, recorded: str) -> str:
    name, _, _ = parse_hub_name(source)
    if Path(name).is_dir():
        return _fingerprint_of_files(Path(name))  # the library opens such a folder instead of the hub
    revision = revision_of(name)
    if revision:
        return make_fingerprint(source, revision)
    return recorded or make_fingerprint(source)


def _fingerprint_of_files(path: Path) -> str:
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    facts = []
    for file in files:
        status = file.stat()
        facts.append((str(file.relative_to(path.parent)), status.st_size, status.st_mtime_ns))
    return make_fingerprint(facts)


def size_of(source: str) -> int:
    """Bytes of the files that the source is read from, packed as they are; 0 where that is not known."""
    source, _ = split_fields(source)
    if source in DUMPS:
        return dump_path(source).stat().st_size
    if source in READERS or source.startswith(PREFIX) or not Path(source).exists():
        return 0
    return sum(file.stat().st_size for file in files_of(Path(source)))


def read_raw(source: str, fields: FieldMap | None, problems: Problems) -> Iterator[Document | RawPage]:
    """The source's documents; for a Wikipedia dump its raw pages, whose cleaning is left to the workers."""
    if source in DUMPS:
        catalogue.fetch_if_missing(source)
    dump = dump_path(source) if source in DUMPS else Path(source)
    if dump.is_file() and format_by_content(dump) == "dump":
        return read_raw_pages(dump, problems=problems)
    return read(source, fields, problems)
