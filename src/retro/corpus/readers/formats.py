"""Which format a file has: by its name where that tells, and else by its first bytes."""

import json
from pathlib import Path

from retro.corpus.readers.encodings import is_binary
from retro.corpus.readers.streams import BROKEN, metered, open_stream

TEXT_SUFFIXES = {".txt", ".md", ".markdown", ".rst", ".py", ".text"}
PACKINGS = (".gz", ".zst", ".bz2")
FORMATS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "table",
    ".tsv": "table",
    ".parquet": "parquet",
    ".xml": "dump",
    ".html": "html",
    ".htm": "html",
    ".xhtml": "html",
    ".pdf": "pdf",
}
KNOWN = ", ".join(sorted([*FORMATS, *TEXT_SUFFIXES]))
HEAD = 64 * 1024
PDF_MARK = b"%PDF-"
PDF_HEAD = 1024
"""Within so many bytes a PDF must say what it is."""
OFFICE = (
    ".docx",
    ".doc",
    ".odt",
    ".rtf",
    ".epub",
    ".pages",
    ".pptx",
    ".ppt",
    ".odp",
    ".xlsx",
    ".xls",
    ".ods",
)
"""Names of documents that hold text, and that nothing here can read."""
DATA = (".json", ".svg", ".ipynb")
"""Names of files that are JSON or XML, and hold no text as a reader would see it."""


def format_of(file: Path) -> str | None:
    """What the file is to be read as: the name is believed where it tells, except where it is often wrong.

    `office`, `binary`, `broken`, and None for XML and JSON that is neither a dump nor lines, cannot be read.
    """
    by_name = format_by_name(file)
    if file.suffix.lower() in OFFICE:
        return "office"
    if by_name in ("jsonl", "table", "parquet", "html"):
        return by_name
    by_content = format_by_content(file)
    # A dump may be called .txt.
    if by_name == "text":
        return "dump" if by_content == "dump" else "text"
    # What is called .xml may be any XML, and what is called .pdf a page that says "not found".
    if by_name is not None and by_content not in (by_name, "binary", "broken"):
        return None
    return by_content


def format_by_name(file: Path) -> str | None:
    """`jsonl`, `table`, `parquet`, `dump`, `html`, `pdf`, `text`, or nothing where the name does not tell."""
    name = file.name.lower()
    for packing in PACKINGS:
        name = name.removesuffix(packing)
    suffix = Path(name).suffix
    return "text" if suffix in TEXT_SUFFIXES else FORMATS.get(suffix)


def format_by_content(file: Path) -> str | None:
    """The same from the first bytes, unpacked; `binary` if they are no text, `broken` without any."""
    try:
        # A meter of its own, whose count is dropped: the file is read again from its beginning.
        with metered(), open_stream(file) as stream:
            head = stream.read(HEAD)
    except BROKEN:
        return "broken"
    if head.startswith(b"PAR1"):
        return "parquet"
    if PDF_MARK in head[:PDF_HEAD]:
        return "pdf"
    if is_binary(head):
        return "binary"
    start = head.lstrip()
    if start.startswith(b"<mediawiki") or (start.startswith(b"<?xml") and b"<mediawiki" in head):
        return "dump"
    if start[:14].lower().startswith(b"<!doctype html"):
        return "html"
    if start.startswith((b"{", b"[")):
        if _opens_with_an_object(head):
            return "jsonl"
        # One large JSON value: no format of ours if the file is called so, and otherwise any text.
        return None if set(DATA) & set(file.suffixes) else "text"
    return None if start.startswith(b"<?xml") or file.suffix.lower() in DATA else "text"


def _opens_with_an_object(head: bytes) -> bool:
    line, newline, _ = head.lstrip().partition(b"\n")
    if not newline and len(head) >= HEAD:
        return line.startswith(b'{"')  # a first record longer than the head
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False
