"""Removal of documents by a list of titles or ids, such as Wikitext103's articles from Wikipedia."""

import re
import unicodedata
from collections.abc import Iterable
from pathlib import Path

from retro.corpus.documents import Document
from retro.errors import DataError

JOINER = re.compile(r"\s@(.)@\s")
"""WikiText's mark for a hyphen, comma or point that stood without spaces."""
SPACE = re.compile(r"[\s_]+")


def title_key(title: str) -> str:
    """A title without what its tokenized, URL and plain forms differ in: "AC @-@ 130", "AC-130"; "Iron_Man", "Iron Man"."""
    return SPACE.sub("", JOINER.sub(r"\1", unicodedata.normalize("NFC", title)))


def names_of(lines: Iterable[str]) -> frozenset[str]:
    """Titles or ids, each as it is (ids match exactly) and as `title_key` (titles match in any of their forms)."""
    names = {line.strip() for line in lines}
    return frozenset(name for raw in names for name in (raw, title_key(raw)) if name)


def read_names(path: str | Path) -> frozenset[str]:
    """The names of a text file, one a line; empty lines are skipped."""
    try:
        names = names_of(Path(path).read_text(encoding="utf-8").splitlines())
    except FileNotFoundError:
        raise DataError(
            f"{path} does not exist; expected a text file with one title or id a line; check the path"
        ) from None
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is not UTF-8 at byte {error.start}; expected one title or id a line; convert it to UTF-8"
        ) from None
    if not names:
        raise DataError(
            f"{path} holds no names; expected one title or id a line; fill it or leave the option out"
        )
    return names


def matches_names(document: Document, names: frozenset[str]) -> bool:
    """Whether the document's id or title is among the names (of `names_of` or `read_names`)."""
    return document.id in names or (
        bool(document.title) and (document.title in names or title_key(document.title) in names)
    )
