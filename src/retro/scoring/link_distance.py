"""Neighbours in the world: how many links lie between a Wikipedia article and the articles of its neighbours, by rank."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from retro.corpus.links import LinkGraph
from retro.errors import ConfigError, DataError
from retro.retrieval.neighbours import Neighbours
from retro.scoring.intervals import Interval

NUM_RESAMPLES = 2000
RANDOM = 0
"""The rank of random articles; those of neighbours begin at 1."""
NOT_IN_GRAPH, NO_NEIGHBOUR = -1, -2


@dataclass(frozen=True)
class Distances:
    """Of the pairs between which there is a way: how long it is on average, and how many are how far apart."""

    mean: Interval
    histogram: dict[int, int]
    disconnected: int
    """Pairs without a way, which the mean leaves out."""


@dataclass(frozen=True)
class LinkDistances:
    """What was measured. Intervals are over query documents, with their neighbours and random articles together."""

    by_rank: list[Distances]
    random: Distances
    """From the query's article to those of chunks of the datastore that were drawn at random, as a retriever without sense would."""
    below_random: Interval
    """Mean distance of random articles less that of all neighbours."""
    rise: Interval
    """Links by which the mean distance grows with each rank, by least squares."""
    num_documents: int
    same_article: int
    """Pairs of an article with itself, in another edition or under another title; they count nowhere else."""
    not_in_graph: int
    """Neighbours whose document is no article of the graph; they count nowhere else."""


def link_distances(
    neighbours: Neighbours,
    graph: LinkGraph,
    k: int = 0,
    max_documents: int = 1000,
    num_random: int = 20,
    seed: int = 0,
) -> LinkDistances:
    """Distances in the graph from documents of a split to the documents of their chunks' first k neighbours, of all if k is 0.

    Documents are articles by their titles, over the graph's redirects, so neighbours and graph may come from different dumps. Every
    complete chunk counts, in at most so many documents, drawn at random. The paper's graph is directed: links lead from the query.
    """
    k = min(k or neighbours.max_neighbours, neighbours.max_neighbours)
    if k < 2:
        raise ConfigError(f"k is {k}; expected at least 2 ranks to compare")
    rng = np.random.default_rng(seed)
    article_of, num_chunks = _articles_of_datastore(neighbours, graph)
    held, queries = np.repeat(article_of, num_chunks), _queries(neighbours, graph, max_documents, rng)
    held = held[held >= 0]
    if not len(held) or not queries:
        raise DataError(
            f"{len(queries)} documents of {neighbours.store.artifact.path} and {len(np.unique(held))} of {neighbours.datastore.path} are articles of "
            "the graph; expected some of both; read the links of the dump that they come from"
        )
    parts, not_in_graph = [], 0
    for row, (document, own) in enumerate(queries):
        found = _found_articles(neighbours, article_of, document, k)
        not_in_graph += int((found == NOT_IN_GRAPH).sum())
        articles = np.concatenate([rng.choice(held, size=num_random), found[found >= 0]])
        ranks = np.concatenate([np.full(num_random, RANDOM), np.nonzero(found >= 0)[1] + 1])
        parts.append(np.stack([np.full(len(ranks), row), ranks, graph.distances(own, articles)]))
    return _summary(np.concatenate(parts, axis=1), len(queries), k, not_in_graph)


def _queries(
    neighbours: Neighbours, graph: LinkGraph, max_documents: int, rng: np.random.Generator
) -> list[tuple[int, int]]:
    """Documents and their articles."""
    articles = [graph.article(row["title"]) for row in neighbours.store.documents]
    known = [number for number, article in enumerate(articles) if article >= 0]
    chosen = sorted(rng.permutation(known)[:max_documents].tolist())
    return [(number, articles[number]) for number in chosen]


def _articles_of_datastore(neighbours: Neighbours, graph: LinkGraph) -> tuple[np.ndarray, np.ndarray]:
    """By the numbers of the datastore's documents, the article of each, negative if it has none, and how many chunks it has now."""
    parts = list(zip(neighbours.snapshot.segments, neighbours.snapshot.live, strict=True))
    none = [np.zeros(0, dtype=np.int64)]
    numbers = np.concatenate(
        none + [segment.documents["number"][live].astype(np.int64) for segment, live in parts]
    )
    articles, num_chunks = (
        np.full(numbers.max(initial=-1) + 1, NOT_IN_GRAPH),
        np.zeros(numbers.max(initial=-1) + 1, dtype=np.int64),
    )
    num_chunks[numbers] = np.concatenate(none + [segment.num_chunks[live] for segment, live in parts])
    version = neighbours.snapshot.version.number
    for number, row in neighbours.datastore.ledger.documents(numbers.tolist(), version).items():
        articles[number] = graph.article(row["title"])
    return articles, num_chunks


def _found_articles(neighbours: Neighbours, article_of: np.ndarray, document: int, k: int) -> np.ndarray:
    """Articles of the neighbours of a document's complete chunks (chunk, rank); negative where there is none."""
    table = neighbours.table
    chunks = np.arange(table.first[document], table.first[document + 1])
    numbers = neighbours.snapshot.documents(
        np.asarray(neighbours.chunks[chunks[table.complete[chunks]], :k], dtype=np.int64)
    )
    found: np.ndarray = np.where(numbers >= 0, article_of[numbers], NO_NEIGHBOUR)
    return found


def _summary(pairs: np.ndarray, num_documents: int, k: int, not_in_graph: int) -> LinkDistances:
    """From the document, rank and distance of every pair: means by rank, and the same over documents drawn with replacement."""
    documents, ranks, distances = pairs
    ways, size = distances > 0, num_documents * (k + 1)
    places = (documents * (k + 1) + ranks)[ways]
    sums = np.bincount(places, distances[ways], size).reshape(num_documents, k + 1)
    counts = np.bincount(places, minlength=size).reshape(num_documents, k + 1)
    weights = np.random.default_rng(0).multinomial(
        num_documents, np.full(num_documents, 1 / num_documents), NUM_RESAMPLES
    )
    totals, drawn = (sums.sum(0)[None], counts.sum(0)[None]), (weights @ sums, weights @ counts)

    def interval(value: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Interval:
        with np.errstate(invalid="ignore", divide="ignore"):  # a rank may have no way at all
            (estimate,), resampled = value(*totals), value(*drawn)
        real = resampled[np.isfinite(resampled)]
        low, high = np.quantile(real, [0.025, 0.975]) if len(real) else (np.nan, np.nan)
        return Interval(float(estimate), float(low), float(high))

    def of_rank(rank: int) -> Distances:
        own = distances[ranks == rank]
        values, numbers = np.unique(own[own > 0], return_counts=True)
        histogram = dict(zip(values.tolist(), numbers.tolist(), strict=True))
        return Distances(interval(lambda s, c: s[:, rank] / c[:, rank]), histogram, int((own < 0).sum()))

    centred = np.arange(k) - (k - 1) / 2
    return LinkDistances(
        by_rank=[of_rank(rank) for rank in range(1, k + 1)],
        random=of_rank(RANDOM),
        below_random=interval(lambda s, c: s[:, RANDOM] / c[:, RANDOM] - s[:, 1:].sum(1) / c[:, 1:].sum(1)),
        rise=interval(lambda s, c: s[:, 1:] / c[:, 1:] @ centred / (centred**2).sum()),
        num_documents=num_documents,
        same_article=int((distances[ranks != RANDOM] == 0).sum()),
        not_in_graph=not_in_graph,
    )
