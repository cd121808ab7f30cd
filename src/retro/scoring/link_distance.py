"""Link distance: how many links lie between a Wikipedia article and the articles of its neighbours."""

from dataclasses import dataclass

import numpy as np

from retro.corpus.links import LinkGraph
from retro.errors import ConfigError, DataError
from retro.retrieval.neighbours import Neighbours
from retro.scoring.intervals import Interval, bootstrap
from retro.wording import counted

RANDOM = 0
"""The rank of random articles; those of neighbours begin at 1."""
# Both are negative, as no article is, so that `>= 0` picks the articles.
NOT_IN_GRAPH = -1
NO_NEIGHBOUR = -2


@dataclass(frozen=True)
class Distances:
    """Mean distance of the pairs that links connect, and the number of pairs at each distance."""

    mean: Interval
    histogram: dict[int, int]
    disconnected: int
    """Pairs that no links connect; the mean leaves them out."""


@dataclass(frozen=True)
class LinkDistances:
    """What was measured. Intervals are over query documents, each with all its pairs."""

    by_rank: list[Distances]
    random: Distances
    """From the query's article to the articles of random chunks, as a blind retriever would
    find them."""
    below_random: Interval
    """Mean distance of random articles minus that of all neighbours."""
    rise: Interval
    """Slope of the mean distance by rank, in links per rank, by least squares."""
    num_documents: int
    same_article: int
    """Pairs of an article with itself, in another edition or under another title. Counted only
    here."""
    not_in_graph: int
    """Neighbours whose document is not an article of the graph. Counted only here."""


def link_distances(
    neighbours: Neighbours,
    graph: LinkGraph,
    k: int = 0,
    max_documents: int = 1000,
    num_random: int = 20,
    seed: int = 0,
) -> LinkDistances:
    """Distances in the graph from documents to the documents of their chunks' first k neighbours.

    If k is 0, all neighbours count. Documents are matched to articles by title, through the
    graph's redirects, so neighbours and graph may come from different dumps. At most
    `max_documents` documents are drawn at random, and every complete chunk of them counts. The
    paper's graph is directed: links lead from the query.
    """
    k = min(k or neighbours.max_neighbours, neighbours.max_neighbours)
    if k < 2:
        raise ConfigError(f"k is {k}; expected at least 2 ranks to compare")
    rng = np.random.default_rng(seed)
    article_of, num_chunks = _articles_of_datastore(neighbours, graph)
    queries = _queries(neighbours, graph, max_documents, rng)
    # One entry per chunk of the datastore: articles are drawn in proportion to their chunks, as
    # a blind retriever would draw them.
    held = np.repeat(article_of, num_chunks)
    held = held[held >= 0]
    if not len(held) or not queries:
        raise DataError(
            f"{counted(len(queries), 'document')} of {neighbours.store.artifact.path} "
            f"and {len(np.unique(held))} of {neighbours.datastore.path} are articles of the graph; "
            "expected some of both; "
            "read the links of the dump that they come from"
        )
    parts = []
    not_in_graph = 0
    for row, (document, own) in enumerate(queries):
        found = _found_articles(neighbours, article_of, document, k)
        not_in_graph += int((found == NOT_IN_GRAPH).sum())
        # Random and found articles go into one call: the graph is searched once from this
        # article.
        articles = np.concatenate([rng.choice(held, size=num_random), found[found >= 0]])
        ranks = np.concatenate([np.full(num_random, RANDOM), np.nonzero(found >= 0)[1] + 1])
        parts.append(np.stack([np.full(len(ranks), row), ranks, graph.distances(own, articles)]))
    return _summary(np.concatenate(parts, axis=1), len(queries), k, not_in_graph)


def _queries(
    neighbours: Neighbours, graph: LinkGraph, max_documents: int, rng: np.random.Generator
) -> list[tuple[int, int]]:
    """The drawn documents and their articles; documents that are not in the graph are passed over."""
    articles = [graph.article(row["title"]) for row in neighbours.store.documents]
    known = [number for number, article in enumerate(articles) if article >= 0]
    chosen = sorted(rng.permutation(known)[:max_documents].tolist())
    return [(number, articles[number]) for number in chosen]


def _articles_of_datastore(neighbours: Neighbours, graph: LinkGraph) -> tuple[np.ndarray, np.ndarray]:
    """Each document's article, negative if it has none, and number of chunks, by document number."""
    parts = list(zip(neighbours.snapshot.segments, neighbours.snapshot.live, strict=True))
    # An empty first part, so that `concatenate` also works for a datastore without segments.
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
    """Articles of the neighbours of a document's complete chunks (chunk, rank); negative if there is none."""
    table = neighbours.table
    chunks = np.arange(table.first[document], table.first[document + 1])
    complete = chunks[table.complete[chunks]]
    numbers = neighbours.snapshot.documents(np.asarray(neighbours.chunks[complete, :k], dtype=np.int64))
    # Where there is no neighbour, number −1 picks the last article, and `where` discards it.
    found: np.ndarray = np.where(numbers >= 0, article_of[numbers], NO_NEIGHBOUR)
    return found


def _summary(pairs: np.ndarray, num_documents: int, k: int, not_in_graph: int) -> LinkDistances:
    """Means by rank, with intervals over documents, from the document, rank and distance of each pair."""
    documents, ranks, distances = pairs
    # 0 is an article and itself; a negative distance means that no links connect the pair.
    connected = distances > 0
    # Sum and number of distances by document (rows) and rank (columns; the first is random).
    # Each pair gets the flat number of its cell, and `bincount` adds up the cells.
    cells = (documents * (k + 1) + ranks)[connected]
    size = num_documents * (k + 1)
    sums = np.bincount(cells, distances[connected], size).reshape(num_documents, k + 1)
    counts = np.bincount(cells, minlength=size).reshape(num_documents, k + 1)
    # With ranks centred on their mean, the least-squares slope is a weighted sum of the means
    # by rank.
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
    """The distances of one rank. 0 is an article and itself; negative means not connected."""
    values, numbers = np.unique(found[found > 0], return_counts=True)
    histogram = dict(zip(values.tolist(), numbers.tolist(), strict=True))
    return Distances(mean, histogram, int((found < 0).sum()))
