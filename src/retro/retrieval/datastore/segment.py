"""Segments: the immutable parts of a datastore. Each holds documents' tokens, their chunks' keys, and an index over the keys.

A segment never changes once it is committed. Documents are deleted by a mark in the catalogue; adding makes another segment;
compacting writes new ones and removes the old.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from retro.errors import ArtifactError
from retro.retrieval.index import Index, open_index

TOKENS, DOCUMENTS, ROWS, KEYS, INDEX = "tokens.bin", "documents.npy", "rows.npy", "keys.npy", "index"
DOCUMENT = np.dtype(
    [("number", "<i8"), ("first_chunk", "<i8"), ("start", "<i8"), ("end", "<i8"), ("content_hash", "<u8")]
)
"""A document: its number and first chunk in the whole datastore, its tokens in this segment, and what tells equal texts."""


class Segment:
    """An open segment. Row r of its index is the chunk with the number `chunks[r]`, of the document at `places[r]`."""

    def __init__(self, path: Path, chunk_len: int, dtype: np.dtype) -> None:
        self.name, self.path, self.chunk_len = path.name, path, chunk_len
        try:
            self.tokens: np.ndarray = np.memmap(path / TOKENS, dtype=dtype, mode="r")
            self.documents: np.ndarray = np.load(path / DOCUMENTS)
            self.keys: np.ndarray = np.load(path / KEYS, mmap_mode="r")
            rows: np.ndarray = np.load(path / ROWS)
        except (ValueError, EOFError) as error:
            raise ArtifactError(
                f"{path} has a broken file ({error}); expected a whole segment; run: retro db verify"
            ) from None
        self.index: Index = open_index(path / INDEX, self.keys)
        self.num_chunks = chunks_of(self.documents, chunk_len)
        first = np.cumsum(self.num_chunks) - self.num_chunks
        self.places: np.ndarray = np.searchsorted(first, rows, side="right") - 1
        self.chunks: np.ndarray = self.documents["first_chunk"][self.places] + rows - first[self.places]
        if not len(self.index) == len(self.keys) == len(rows):
            raise ArtifactError(
                f"{path} holds {len(self.keys)} keys for {len(rows)} chunks; expected as many; run: retro db verify"
            )

    def gather(self, places: np.ndarray, chunks: np.ndarray, length: int, pad_id: int) -> np.ndarray:
        """`length` tokens from each chunk's start on, never past its document's end; padding fills the rest."""
        documents = self.documents[places]
        starts = (documents["start"] + (chunks - documents["first_chunk"]) * self.chunk_len)[:, None]
        positions = starts + np.arange(length)
        inside = positions < documents["end"][:, None]
        return np.where(inside, self.tokens[np.where(inside, positions, starts)], pad_id).astype(np.int64)


def chunks_of(documents: np.ndarray, chunk_len: int) -> np.ndarray:
    """How many chunks each document has; the last may be incomplete."""
    count: np.ndarray = -(-(documents["end"] - documents["start"]) // chunk_len)
    return count


class ChunkTokens(Sequence[np.ndarray]):
    """The tokens of a segment's rows, cut out when they are asked for."""

    def __init__(self, tokens: np.ndarray, documents: np.ndarray, rows: np.ndarray, chunk_len: int) -> None:
        self._tokens, self._rows, self._chunk_len = tokens, rows, chunk_len
        counts = chunks_of(documents, chunk_len)
        first = np.cumsum(counts) - counts
        places = np.searchsorted(first, rows, side="right") - 1
        self._starts = documents["start"][places] + (rows - first[places]) * chunk_len
        self._ends = np.minimum(self._starts + chunk_len, documents["end"][places])

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row):  # type: ignore[no-untyped-def]
        if isinstance(row, slice):
            return [self[number] for number in range(*row.indices(len(self)))]
        return self._tokens[self._starts[row] : self._ends[row]]
