"""Cleaning one Wikipedia article: from wikitext to the plain text that the paper trains and evaluates on.

The paper's appendix on Wikipedia September 2021 gives the steps: parse with mwparserfromhell, remove sections
by their titles, remove wikilinks and the templates of reference lists, leave out `ref` and `table` tags,
`strip_code` for the rest, join title and sections by blank lines. Two of its words are settled here:

- "Remove Wikilinks" cannot mean every link, which would tear a word or two out of most sentences. Templates
  and tags are listed as in the widely used Wikipedia builder of TensorFlow Datasets, and the links that it
  removes are those of files, images and media. So these go entirely, with category and interlanguage links,
  which show nothing where they stand. Of any other link the markup goes and the visible text stays, which is
  what `strip_code` makes of it.
- The section "note" stands for "notes" too: articles write the plural and hardly ever the singular.

Where the parser misreads real articles, more is done than the appendix says: tables and comments are cut
before parsing, style marks are kept out of it, and the halves of broken markup that come out as text are
removed.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from retro.errors import DataError, MissingExtraError

if TYPE_CHECKING:
    from mwparserfromhell.nodes import Node
    from mwparserfromhell.wikicode import Wikicode

REMOVED_SECTIONS = frozenset(
    {"references", "external links", "sources", "further reading", "see also", "citations", "note", "notes"},
)
REMOVED_TEMPLATES = frozenset(
    {"reflist", "notelist", "notelist-ua", "notelist-lr", "notelist-ur", "notelist-lg"}
)
REMOVED_TAGS = frozenset({"ref", "table"})
HIDDEN_NAMESPACES = frozenset({"file", "image", "media", "category"})

MAX_ARTICLE_CHARS = 4 << 20
"""Twice what MediaWiki lets an article have in bytes."""
MAX_PARSER_WORK = 100_000_000
"""Unclosed openings times characters: the parser looks for the end of each one through the rest of the page,
some ten million characters a second. The bound is on the text rather than on the clock, so that a busy
machine makes the same corpus."""

# A language code before a link's title. The exceptions are other sites, whose links are shown as text.
_LANGUAGE = re.compile(
    r"(?!(?:doi|rfc|irc|mw|wp|hdl|osm):)(?:[a-z]{2,3}(?:-[a-z]+)*|simple|tokipona):", re.ASCII
)
_MARKUP = re.compile(
    r"\{\{|\}\}|\{\||\|\}|\[\[|\]\]|\[(?=[a-z]+:)|\]|<!--|-->|<(?P<slash>/?)(?P<tag>[a-z]+)[^<>]*(?P<end>>?)",
    re.IGNORECASE,
)
_PAIRS = {"}}": "{{", "|}": "{|", "]]": "[[", "]": "[", "-->": "<!--"}
_SINGLE_TAGS = frozenset({"br", "wbr", "hr", "meta", "link", "img", "li", "dt", "dd", "th", "td", "tr", "p"})
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_TABLE = re.compile(
    r"^[ \t:*#]*(?P<open>\{\|)|^[ \t]*\|\}(?!\})|<(?P<html>/?table)\b[^<>]*>", re.MULTILINE | re.IGNORECASE
)
_STYLE = re.compile(r"'{2,}")
_LEFTOVER = re.compile(
    r"__[A-Z]{3,}__|^[ \t]*\{\|.*$|\[\[|\]\]|\{\{|\}\}|"
    r"</?(?:ref|references|table|caption|tr|t[dht]|div|span|font|center|small|big|su[bp]|br|hr|p|[biusq]"
    r"|em|strong|strike|del|ins|cite|code|var"
    r"|blockquote|li|[uod]l|d[dt]|noinclude|includeonly|onlyinclude|nowiki|gallery)\b[^<>]*>",
    re.MULTILINE | re.IGNORECASE,
)
_ROW = re.compile(r"^[ \t]*\|.*$", re.MULTILINE)
"""A row of a table that a template opened; in text no line begins so."""
_LINE_END = re.compile(r"[ \t]+$", re.MULTILINE)
_BLANK_LINES = re.compile(r"\n{3,}")


def clean_article(title: str, wikitext: str, hidden_namespaces: Iterable[str] = ()) -> str:
    """The title and the cleaned sections, joined by blank lines; just the title if the article holds no text.

    `hidden_namespaces` are a wiki's own words for File, Image and Category, besides the English ones. Raises
    DataError for an article that the parser cannot read, or not in reasonable time.
    """
    hidden = HIDDEN_NAMESPACES | {name.lower() for name in hidden_namespaces}
    wikitext = _cut_tables(_COMMENT.sub("", wikitext))
    _expect_readable(title, wikitext)
    code = _parse(title, wikitext)
    sections = (_strip(section, hidden) for section in _kept_sections(code.nodes))
    return "\n\n".join([title, *filter(None, sections)])


def _expect_readable(title: str, wikitext: str) -> None:
    if len(wikitext) > MAX_ARTICLE_CHARS:
        raise DataError(
            f"the article {title!r} has {len(wikitext):,} characters; "
            f"expected at most {MAX_ARTICLE_CHARS:,}; it is left out"
        )
    unclosed = count_unclosed(wikitext)
    if unclosed * len(wikitext) > MAX_PARSER_WORK:
        raise DataError(
            f"the article {title!r} opens {unclosed:,} links, templates or tags that never close; "
            "expected few; it is left out"
        )


def _parse(title: str, wikitext: str) -> "Wikicode":
    try:
        import mwparserfromhell
        from mwparserfromhell.parser import ParserError
    except ImportError:
        raise MissingExtraError("mwparserfromhell", "wikipedia") from None
    try:
        # Style marks are left to `_remove_leftovers`: one odd '' would turn all that follows inside out.
        return mwparserfromhell.parse(wikitext, skip_style_tags=True)
    except (ParserError, RecursionError) as error:
        raise DataError(
            f"the article {title!r} cannot be parsed ({error}); expected wikitext; it is left out"
        ) from None


def _cut_tables(wikitext: str) -> str:
    """The article without tables of either notation: the parser takes slightly malformed ones for text."""
    # Where tables are open now, in wiki notation (False) and in HTML (True), and the spans of closed ones.
    opened: dict[bool, list[int]] = {False: [], True: []}
    spans: list[tuple[int, int]] = []
    for match in _TABLE.finditer(wikitext):
        html = (match["html"] or "").lower()
        if match["open"] or html == "table":
            opened[bool(html)].append(match.start())
        elif opened[bool(html)]:
            start = opened[bool(html)].pop()
            # Tables within this one are part of its span.
            while spans and spans[-1][0] >= start:
                spans.pop()
            spans.append((start, match.end()))
    # The text between the spans: from the end of each, or the beginning, to the start of the next.
    edges = [0, *(edge for span in spans for edge in span), len(wikitext)]
    return "".join(wikitext[start:end] for start, end in zip(edges[::2], edges[1::2], strict=True))


def count_unclosed(wikitext: str) -> int:
    """How many templates, links, tables, tags and comments begin and find no end."""
    depth: Counter[str] = Counter()
    for match in _MARKUP.finditer(wikitext):
        mark, tag = match[0], match["tag"]
        if tag is None:
            _count(depth, _PAIRS.get(mark, mark), opens=mark not in _PAIRS)
        elif not match["end"]:
            depth["<"] += 1
        elif not mark.endswith("/>") and tag.lower() not in _SINGLE_TAGS:
            _count(depth, tag.lower(), opens=not match["slash"])
    return depth.total()


def _count(depth: Counter[str], name: str, opens: bool) -> None:
    if opens:
        depth[name] += 1
    elif depth[name]:
        depth[name] -= 1


def _kept_sections(nodes: "list[Node]") -> "Iterator[list[Node]]":
    """The lead and the sections, each with its heading; a removed section takes its subsections along."""
    from mwparserfromhell.nodes import Heading

    section: list[Node] = []
    removed_level = 0
    for node in nodes:
        if isinstance(node, Heading):
            yield section
            section = []
            if not removed_level or node.level <= removed_level:
                name = _STYLE.sub("", node.title.strip_code()).strip().lower()
                removed_level = node.level if name in REMOVED_SECTIONS else 0
        if not removed_level:
            section.append(node)
    yield section


def _strip(nodes: "list[Node]", hidden: frozenset[str]) -> str:
    from mwparserfromhell.wikicode import Wikicode

    section = Wikicode(nodes)
    _remove(section, hidden)
    text = _ROW.sub("", section.strip_code())
    return _BLANK_LINES.sub("\n\n", _LINE_END.sub("", text)).strip()


def _remove(code: "Wikicode | None", hidden: frozenset[str]) -> None:
    """Take the unwanted nodes out of a tree in one pass; the parser's `remove` searches it for each node."""
    from mwparserfromhell.definitions import is_parsable
    from mwparserfromhell.nodes import ExternalLink, Heading, Tag, Text, Wikilink

    if code is None:
        return
    code.nodes = [node for node in code.nodes if not _is_unwanted(node, hidden)]
    for node in code.nodes:
        if isinstance(node, Wikilink):
            _remove(node.title, hidden)
            _remove(node.text, hidden)
        elif isinstance(node, Text):
            node.value = _remove_leftovers(node.value)
        elif isinstance(node, Tag) and is_parsable(str(node.tag)):
            _remove(node.contents, hidden)
        elif isinstance(node, ExternalLink | Heading):
            _remove(node.title, hidden)


def _remove_leftovers(text: str) -> str:
    """A text without style marks, and without the halves of broken markup that the parser takes for text."""
    # Four quotes are a real one beside a mark of three; beyond five, which is bold italics, the rest is real.
    text = _STYLE.sub(lambda match: "'" if len(match[0]) == 4 else match[0][5:], text)
    return _LEFTOVER.sub("", text)


def _is_unwanted(node: "Node", hidden: frozenset[str]) -> bool:
    from mwparserfromhell.nodes import Tag, Template, Wikilink

    if isinstance(node, Wikilink):
        return _is_hidden(str(node.title).strip(), hidden)
    if isinstance(node, Tag):
        return str(node.tag).strip().lower() in REMOVED_TAGS
    if isinstance(node, Template):
        return str(node.name).strip().lower() in REMOVED_TEMPLATES
    return False


def _is_hidden(target: str, hidden: frozenset[str]) -> bool:
    """Whether a link shows no text where it stands; a colon in front makes it an ordinary one."""
    prefix, colon, _ = target.partition(":")
    return bool(colon) and (prefix.strip().lower() in hidden or _LANGUAGE.match(target) is not None)
