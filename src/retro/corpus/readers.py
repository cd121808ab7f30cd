"""Readers: streams of documents from files, folders and the catalogue."""

import gzip
import json
import re
import sysconfig
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from retro.corpus import catalogue
from retro.corpus.documents import Document
from retro.errors import DataError

TEXT_SUFFIXES = {".txt", ".md", ".rst", ".py", ".text"}


def read(source: str) -> Iterator[Document]:
    """Documents of a catalogue name, a JSONL file (.gz too), a text file, or a folder of either."""
    if source in READERS:
        return READERS[source]()
    path = Path(source)
    if not path.exists():
        known = ", ".join(sorted(READERS))
        raise DataError(f"{source} is no file, no folder and no corpus of the catalogue; expected one, or a name of: {known}")
    return read_path(path)


def read_path(path: Path) -> Iterator[Document]:
    """Documents of one file, or of all text and JSONL files below a folder, in the order of their names."""
    files = sorted(file for file in path.rglob("*") if file.is_file() and _is_readable(file)) if path.is_dir() else [path]
    if not files:
        raise DataError(f"{path} holds no .jsonl, .jsonl.gz or text file ({', '.join(sorted(TEXT_SUFFIXES))}); expected at least one")
    root = path if path.is_dir() else path.parent
    for file in files:
        if _is_jsonl(file):
            yield from read_jsonl(file, source=root.name)
        else:
            name = str(file.relative_to(root))
            yield Document(id=name, text=read_utf8(file), source=root.name, title=name)


def _is_jsonl(file: Path) -> bool:
    return file.name.endswith((".jsonl", ".jsonl.gz"))


def _is_readable(file: Path) -> bool:
    return file.suffix in TEXT_SUFFIXES or _is_jsonl(file)


def read_utf8(file: Path) -> str:
    return decode_utf8(file.read_bytes(), str(file))


def decode_utf8(content: bytes, where: str) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where} is not UTF-8 (byte {error.start} is 0x{content[error.start]:02x}); expected UTF-8; convert or remove it"
        ) from None


def read_jsonl(file: Path, source: str) -> Iterator[Document]:
    """One document a line: an object with `text`, and perhaps `id`, `title`, `language`, `source`."""
    opener = gzip.open if file.suffix == ".gz" else open
    with opener(file, "rb") as lines:
        for number, line in enumerate(lines, start=1):
            where = f"{file} line {number}"
            if not line.strip():
                continue
            try:
                record = json.loads(decode_utf8(line, where))
            except json.JSONDecodeError as error:
                raise DataError(f"{where} is not JSON ({error.msg}); expected one object a line") from None
            if not isinstance(record, dict) or not isinstance(record.get("text"), str):
                raise DataError(f"{where} has no text; expected an object with a string called text")
            yield Document(
                id=str(record.get("id", f"{file.name}:{number}")),
                text=record["text"],
                source=str(record.get("source", source)),
                title=str(record.get("title", "")),
                language=str(record.get("language", "")),
            )


def read_licences() -> Iterator[Document]:
    """The texts without their front matter; those that are only a stub of one are left out."""
    for file in sorted(catalogue.fetched("licences").path.glob("*.LICENSE")):
        front_matter = re.match(r"---\n(.*?)^---[ \t]*$", text := read_utf8(file), flags=re.DOTALL | re.MULTILINE)
        header = front_matter[1] if front_matter else ""
        body = text[front_matter.end() :] if front_matter else text
        if body.strip():
            name = re.search(r"^name: (.+)$", header, flags=re.MULTILINE)
            yield Document(id=file.stem, text=body.strip() + "\n", source="licences", title=name[1] if name else file.stem)


def read_wikitext() -> Iterator[Document]:
    """The articles of WikiText-2, with the splits that it comes with."""
    heading = re.compile(r"^ = ([^=].*[^=]) = $", flags=re.MULTILINE)
    folder = catalogue.fetched("wikitext-2").path
    for split in ("train", "valid", "test"):
        with gzip.open(folder / f"{split}.raw.gz") as file:
            text = decode_utf8(file.read(), str(file.name))
        starts = [match.start() for match in heading.finditer(text)] + [len(text)]
        for number, (start, end) in enumerate(pairwise(starts)):
            article = text[start:end].strip() + "\n"
            yield Document(
                id=f"{split}-{number}", text=article, source="wikitext-2", title=article.split("\n", 1)[0].strip("= "), split=split
            )


def read_stdlib() -> Iterator[Document]:
    """The source files of the running Python's standard library, without its tests and installed packages."""
    root = Path(sysconfig.get_path("stdlib"))
    skipped = {"test", "tests", "site-packages", "__pycache__", "idle_test"}
    for file in sorted(root.rglob("*.py")):
        relative = file.relative_to(root)
        if skipped.isdisjoint(relative.parts):
            content = file.read_bytes()
            if content.strip():
                yield Document(id=str(relative), text=content.decode("utf-8", errors="replace"), source="stdlib", title=str(relative))


READERS = {"licences": read_licences, "wikitext-2": read_wikitext, "stdlib": read_stdlib}
