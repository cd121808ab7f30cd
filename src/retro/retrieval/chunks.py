"""Chunks: documents' tokens cut into pieces of one length, every document on a grid of its own."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from retro.corpus.tokens import TokenStore
from retro.stages.shards import Rows


def short_hash(content_hash: str) -> int:
    """The first 64 bits of a content hash, which tell equal texts."""
    return int(content_hash[:16], 16)


def content_hashes(store: TokenStore) -> np.ndarray:
    """The short content hash of every document."""
    return store.documents.short_hashes()


class ChunkGrid:
    """The chunks of documents that lie in one row of tokens; document d is `tokens[starts[d]:ends[d]]`.

    A document's chunks begin at its first token and every `chunk_len` tokens after it (m in the paper); the
    last one may be shorter. Chunks are numbered through all documents, in their order.
    """

    def __init__(
        self, tokens: Rows, starts: np.ndarray, ends: np.ndarray, chunk_len: int, pad_id: int
    ) -> None:
        self.chunk_len = chunk_len
        self.pad_id = pad_id
        self._tokens = tokens
        self._document_starts = starts
        self._document_ends = ends
        # Division that rounds up: the last chunk of a document need not be full.
        self.num_chunks: np.ndarray = -(-(ends - starts) // chunk_len)
        """How many chunks each document has."""
        self.first: np.ndarray = np.concatenate([[0], np.cumsum(self.num_chunks)])
        """The first chunk of every document; one more entry closes the last."""

    def __len__(self) -> int:
        return int(self.first[-1])

    # What follows is made when it is first asked for: a datastore's segments never need it for all chunks.
    @cached_property
    def documents(self) -> np.ndarray:
        """The document of every chunk."""
        return np.repeat(np.arange(len(self.num_chunks)), self.num_chunks)

    @cached_property
    def starts(self) -> np.ndarray:
        """Where every chunk begins in the tokens."""
        return self._bounds(np.arange(len(self)))[0]

    @cached_property
    def lengths(self) -> np.ndarray:
        """How many tokens every chunk has."""
        starts, document_ends = self._bounds(np.arange(len(self)))
        return np.minimum(self.chunk_len, document_ends - starts)

    @property
    def complete(self) -> np.ndarray:
        """Which chunks have all their tokens; only these retrieve."""
        mask: np.ndarray = self.lengths == self.chunk_len
        return mask

    def documents_of(self, chunks: np.ndarray) -> np.ndarray:
        """The documents of some chunks."""
        # The last document that begins at or before the chunk: an empty one never comes after its successor.
        return np.searchsorted(self.first, chunks, side="right") - 1

    def tokens(self, chunk: int) -> np.ndarray:
        start, document_end = self._bounds(np.asarray(chunk))
        tokens: np.ndarray = self._tokens[start : min(start + self.chunk_len, document_end)]
        return tokens

    def gather(self, chunks: np.ndarray, length: int) -> np.ndarray:
        """`length` tokens from each chunk's start on, never past its document's end; padding fills the rest.

        With twice the chunk length this is [N, F], the neighbour and its continuation.
        """
        starts, document_ends = (bound[..., None] for bound in self._bounds(chunks))
        positions = starts + np.arange(length)
        inside = positions < document_ends
        # Positions past the end read the chunk's first token instead, which is then replaced by padding.
        tokens = self._tokens[np.where(inside, positions, starts)]
        return np.where(inside, tokens, self.pad_id).astype(np.int64)

    def _bounds(self, chunks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where chunks begin in the tokens, and where their documents end."""
        documents = self.documents_of(chunks)
        # How many whole chunks stand before this one in its document, in tokens.
        offsets = (chunks - self.first[documents]) * self.chunk_len
        return self._document_starts[documents] + offsets, self._document_ends[documents]


class ChunkTable(ChunkGrid):
    """The chunks of a token store."""

    def __init__(self, store: TokenStore, chunk_len: int) -> None:
        super().__init__(store.tokens, store.starts, store.ends, chunk_len, store.pad_id)
        self.store = store


class ChunkTokens(Sequence[np.ndarray]):
    """The tokens of some chunks of a grid, cut out when they are asked for."""

    def __init__(self, grid: ChunkGrid, chunks: np.ndarray) -> None:
        self._grid = grid
        self._chunks = chunks

    def __len__(self) -> int:
        return len(self._chunks)

    def __getitem__(self, row):  # type: ignore[no-untyped-def]
        if isinstance(row, slice):
            return ChunkTokens(self._grid, self._chunks[row])
        return self._grid.tokens(self._chunks[row])
