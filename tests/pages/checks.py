"""What every page must be, whatever it shows: whole, self-contained, and readable without a mouse or eyes."""

import re
from html.parser import HTMLParser

VOID = {"meta", "br", "hr", "img", "input", "link", "rect", "line", "path", "use", "circle"}


class Outline(HTMLParser):
    """The ids, links and headings of a page, and the elements that were never closed."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.headings: list[int] = []
        self.attributes: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.attributes.append((tag, found))
        self.ids += filter(None, [found.get("id")])
        self.links += filter(None, [found.get("href")] if tag == "a" else [])
        if re.fullmatch(r"h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag


def check_page(page: str) -> Outline:
    """Check a page, and return its outline."""
    outline = Outline()
    outline.feed(page)
    assert not outline.open
    assert '<html lang="en">' in page
    assert 'name="viewport"' in page
    # Every place has one name, and every link within the page leads to a place that is there.
    assert len(outline.ids) == len(set(outline.ids))
    assert {link.removeprefix("#") for link in outline.links if link.startswith("#")} <= set(outline.ids)
    # One heading of the first level, and no level is left out on the way down.
    assert outline.headings[0] == 1
    assert outline.headings.count(1) == 1
    for above, below in zip(outline.headings, outline.headings[1:], strict=False):
        assert below <= above + 1
    for tag, attributes in outline.attributes:
        # Nothing is loaded: no script, no picture, no style from elsewhere.
        assert tag not in ("script", "link", "img", "iframe")
        assert "src" not in attributes
        # A picture, and a box that scrolls, has a name.
        if tag == "svg" or "tabindex" in attributes:
            assert attributes.get("aria-label")
    assert not any(link.startswith("http") for link in outline.links)
    assert "@import" not in page
    assert "url(http" not in page
    return outline


def check_made(page: str, command: str, corpus: str) -> None:
    """Every page says when, by what and from what it was made."""
    assert re.search(r"<dt>made</dt><dd>\d{4}-\d\d-\d\d \d\d:\d\d UTC</dd>", page)
    assert f"<dt>command</dt><dd><code>{command}</code></dd>" in page
    assert f"<dt>corpus</dt><dd>{corpus}" in page
