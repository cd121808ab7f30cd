"""Web pages: the text that a reader sees, without scripts, styles and navigation."""

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from retro.corpus.documents import Document
from retro.corpus.readers.encodings import decode, decode_as
from retro.corpus.readers.problems import Kind, Problems
from retro.corpus.readers.records import FieldMap
from retro.corpus.readers.streams import BROKEN, open_stream
from retro.errors import MissingExtraError

UNSEEN = ("script", "style", "noscript", "template", "nav", "svg", "iframe", "object", "head")
PARAGRAPHS = (
    *("p", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "dl", "table", "blockquote", "pre", "figure"),
    *("article", "section", "header", "footer", "main", "aside", "form", "fieldset", "address"),
)
LINES = ("div", "li", "tr", "dt", "dd", "figcaption", "caption", "option", "hr")
# Marks that no page holds as text, for the time that spaces and gaps are joined.
PARAGRAPH = "\x1d"
LINE = "\x1e"
KEPT_SPACE = "\x1f"
"""A space of preformatted text."""


def read_html(file: Path, name: str, source: str, _: FieldMap, problems: Problems) -> Iterator[Document]:
    """The page as one document, called by its title."""
    where = str(file)
    size = file.stat().st_size
    try:
        soup: Any = importlib.import_module("bs4")
    except ImportError:
        problems.add_missing(where, MissingExtraError("beautifulsoup4", "html"), size)
        return
    try:
        with open_stream(file) as stream:
            content = stream.read()
        markup = _decode_page(content, where, problems)
        if markup is None:
            return
        page = soup.BeautifulSoup(markup, "html.parser")
        title = " ".join(page.title.get_text().split()) if page.title else ""
        text = text_of(page)
    except (*BROKEN, soup.ParserRejectedMarkup, RecursionError, ValueError) as error:
        problems.add(where, f"cannot be read ({error}); expected a whole page; fetch it again", size=size)
        return
    if text:
        yield Document(id=name, text=text, source=source, title=title or name)
    else:
        problems.add(where, "is a page without text", Kind.EMPTY, size)


def text_of(page: Any) -> str:
    """What is seen of a parsed page: a line for each line of text, an empty one between paragraphs."""
    for tag in page.find_all(UNSEEN):
        tag.decompose()
    for tag in page.find_all(attrs={"role": "navigation"}):
        tag.decompose()
    for string in list(page.find_all(string=True)):
        # Comments and declarations are strings of other classes.
        plain = "" if type(string).__name__ != "NavigableString" else str(string)
        if string.find_parent("pre"):
            string.replace_with(plain.replace(" ", KEPT_SPACE).replace("\t", KEPT_SPACE * 4))
        else:
            string.replace_with(" ".join(re.split(r"[ \t\r\n\f]+", plain)))
    for tag in page.find_all("br"):
        tag.replace_with("\n")
    for tag in page.find_all(["td", "th"]):
        tag.append(" ")
    for tags, gap in ((PARAGRAPHS, PARAGRAPH), (LINES, LINE)):
        for tag in page.find_all(tags):
            tag.insert(0, gap)
            tag.append(gap)
    # However many blocks begin and end at one place, there is one gap, the widest of them.
    text = re.sub(rf"[ \n{LINE}]*{PARAGRAPH}[ \n{LINE}{PARAGRAPH}]*", "\n\n", page.get_text())
    text = re.sub(rf" *{LINE}[ {LINE}]*", "\n", text)
    text = re.sub(r" +", " ", re.sub(r" *\n *", "\n", text)).strip(" \n").replace(KEPT_SPACE, " ")
    return text + "\n" if text.strip() else ""


def _decode_page(content: bytes, where: str, problems: Problems) -> str | None:
    """The markup: UTF-8, or what the page itself says that it is in, or what it seems to be in."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        pass
    declared = re.search(rb"""charset\s*=\s*["']?([\w-]+)""", content[:4096], re.IGNORECASE)
    encoding = declared[1].decode().lower() if declared else ""
    # Every browser reads what is called Latin-1 as Windows-1252, which has more characters.
    encoding = "windows-1252" if encoding in ("iso-8859-1", "latin1", "us-ascii") else encoding
    text = decode_as(content, encoding)
    if text is None:
        return decode(content, where, problems)
    problems.encodings[encoding] += 1
    return text
