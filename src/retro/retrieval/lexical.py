"""Neighbours by BM25 in place of those that keys find: what the way of searching brings.

The datastore stays as it is; its chunks are indexed by their tokens for this alone, in memory.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from retro.corpus.tokenizers.tokenizer import Tokenizer
from retro.errors import ConfigError
from retro.retrieval.chunks import ChunkTokens, content_hashes
from retro.retrieval.datastore import Datastore
from retro.retrieval.datastore.segment import Segment
from retro.retrieval.datastore.snapshot import Snapshot
from retro.retrieval.finding import QUERIES
from retro.retrieval.index import Entries
from retro.retrieval.index.bm25 import Bm25Index
from retro.retrieval.neighbours import Neighbours
from retro.retrieval.other_documents import search_other_documents
from retro.retrieval.search import Neighbour


@dataclass(frozen=True)
class Found:
    """Chunks of other documents, nearest first, −1 where there are no more, with their negative scores."""

    chunks: np.ndarray
    distances: np.ndarray
    index_bytes: int
    """What the index takes."""


def search_by_words(neighbours: Neighbours) -> Found:
    """As many neighbours of every chunk as it has, by the tokens that it shares with them."""
    table, k = neighbours.table, neighbours.max_neighbours
    snapshot = indexed_by_words(neighbours.snapshot)
    own = content_hashes(table.store)[table.documents]
    chunks = np.full((len(table), k), -1, dtype=np.int64)
    distances = np.full((len(table), k), np.inf, dtype=np.float32)
    decode = neighbours.datastore.tokenizer.decode
    # A chunk without text has no neighbours, whatever tokens it has.
    asked = np.array([n for n in range(len(table)) if decode(table.tokens(n).tolist()).strip()], dtype=int)
    for start in range(0, len(asked), QUERIES):
        part = asked[start : start + QUERIES]
        entries = Entries(np.zeros((len(part), 0)), [table.tokens(chunk) for chunk in part])
        distances[part], chunks[part] = search_other_documents(snapshot, entries, own[part], k)
    indexes = [segment.index for segment in snapshot.segments if isinstance(segment.index, Bm25Index)]
    return Found(chunks, distances, sum(index.num_bytes for index in indexes))


class WordRetriever:
    """Searches a version of a datastore by BM25 while a model works, as a `Retriever` does by keys."""

    def __init__(self, datastore: Datastore, num_neighbours: int = 2) -> None:
        self.datastore = datastore
        self.num_neighbours = num_neighbours
        self.snapshot = indexed_by_words(datastore.snapshot())

    @property
    def tokenizer(self) -> Tokenizer:
        return self.datastore.tokenizer

    @property
    def chunk_len(self) -> int:
        return self.datastore.chunk_len

    def search(
        self, chunks: Sequence[np.ndarray], k: int, sources: Sequence[str] = (), exclude: Sequence[str] = ()
    ) -> list[list[Neighbour]]:
        """The k chunks that share the rarest tokens with each; none for a blank one."""
        if sources or exclude:
            raise ConfigError("a search by words looks through all documents; expected no filter")
        decode = self.tokenizer.decode
        # A chunk without text has no neighbours, whatever tokens it has.
        asked = [chunk if decode(chunk.tolist()).strip() else chunk[:0] for chunk in chunks]
        found = self.snapshot.search(Entries(np.zeros((len(asked), 0)), asked), k)
        return self.datastore.describe(self.snapshot, *found)


def indexed_by_words(snapshot: Snapshot) -> Snapshot:
    """The same documents, searched by BM25."""
    segments = [_by_words(segment) for segment in snapshot.segments]
    gone = [
        segment.documents["number"][~live].tolist()
        for segment, live in zip(snapshot.segments, snapshot.live, strict=True)
    ]
    return Snapshot(snapshot.version, segments, gone, snapshot.chunk_len, snapshot.pad_id)


def _by_words(segment: Segment) -> Segment:
    # A shallow copy: tokens and keys are shared, only the index is another.
    other = copy.copy(segment)
    first = segment.documents["first_chunk"][segment.places]
    # The datastore's numbers of the chunks, as places in this segment's own grid.
    rows = segment.chunks - first + segment.grid.first[segment.places]
    other.index = Bm25Index()
    other.index.add(Entries(segment.keys, ChunkTokens(segment.grid, rows)))
    return other
