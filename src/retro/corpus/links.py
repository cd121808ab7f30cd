"""The link graph of a Wikipedia dump: which article links to which, from the dump itself."""

import html
import re
from array import array
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from retro.corpus.readers.wikipedia import DumpCounts, read_pages_and_redirects
from retro.errors import DataError

_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_LINK = re.compile(r"\[\[[\s:_]*([^\[\]{}|#<>\n]+)")
"""A link's target, without its anchor and its text; links within the captions of pictures count as well."""
MOST_REDIRECTS = 8
"""A longer chain of redirects is taken for a circle."""


@dataclass(frozen=True)
class LinkGraph:
    """Articles and the links between them.

    Those of article i lead to `targets[offsets[i]:offsets[i + 1]]`, each target once, in ascending order.
    """

    titles: list[str]
    numbers: dict[str, int]
    """The article of every title, those of redirects too."""
    offsets: np.ndarray
    targets: np.ndarray

    def __len__(self) -> int:
        return len(self.titles)

    def article(self, title: str) -> int:
        """The number of the article that a title leads to, −1 if there is none."""
        return self.numbers.get(normal_title(title), -1)

    def distances(self, source: int, targets: np.ndarray) -> np.ndarray:
        """The fewest links that lead from an article to each of the others; −1 where there is no way."""
        distances = np.full(len(self), -1, dtype=np.int32)
        distances[source] = 0
        frontier = np.array([source])
        level = 0
        # Breadth first: all articles of one distance together, until every target is reached or none is new.
        while len(frontier) and (distances[targets] < 0).any():
            level += 1
            reached = self._targets_of(frontier)
            frontier = np.unique(reached[distances[reached] < 0])
            distances[frontier] = level
        found: np.ndarray = distances[targets]
        return found

    def _targets_of(self, articles: np.ndarray) -> np.ndarray:
        """The links of several articles, one after the other."""
        starts = self.offsets[articles]
        counts = self.offsets[articles + 1] - starts
        # The place of every link within its own article: 0, 1, …, and from 0 again for the next article.
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        reached: np.ndarray = self.targets[np.repeat(starts, counts) + within]
        return reached


def normal_title(title: str) -> str:
    """A title as MediaWiki compares it: single spaces for underscores, and the first letter a capital."""
    if "&" in title:
        title = html.unescape(title)
    title = " ".join(title.replace("_", " ").split())
    return title[:1].upper() + title[1:]


def read_links(path: Path, counts: DumpCounts | None = None) -> LinkGraph:
    """Read the graph of a dump, packed or not, in one pass.

    Links are looked for in the raw text, without comments. A link counts if it leads, over redirects, to
    another article of the dump. That leaves out other namespaces, other wikis, other languages, and articles
    that are not there.
    """
    titles: list[str] = []
    redirects: dict[str, str] = {}
    # Links are kept as numbers of the targets met so far; which of them are articles is known at the end.
    names: dict[str, int] = {}
    links = array("i")
    num_links = array("i")
    for page in read_pages_and_redirects(path, counts):
        text = _COMMENT.sub("", page.wikitext) if "<!--" in page.wikitext else page.wikitext
        if page.is_redirect:
            if target := _LINK.search(text):
                redirects[normal_title(page.title)] = normal_title(target[1])
            continue
        titles.append(page.title)
        found = _LINK.findall(text)
        links.extend([names.setdefault(name, len(names)) for name in found])
        num_links.append(len(found))
    if not titles:
        raise DataError(f"{path} holds no article; expected a MediaWiki dump with some; name another file")
    numbers = _resolve({normal_title(title): number for number, title in enumerate(titles)}, redirects)
    # The article that each of the numbered targets leads to, −1 if none; then that of every link.
    article_of = np.fromiter(
        (numbers.get(normal_title(name), -1) for name in names), dtype=np.int32, count=len(names)
    )
    targets = article_of[np.array(links, dtype=np.int32)]
    sources = np.repeat(np.arange(len(titles)), np.array(num_links, dtype=np.int32))
    # Links to what is not in the dump, and those of an article to itself, do not count.
    real = (targets >= 0) & (targets != sources)
    return LinkGraph(titles, numbers, *_rows(sources[real], targets[real], len(titles)))


def _resolve(articles: dict[str, int], redirects: dict[str, str]) -> dict[str, int]:
    """The article of every title, over chains of redirects; none where they lead nowhere or in a circle."""
    numbers = dict(articles)
    for title, target in redirects.items():
        for _ in range(MOST_REDIRECTS):
            if target in articles or target not in redirects:
                break
            target = redirects[target]
        if target in articles:
            numbers.setdefault(title, articles[target])
    return numbers


def _rows(sources: np.ndarray, targets: np.ndarray, num_articles: int) -> tuple[np.ndarray, np.ndarray]:
    """Offsets and targets of compressed rows, without double links."""
    # Both ends in one number: sorting these sorts by source, then by target, and equal links become one.
    pairs = np.unique(sources.astype(np.int64) * num_articles + targets)
    offsets = np.searchsorted(pairs, np.arange(num_articles + 1, dtype=np.int64) * num_articles)
    return offsets, (pairs % num_articles).astype(np.int32)
