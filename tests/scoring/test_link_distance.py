"""Link distances of the small workspace's neighbours in a graph that the tests make up."""

import dataclasses

import numpy as np
import pytest

from retro.corpus.links import LinkGraph
from retro.errors import ConfigError, DataError
from retro.reproduce.other_data import plot_link_distances
from retro.scoring.link_distance import LinkDistances, _summary, link_distances
from retro.workspace import Workspace


def circle(titles: list[str]) -> LinkGraph:
    """Every article links to the next alone, the last to the first: the distance is how far to go on."""
    numbers = {title: number for number, title in enumerate(titles)}
    return LinkGraph(titles, numbers, np.arange(len(titles) + 1), (np.arange(len(titles)) + 1) % len(titles))


@pytest.fixture(scope="module")
def titles(workspace: Workspace) -> list[str]:
    return sorted(
        row["title"] for split in ("train", "valid", "test") for row in workspace.store(split).documents
    )


def test_every_pair_is_measured_from_the_query_on(workspace: Workspace, titles: list[str]) -> None:
    neighbours = workspace.neighbours("test")
    found = link_distances(neighbours, circle(titles), max_documents=100)
    expected: dict[int, list[int]] = {rank: [] for rank in range(4)}
    for chunk in np.flatnonzero(neighbours.table.complete):
        own = titles.index(neighbours.store.documents[neighbours.table.documents[chunk]]["title"])
        for rank, neighbour in enumerate(neighbours.describe(np.array([chunk]), 4)[0]):
            expected[rank].append((titles.index(neighbour.title) - own) % len(titles))
    for rank, distances in enumerate(found.by_rank):
        assert sum(distances.histogram.values()) == len(expected[rank])
        assert distances.mean.estimate == pytest.approx(np.mean(expected[rank]))
        assert distances.mean.low < distances.mean.estimate < distances.mean.high
    assert found.rise.estimate == pytest.approx(
        np.polyfit(range(4), [np.mean(expected[rank]) for rank in range(4)], 1)[0]
    )
    pooled = np.mean([distance for values in expected.values() for distance in values])
    assert found.below_random.estimate == pytest.approx(found.random.mean.estimate - pooled)
    assert (found.num_documents, found.same_article, found.not_in_graph) == (len(neighbours.store), 0, 0)


def test_what_cannot_be_measured_is_counted_apart(workspace: Workspace, titles: list[str]) -> None:
    neighbours = workspace.neighbours("test")
    whole = link_distances(neighbours, circle(titles))
    held = {row["title"] for row in workspace.store("train").documents}
    gone = next(title for title in titles if title in held)
    graph = circle(titles)
    missing = dataclasses.replace(
        graph, numbers={title: number for title, number in graph.numbers.items() if title != gone}
    )
    without = link_distances(neighbours, missing)
    pairs = [
        sum(sum(d.histogram.values()) + d.disconnected for d in result.by_rank) for result in (whole, without)
    ]
    assert pairs[0] - pairs[1] == without.not_in_graph
    no_links = dataclasses.replace(graph, offsets=np.zeros(len(titles) + 1, dtype=np.int64))
    lost = link_distances(neighbours, no_links)
    assert sum(d.disconnected for d in lost.by_rank) == pairs[0]
    assert np.isnan(lost.rise.estimate)
    other_edition = dataclasses.replace(graph, numbers=dict.fromkeys(titles, 7))
    assert link_distances(neighbours, other_edition).same_article == pairs[0]


def test_intervals_tell_a_rise_and_nearness_that_are_there() -> None:
    rng = np.random.default_rng(1)
    documents, ranks = (axis.ravel() for axis in np.meshgrid(np.arange(200), np.arange(4), indexing="ij"))
    distances = np.where(ranks == 0, 6, ranks) + rng.integers(0, 2, size=ranks.shape)
    found = _summary(np.stack([documents, ranks, distances]), 200, 3, 0)
    assert 0.9 < found.rise.low < found.rise.estimate < found.rise.high < 1.1
    assert 3.8 < found.below_random.low < found.below_random.high < 4.2


def test_the_picture_has_a_line_for_random_articles(workspace: Workspace, titles: list[str]) -> None:
    pytest.importorskip("matplotlib")
    found: LinkDistances = link_distances(workspace.neighbours("test"), circle(titles), k=3)
    assert len(found.by_rank) == 3
    assert plot_link_distances(found).startswith("<svg")


def test_what_belongs_to_no_article_is_refused(workspace: Workspace, titles: list[str]) -> None:
    with pytest.raises(DataError, match=r"0 documents of .* and 0 of"):
        link_distances(workspace.neighbours("test"), circle(["Ant", "Bee"]))
    with pytest.raises(ConfigError, match="at least 2 ranks"):
        link_distances(workspace.neighbours("test"), circle(titles), k=1)
