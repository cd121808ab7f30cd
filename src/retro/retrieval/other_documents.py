"""The nearest chunks of other documents: a chunk must not retrieve its own document, nor a copy of it."""

from collections.abc import Iterator

import numpy as np

from retro.retrieval.datastore.scanning import nearest
from retro.retrieval.index import Entries
from retro.retrieval.search import Search

MAX_PAIRS = 1 << 22
"""Queries times the chunks found for each that are held at once: some 50 MB."""
MAX_REACH = 1 << 14
"""How far the search is widened. A chunk with more nearer ones in its own document is searched without it."""


def search_other_documents(
    search: Search, entries: Entries, own: np.ndarray, k: int, documents: list[int] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Distances and numbers of the k nearest chunks among documents with another content hash than `own`.

    Finds more than k and drops those of the own document. Entries that are left with too few search again,
    twice as far, until they have k or there are no more: most never do, so one search for all of them is
    the cheapest.
    """
    distances = np.full((len(own), k), np.inf, dtype=np.float32)
    chunks = np.full((len(own), k), -1, dtype=np.int64)
    most = max(1, len(search))
    reach = 2 * k
    todo = np.arange(len(own))
    while len(todo) and min(reach, most) <= MAX_REACH:
        unfinished = []
        for group in _groups(todo, min(reach, most)):
            found_distances, found = search.search(entries.select(group), min(reach, most), documents)
            other = (found >= 0) & (search.content_hashes(found) != own[group][:, None])
            distances[group], chunks[group] = nearest(
                *_at_least(np.where(other, found_distances, np.inf), np.where(other, found, -1), k), k
            )
            # An entry whose last column is empty has seen all there is; going further would find nothing new.
            seen_all = found[:, -1] < 0
            unfinished.append(group[(chunks[group, -1] < 0) & ~seen_all])
        if reach >= most:
            return distances, chunks
        todo = np.concatenate(unfinished)
        reach *= 2
    # What is left lies in documents, or copies, of very many near chunks: search without those documents.
    for content_hash in np.unique(own[todo]):
        without = search.copies(int(content_hash))
        for group in _groups(todo[own[todo] == content_hash], k):
            distances[group], chunks[group] = search.search(entries.select(group), k, documents, without)
    return distances, chunks


def _groups(queries: np.ndarray, reach: int) -> Iterator[np.ndarray]:
    """Queries in groups that together find no more than is held at once."""
    step = max(1, MAX_PAIRS // reach)
    for start in range(0, len(queries), step):
        yield queries[start : start + step]


def _at_least(distances: np.ndarray, chunks: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Columns filled up to k with nothing."""
    missing = ((0, 0), (0, max(0, k - chunks.shape[1])))
    return np.pad(distances, missing, constant_values=np.inf), np.pad(chunks, missing, constant_values=-1)
