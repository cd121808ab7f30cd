"""Blocks of chunks that are searched together: each holds all that its search needs of the token store."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from retro.retrieval.chunks import ChunkTable
from retro.retrieval.datastore import Datastore
from retro.retrieval.datastore.remote import VersionFiles, open_version
from retro.retrieval.datastore.scanning import nearest
from retro.retrieval.datastore.snapshot import Snapshot
from retro.retrieval.index import Entries
from retro.retrieval.other_documents import search_other_documents
from retro.retrieval.search import Search


@dataclass(frozen=True)
class Block:
    """Chunks that are searched together."""

    own: np.ndarray
    """The content hash of each chunk's document, in which no neighbour may lie."""
    offsets: np.ndarray
    """Which chunk of its document each is."""
    tokens: np.ndarray
    """The tokens of all of them, one after the other."""
    lengths: np.ndarray
    distances: np.ndarray
    """Of the neighbours that are known already, nearest first; inf where there is none."""
    chunks: np.ndarray
    only_added: bool = False
    """Whether only what was added to the datastore since is looked through."""

    def tokens_of(self, rows: np.ndarray) -> list[np.ndarray]:
        ends = np.cumsum(self.lengths)
        return [self.tokens[ends[row] - self.lengths[row] : ends[row]] for row in rows]


class Asked(Protocol):
    """What makes queries: a datastore, or a version of it that a worker has opened."""

    def queries(self, chunks: Sequence[str | np.ndarray]) -> tuple[np.ndarray, Entries]: ...


def block_of(
    table: ChunkTable,
    hashes: np.ndarray,
    chunks: np.ndarray,
    k: int = 0,
    known: tuple[np.ndarray, np.ndarray] | None = None,
) -> Block:
    """Some chunks of a table as a block; `hashes` are those of all documents.

    `known` are the neighbours of the chunks and their distances; with them, only what was added is searched.
    """
    documents = table.documents_of(chunks)
    tokens = [np.asarray(table.tokens(chunk)) for chunk in chunks]
    found = known or (np.full((len(chunks), k), -1), np.full((len(chunks), k), np.inf, dtype=np.float32))
    return Block(
        own=hashes[documents],
        offsets=chunks - table.first[documents],
        tokens=np.array(np.concatenate(tokens)),
        lengths=np.array([len(part) for part in tokens]),
        distances=found[1],
        chunks=found[0],
        only_added=known is not None,
    )


def query_entries(block: Block, asked: Asked, search: Search) -> Iterator[tuple[np.ndarray, Entries]]:
    """What chunks with text are searched with: the datastore's own keys where it has them, or new ones.

    Each with the rows of the block that they belong to.
    """
    found, keys = search.keys(search.find(block.own, block.offsets))
    if found.any():
        rows = np.flatnonzero(found)
        yield rows, Entries(keys, block.tokens_of(rows))
    missing = np.flatnonzero(~found)
    with_text, entries = asked.queries(block.tokens_of(missing))
    if len(with_text):
        yield missing[with_text], entries


class BlockSearch:
    """Searches a block wherever it is sent. The datastore stays behind: every worker opens its own, once."""

    def __init__(self, datastore: Datastore, snapshot: Snapshot, k: int, added: Sequence[int]) -> None:
        self.k = k
        self.added = list(added)
        self.files = VersionFiles.of(datastore, snapshot)
        self.opened: tuple[Asked, Search] | None = (datastore, snapshot)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "opened": None}

    def __call__(self, block: Block) -> dict[str, np.ndarray]:
        """The neighbours of the chunks: the best of those that they have and of those that are found."""
        if self.opened is None:
            version = open_version(self.files)
            self.opened = (version, version.snapshot)
        asked, search = self.opened
        distances = block.distances.copy()
        chunks = block.chunks.copy()
        among = self.added if block.only_added else None
        for rows, entries in query_entries(block, asked, search):
            found = search_other_documents(search, entries, block.own[rows], self.k, among)
            distances[rows], chunks[rows] = nearest(
                np.concatenate([distances[rows], found[0]], axis=1),
                np.concatenate([chunks[rows], found[1]], axis=1),
                self.k,
            )
        return {"distances": distances, "chunks": chunks}
