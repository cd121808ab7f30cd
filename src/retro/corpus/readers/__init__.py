"""Readers: documents from files, folders, hub datasets and the catalogue, one record in memory at a time."""

from collections.abc import Iterator
from pathlib import Path

from retro import catalogue
from retro.corpus.documents import Document
from retro.corpus.readers.catalogued import READERS, read_stdlib
from retro.corpus.readers.hub import PREFIX, read_hub
from retro.corpus.readers.paths import read_path
from retro.corpus.readers.problems import Problems
from retro.corpus.readers.records import FieldMap, split_fields
from retro.errors import ConfigError, DataError

__all__ = ["READERS", "FieldMap", "Problems", "read", "read_path", "read_stdlib"]


def read(source: str, fields: FieldMap | None = None, problems: Problems | None = None) -> Iterator[Document]:
    """Documents of a catalogue name, a file, a folder, or a hub dataset (`hf:OWNER/NAME/CONFIG@SPLIT`).

    A field map of its own may follow a source (`notes.csv::text=body,id=key`). An entry of the catalogue is
    fetched if it is not here. Records that cannot be read go to `problems`; without it the first one is an
    error.
    """
    named = source
    source, fields = split_fields(source, fields)
    problems = Problems(strict=True) if problems is None else problems
    # A name of the catalogue comes first, even if a file is called so; `./NAME` names the file.
    if source in READERS:
        if source != named:
            raise ConfigError(
                f"{named} names fields; expected {source} alone, as the catalogue knows its fields"
            )
        catalogue.fetch_if_missing(source)
        return READERS[source]()
    if source.startswith(PREFIX):
        return read_hub(source, fields, problems)
    path = Path(source)
    if not path.exists():
        known = ", ".join(sorted(READERS))
        raise DataError(
            f"{source} is no file, no folder and no corpus of the catalogue; "
            f"expected one, or a name of: {known}"
        )
    return read_path(path, fields, problems)
