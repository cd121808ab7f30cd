"""Chunks on each document's own grid, as rows that point into a token store."""

import numpy as np

from retro.corpus.tokens import TokenStore


def short_hash(content_hash: str) -> int:
    """The first 64 bits of a content hash, which tell equal texts."""
    return int(content_hash[:16], 16)


def content_hashes(store: TokenStore) -> np.ndarray:
    """The short content hash of every document."""
    return np.array([short_hash(document["content_hash"]) for document in store.documents], dtype=np.uint64)


class ChunkTable:
    """The chunks of a token store in order: chunk c is `tokens[starts[c]:starts[c] + lengths[c]]` of document `documents[c]`.

    The last chunk of a document may be shorter than `chunk_len`.
    """

    def __init__(self, store: TokenStore, chunk_len: int) -> None:
        self.store, self.chunk_len = store, chunk_len
        per_document = -(-(store.ends - store.starts) // chunk_len)
        self.first = np.concatenate([[0], np.cumsum(per_document)])
        """The first chunk of every document; one more entry closes the last."""
        self.documents = np.repeat(np.arange(len(store)), per_document)
        self.starts = (
            store.starts[self.documents]
            + (np.arange(self.first[-1]) - self.first[self.documents]) * chunk_len
        )
        self.lengths = np.minimum(chunk_len, store.ends[self.documents] - self.starts)

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def complete(self) -> np.ndarray:
        """Which chunks have all their tokens; only these retrieve."""
        mask: np.ndarray = self.lengths == self.chunk_len
        return mask

    def tokens(self, chunk: int) -> np.ndarray:
        tokens: np.ndarray = self.store.tokens[self.starts[chunk] : self.starts[chunk] + self.lengths[chunk]]
        return tokens

    def gather(self, chunks: np.ndarray, length: int) -> np.ndarray:
        """`length` tokens from each chunk's start on, never past its document's end; padding fills the rest.

        With twice the chunk length this is [N, F], the neighbour and its continuation.
        """
        starts = self.starts[chunks][..., None]
        positions = starts + np.arange(length)
        inside = positions < self.store.ends[self.documents[chunks]][..., None]
        tokens = self.store.tokens[np.where(inside, positions, starts)]
        return np.where(inside, tokens, self.store.pad_id).astype(np.int64)
