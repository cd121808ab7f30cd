"""Link graphs of small dumps, against what a reader sees in them."""

import bz2
from pathlib import Path

import numpy as np
import pytest

from retro.corpus.links import LinkGraph, normal_title, read_links
from retro.corpus.readers.wikipedia import DumpCounts
from retro.errors import DataError

PAGES = {
    "Ant": "An [[insect]], see [[Bee_hive#Wax|hives]], [[insect|again]], [[ant]] and [[:Category:Ants]]. "
    "[[File:Ant.jpg|thumb|on a [[leaf]]]]",
    "Insect": "<!-- [[Ant]] --> [[Category:Insects]] [[de:Insekt]] [[Wikipedia:Ants]] [[Hexapod]] [[Absent]] "
    "[[AT&amp;amp;T]]",
    "Bee hive": "[[ Honey  bee ]] [[Round]]\n[[2001: A Space Odyssey|film]] [[#Wax]] [[ant\n]]",
    "Honey bee": "[[Talk:Ant]] [[User:Bee]]",
    "Leaf": "[[:Ant]]",
    "2001: A Space Odyssey": "No links. [ [Ant] ]",
    "AT&amp;T": "",
    "Hexapod": "#REDIRECT [[six-legged]]",
    "Six-legged": "#redirect[[Leaf#Legs]]",
    "Round": "#REDIRECT [[And round]]",
    "And round": "#REDIRECT [[Round]]",
    "Category:Ants": "[[Ant]] [[Leaf]]",
}


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    escaped = {title: text.replace("<", "&lt;").replace(">", "&gt;") for title, text in PAGES.items()}
    pages = "".join(
        f"<page><title>{title}</title><id>{number}</id><revision><text>{text}</text></revision></page>"
        for number, (title, text) in enumerate(escaped.items())
    )
    path = tmp_path_factory.mktemp("dump") / "wiki.xml.bz2"
    path.write_bytes(bz2.compress(f"<mediawiki>{pages}</mediawiki>".encode()))
    return path


def links_of(graph: LinkGraph, title: str) -> set[str]:
    number = graph.article(title)
    targets = [
        graph.titles[target] for target in graph.targets[graph.offsets[number] : graph.offsets[number + 1]]
    ]
    assert len(targets) == len(set(targets))
    return set(targets)


def test_links_lead_over_redirects_to_articles_only(dump: Path) -> None:
    counts = DumpCounts()
    graph = read_links(dump, counts)
    assert (counts.articles, counts.redirects, counts.other_namespaces) == (7, 4, 1)
    assert links_of(graph, "Ant") == {"Insect", "Bee hive", "Leaf"}
    assert links_of(graph, "Insect") == {"Leaf", "AT&T"}
    assert links_of(graph, "Bee hive") == {"Honey bee", "2001: A Space Odyssey", "Ant"}
    assert links_of(graph, "Leaf") == {"Ant"}
    assert [links_of(graph, title) for title in ("Honey bee", "AT&T", "2001: A Space Odyssey")] == [
        set(),
        set(),
        set(),
    ]
    assert graph.titles[graph.article("hexapod")] == "Leaf"
    assert graph.article("Round") == -1


def both_ways(graph: LinkGraph) -> LinkGraph:
    """The same articles with every link in both directions."""
    linked = np.zeros((len(graph), len(graph)), dtype=bool)
    linked[np.repeat(np.arange(len(graph)), np.diff(graph.offsets)), graph.targets] = True
    linked |= linked.T
    offsets = np.cumsum([0, *linked.sum(axis=1)])
    return LinkGraph(graph.titles, graph.numbers, offsets, np.nonzero(linked)[1])


def test_distances_by_hand(dump: Path) -> None:
    graph = read_links(dump)
    titles = ["Ant", "Insect", "Honey bee", "AT&T", "Leaf"]
    targets = np.array([graph.article(title) for title in titles])
    assert graph.distances(graph.article("Leaf"), targets).tolist() == [1, 2, 3, 3, 0]
    assert graph.distances(graph.article("Honey bee"), targets).tolist() == [-1, -1, 0, -1, -1]
    assert both_ways(graph).distances(graph.article("Honey bee"), targets).tolist() == [2, 3, 0, 4, 3]


def test_distances_equal_a_plain_search_on_a_random_graph() -> None:
    rng = np.random.default_rng(0)
    links = [
        sorted(set(rng.integers(0, 60, size=rng.integers(0, 4)).tolist()) - {node}) for node in range(60)
    ]
    offsets = np.cumsum([0, *map(len, links)])
    graph = LinkGraph(
        [str(n) for n in range(60)], {}, offsets, np.array([target for row in links for target in row])
    )
    for source in range(60):
        expected, frontier = {source: 0}, [source]
        while frontier:
            reached = [
                (target, expected[node] + 1)
                for node in frontier
                for target in links[node]
                if target not in expected
            ]
            frontier = list(dict(reached))
            expected |= dict(reached)
        assert graph.distances(source, np.arange(60)).tolist() == [
            expected.get(node, -1) for node in range(60)
        ]


@pytest.mark.parametrize(
    ("title", "normal"),
    [
        ("ant", "Ant"),
        (" ant__hill_ ", "Ant hill"),
        ("élan", "Élan"),
        ("AT&amp;T", "AT&T"),
        ("iPod", "IPod"),
        ("", ""),
    ],
)
def test_titles_are_compared_as_mediawiki_does(title: str, normal: str) -> None:
    assert normal_title(title) == normal


def test_a_dump_without_articles_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.xml").write_text("<mediawiki></mediawiki>")
    with pytest.raises(DataError, match="holds no article"):
        read_links(tmp_path / "empty.xml")
