"""Neighbours in the world: how many links lie between Wikipedia articles and those of their neighbours."""

from dataclasses import dataclass

import numpy as np

from retro.corpus.links import LinkGraph
from retro.errors import ConfigError, DataError
from retro.retrieval.neighbours import Neighbours
from retro.scoring.intervals import Interval, bootstrap

RANDOM = 0
"""The rank of random articles; those of neighbours begin at 1."""
NOT_IN_GRAPH = -1
NO_NEIGHBOUR = -2


@dataclass(frozen=True)
class Distances:
    """Of the pairs that links connect: how far apart they are on average, and how many are how far."""

    mean: Interval
    histogram: dict[int, int]
    disconnected: int
    """Pairs that no links connect, which the mean leaves out."""


@dataclass(frozen=True)
class LinkDistances:
    """What was measured. Intervals are over query documents, with all that belongs to them."""

    by_rank: list[Distances]
    random: Distances
    """From the query's article to those of random chunks, as a blind retriever would find them."""
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
    """Distances in the graph from documents to those of their chunks' first k neighbours, of all if k is 0.

    Documents are articles by their titles, over the graph's redirects, so neighbours and graph may come
    from different dumps. Every complete chunk counts, in at most `max_documents` documents, drawn at
    random. The paper's graph is directed: links lead from the query.
    """
    k = min(k or neighbours.max_neighbours, neighbours.max_neighbours)
    if k < 2:
        raise ConfigError(f"k is {k}; expected at least 2 ranks to compare")
    rng = np.random.default_rng(seed)
    article_of, num_chunks = _articles_of_datastore(neighbours, graph)
    queries = _queries(neighbours, graph, max_documents, rng)
    # One entry for each chunk of the datastore: long articles are drawn as often as they could be retrieved.
    held = np.repeat(article_of, num_chunks)
    held = held[held >= 0]
    if not len(held) or not queries:
        raise DataError(
            f"{len(queries)} documents of {neighbours.store.artifact.path} and {len(np.unique(held))} of "
            f"{neighbours.datastore.path} are articles of the graph; expected some of both; "
            "read the links of the dump that they come from"
        )
    parts = []
    not_in_graph = 0
    for row, (document, own) in enumerate(queries):
        found = _found_articles(neighbours, article_of, document, k)
        not_in_graph += int((found == NOT_IN_GRAPH).sum())
        # Random articles and found ones in one call, as the graph is searched from the same article for all.
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
    """By the datastore's numbers: each document's article, negative if none, and its number of chunks."""
    parts = list(zip(neighbours.snapshot.segments, neighbours.snapshot.live, strict=True))
    none = [np.zeros(0, dtype=np.int64)]
    numbers = np.concatenate(
        none + [segment.documents["number"][live].astype(np.int64) for segment, live in parts]
    )
    size = numbers.max(initial=-1) + 1
    articles = np.full(size, NOT_IN_GRAPH)
    num_chunks = np.zeros(size, dtype=np.int64)
    num_chunks[numbers] = np.concatenate(none + [segment.num_chunks[live] for segment, live in parts])
    version = neighbours.snapshot.version.number
    for number, row in neighbours.datastore.ledger.documents(numbers.tolist(), version).items():
        articles[number] = graph.article(row["title"])
    return articles, num_chunks


def _found_articles(neighbours: Neighbours, article_of: np.ndarray, document: int, k: int) -> np.ndarray:
    """Articles of the neighbours of a document's complete chunks (chunk, rank); negative where none is."""
    table = neighbours.table
    chunks = np.arange(table.first[document], table.first[document + 1])
    complete = chunks[table.complete[chunks]]
    numbers = neighbours.snapshot.documents(np.asarray(neighbours.chunks[complete, :k], dtype=np.int64))
    # Number −1 picks the last article, which the other arm then overrules.
    found: np.ndarray = np.where(numbers >= 0, article_of[numbers], NO_NEIGHBOUR)
    return found


def _summary(pairs: np.ndarray, num_documents: int, k: int, not_in_graph: int) -> LinkDistances:
    """From the document, rank and distance of every pair: means by rank, with intervals over documents."""
    documents, ranks, distances = pairs
    connected = distances > 0
    # Sum and number of the distances by document (rows) and rank (columns, of which random is the first).
    cells = (documents * (k + 1) + ranks)[connected]
    size = num_documents * (k + 1)
    sums = np.bincount(cells, distances[connected], size).reshape(num_documents, k + 1)
    counts = np.bincount(cells, minlength=size).reshape(num_documents, k + 1)
    # Ranks around their mean: the slope of a least-squares line is then a weighted sum of the means by rank.
    centred = np.arange(k) - (k - 1) / 2

    def statistics(drawn: np.ndarray) -> np.ndarray:
        drawn_sums, drawn_counts = drawn[:, : k + 1], drawn[:, k + 1 :]
        means = drawn_sums / drawn_counts
        of_neighbours = drawn_sums[:, 1:].sum(axis=1) / drawn_counts[:, 1:].sum(axis=1)
        below_random = means[:, RANDOM] - of_neighbours
        rise = means[:, 1:] @ centred / (centred**2).sum()
        return np.column_stack([means, below_random, rise])

    *means, below_random, rise = bootstrap(np.concatenate([sums, counts], axis=1), statistics)
    by_rank = [_distances(distances[ranks == rank], mean) for rank, mean in enumerate(means)]
    return LinkDistances(
        by_rank=by_rank[1:],
        random=by_rank[RANDOM],
        below_random=below_random,
        rise=rise,
        num_documents=num_documents,
        same_article=int((distances[ranks != RANDOM] == 0).sum()),
        not_in_graph=not_in_graph,
    )


def _distances(found: np.ndarray, mean: Interval) -> Distances:
    """Those of one rank; 0 is an article and itself, and negative is not connected."""
    values, numbers = np.unique(found[found > 0], return_counts=True)
    histogram = dict(zip(values.tolist(), numbers.tolist(), strict=True))
    return Distances(mean, histogram, int((found < 0).sum()))
