"""Wikipedia dumps: a stream of articles out of MediaWiki's XML, packed or not, in bounded memory."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast
from xml.etree.ElementTree import Element, ParseError, XMLPullParser

from retro.corpus.documents import Document
from retro.corpus.readers.problems import Kind, Problems
from retro.corpus.readers.streams import BROKEN, open_stream
from retro.corpus.wikitext import clean_article
from retro.errors import DataError

READ_BYTES = 1 << 18
XML_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
FILE_NAMESPACE, CATEGORY_NAMESPACE = 6, 14
NAMESPACES = frozenset(
    {"media", "special", "talk", "user", "wikipedia", "project", "file", "image", "mediawiki", "template"}
    | {"help", "category", "portal", "book", "draft", "module", "timedtext", "education program", "gadget"}
    | {"gadget definition", "topic"}
)
"""Namespaces that hold no articles, each with its talk; a dump's own list is added to them."""

_REDIRECT = re.compile(r"\s*#redirect\b", re.IGNORECASE)


@dataclass(frozen=True)
class RawPage:
    """An article as it lies in the dump."""

    id: str
    title: str
    wikitext: str
    language: str = "en"
    hidden_namespaces: tuple[str, ...] = ()
    """The wiki's own words for File and Category; links to them are not part of the text."""
    is_redirect: bool = False


@dataclass
class DumpCounts:
    """What was met on the way through a dump."""

    articles: int = 0
    redirects: int = 0
    other_namespaces: int = 0
    truncated: bool = False
    """The dump ends within a page or before its closing tag, as enwik8 does."""


@dataclass
class _Site:
    """What the head of a dump says of its wiki."""

    language: str = "en"
    namespaces: frozenset[str] = NAMESPACES
    hidden_namespaces: tuple[str, ...] = ()

    def read(self, siteinfo: Element) -> None:
        names = {
            int(item.get("key", "0")): (item.text or "").lower()
            for item in siteinfo.iterfind("{*}namespaces/{*}namespace")
        }
        self.namespaces |= {name for key, name in names.items() if key != 0}
        hidden = (FILE_NAMESPACE, CATEGORY_NAMESPACE)
        self.hidden_namespaces = tuple(names[key] for key in hidden if key in names)

    def is_article(self, page: Element, title: str) -> bool:
        """By the number of the namespace, or by the title's prefix in dumps from before there was one."""
        number = page.findtext("{*}ns")
        if number is not None:
            return number.strip() == "0"
        prefix, colon, _ = title.lower().partition(":")
        return not (colon and prefix.replace("_", " ").removesuffix(" talk") in self.namespaces)


def read_dump(path: Path, problems: Problems | None = None) -> Iterator[Document]:
    """The cleaned articles of a dump. What cannot be read goes to `problems`; without them it is an error."""
    pages = read_raw_pages(path, problems=problems)
    # Not a for loop: after a page that cannot be cleaned the reading goes on.
    while True:
        where = str(path)
        try:
            page = next(pages, None)
            if page is None:
                return
            where = f"{path} page {page.id}"
            document = clean_page(page)
        except DataError as error:
            if problems is None:
                raise
            problems.add(where, str(error))
            continue
        if document is not None:
            yield document
        elif problems is not None:
            problems.add(where, f"({page.title}) has no text but its title", Kind.EMPTY)


def clean_page(page: RawPage) -> Document | None:
    """The article as a document, or nothing if no text is left of it; a pure function, for any process."""
    text = clean_article(page.title, page.wikitext, page.hidden_namespaces)
    if text == page.title:
        return None
    return Document(
        id=page.id, text=text + "\n", source="wikipedia", title=page.title, language=page.language
    )


def read_raw_pages(
    path: Path, counts: DumpCounts | None = None, problems: Problems | None = None
) -> Iterator[RawPage]:
    """The articles of a dump, in its order; redirects and other namespaces are left out and counted."""
    for page in read_pages_and_redirects(path, counts, problems):
        if not page.is_redirect:
            yield page
        elif problems is not None:
            _leave_out(path, page.id, page.title, "is a redirect", page.wikitext, problems)


def read_pages_and_redirects(
    path: Path, counts: DumpCounts | None = None, problems: Problems | None = None
) -> Iterator[RawPage]:
    """The articles of a dump and the redirects to them, in its order; other namespaces are only counted.

    A dump that is cut off gives the whole pages before the cut, since enwik8 is such a one. A packed file
    that is cut off or damaged is an error, after the pages before the damage.
    """
    counts = counts or DumpCounts()
    site = _Site()
    for page in _page_elements(path, site, counts):
        title = (page.findtext("{*}title") or "").strip()
        revisions = page.findall("{*}revision")
        # A dump with the whole history has several revisions, the newest last.
        wikitext = (revisions[-1].findtext("{*}text") if revisions else None) or ""
        number = (page.findtext("{*}id") or title).strip()
        if not site.is_article(page, title):
            counts.other_namespaces += 1
            if problems is not None:
                _leave_out(path, number, title, "is no article", wikitext, problems)
            continue
        is_redirect = page.find("{*}redirect") is not None or _REDIRECT.match(wikitext) is not None
        counts.redirects += is_redirect
        counts.articles += not is_redirect
        yield RawPage(number, title, wikitext, site.language, site.hidden_namespaces, is_redirect)


def _leave_out(path: Path, number: str, title: str, reason: str, wikitext: str, problems: Problems) -> None:
    where = f"{path} page {number}"
    problems.add(where, f"({title}) {reason}", Kind.NO_ARTICLE, len(wikitext.encode(errors="replace")))


def _page_elements(path: Path, site: _Site, counts: DumpCounts) -> Iterator[Element]:
    """Whole page elements; each is dropped before the next, so that memory does not grow with the dump."""
    root: Element | None = None
    for event, element in _events(path, counts):
        # The first event is the start of the root, which says the language of the wiki.
        if root is None:
            root = element
            site.language = root.get(XML_LANGUAGE) or site.language
        name = element.tag.rpartition("}")[2]
        if event == "end" and name == "siteinfo":
            site.read(element)
        elif event == "end" and name == "page":
            yield element
            root.clear()  # the parser keeps every element below the root
    if root is None or not root.tag.endswith("mediawiki"):
        raise DataError(
            f"{path} holds no mediawiki element; expected a MediaWiki dump (.xml, .xml.bz2, .xml.gz or "
            ".xml.zst); name another file"
        )


def _events(path: Path, counts: DumpCounts) -> Iterator[tuple[str, Element]]:
    """Starts and ends of elements. A fault within the file is an error, a file that ends too soon is not."""
    parser: XMLPullParser[Element] = XMLPullParser(("start", "end"))
    with open_stream(path) as file:
        while data := _read(file, path):
            parser.feed(data)
            try:
                yield from cast(Iterator[tuple[str, Element]], parser.read_events())
            except ParseError as error:
                raise DataError(
                    f"{path} is no MediaWiki dump or is damaged ({error}); expected XML; download it again"
                ) from None
    # Only here does the parser say that elements were left open.
    try:
        parser.close()
    except ParseError:
        counts.truncated = True


def _read(file: IO[bytes], path: Path) -> bytes:
    try:
        return file.read(READ_BYTES)
    except BROKEN as error:
        raise DataError(
            f"{path} breaks off or is damaged ({error}); expected a whole packed file; download it again"
        ) from None
