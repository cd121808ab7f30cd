"""Segments: the immutable parts of a datastore, each with documents' tokens, chunks' keys, and an index.

A segment never changes once it is committed. Documents are deleted by a mark in the ledger; adding makes
another segment; compacting writes new ones and removes the old.
"""

from pathlib import Path

import numpy as np

from retro.errors import ArtifactError
from retro.retrieval.chunks import ChunkGrid
from retro.retrieval.index import Index, open_index

TOKENS, DOCUMENTS, ROWS, KEYS, INDEX = "tokens.bin", "documents.npy", "rows.npy", "keys.npy", "index"
DOCUMENT = np.dtype(
    [("number", "<i8"), ("first_chunk", "<i8"), ("start", "<i8"), ("end", "<i8"), ("content_hash", "<u8")]
)
"""A document: its number and first chunk in the whole datastore, where its tokens begin and end in this
segment, and its short content hash."""


class Segment:
    """An open segment. Row r of its index is the chunk with the number `chunks[r]`, of document `places[r]`.

    A document's place is its position in this segment; its number is that in the datastore.
    """

    def __init__(self, path: Path, chunk_len: int, dtype: np.dtype, pad_id: int) -> None:
        self.name = path.name
        self.path = path
        try:
            self.tokens: np.ndarray = np.memmap(path / TOKENS, dtype=dtype, mode="r")
            # In memory: every search reads them. Tokens and keys stay on disk and are paged in.
            self.documents: np.ndarray = np.load(path / DOCUMENTS)
            self.keys: np.ndarray = np.load(path / KEYS, mmap_mode="r")
            rows: np.ndarray = np.load(path / ROWS)
        except (ValueError, EOFError) as error:
            raise ArtifactError(
                f"{path} has a broken file ({error}); expected a whole segment; run: retro db verify"
            ) from None
        self.index: Index = open_index(path / INDEX, self.keys)
        self.grid = document_grid(self.tokens, self.documents, chunk_len, pad_id)
        self.num_chunks = self.grid.num_chunks
        self.places: np.ndarray = self.grid.documents_of(rows)
        # A row names a chunk of this segment's grid; the datastore counts chunks from its own first.
        self.chunks: np.ndarray = (
            self.documents["first_chunk"][self.places] + rows - self.grid.first[self.places]
        )
        if not len(self.index) == len(self.keys) == len(rows):
            raise ArtifactError(
                f"{path} holds {len(self.keys)} keys for {len(rows)} chunks; expected as many; "
                "run: retro db verify"
            )

    def gather(self, places: np.ndarray, chunks: np.ndarray, length: int) -> np.ndarray:
        """`length` tokens from the start of each of the datastore's chunks; `places` are their documents."""
        offsets = chunks - self.documents["first_chunk"][places]
        return self.grid.gather(self.grid.first[places] + offsets, length)


def document_grid(tokens: np.ndarray, documents: np.ndarray, chunk_len: int, pad_id: int) -> ChunkGrid:
    """The chunks of a segment's documents."""
    return ChunkGrid(tokens, documents["start"], documents["end"], chunk_len, pad_id)
