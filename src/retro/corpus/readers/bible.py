"""A Bible as the pythonbible packages keep it: one long string in a Python file, with where each verse begins and ends."""

import ast
from collections.abc import Iterator
from pathlib import Path

from retro.corpus.documents import Document
from retro.errors import DataError

CHAPTER = 1_000
BOOK = 1_000 * CHAPTER
"""A verse's number is book · 1,000,000 + chapter · 1,000 + verse."""


def documents_of_bible(file: Path, source: str) -> Iterator[Document]:
    """One document a chapter, without the numbers of its verses. The file is parsed, never run."""
    text, starts, ends, books = _parse(file)
    spans: dict[int, tuple[int, int]] = {}
    for verse, start in starts.items():
        chapter = verse // CHAPTER
        first, last = spans.get(chapter, (start, ends[verse]))
        spans[chapter] = min(first, start), max(last, ends[verse])
    for chapter, (start, end) in spans.items():
        title = f"{books[chapter * CHAPTER // BOOK - 1]} {chapter % (BOOK // CHAPTER)}"
        body = text[start:end].strip()
        if body:
            yield Document(
                id=title.lower().replace(" ", "-"),
                text=body + "\n",
                source=source,
                title=title,
                language="en",
            )


def _parse(file: Path) -> tuple[str, dict[int, int], dict[int, int], list[str]]:
    """Text, first and last place of each verse, and the short names of the books, out of the call `bible = Bible(…)`."""
    for statement in ast.parse(file.read_text(encoding="utf-8"), str(file)).body:
        match statement:
            case ast.Assign(value=ast.Call(args=[_, text, starts, ends, _, ast.Dict(values=names), *_])):
                return (
                    ast.literal_eval(text),
                    ast.literal_eval(starts),
                    ast.literal_eval(ends),
                    [ast.literal_eval(name) for name in names],
                )
    raise DataError(f"{file} assigns no Bible; expected the format of pythonbible 0.0.2; fetch it again")
