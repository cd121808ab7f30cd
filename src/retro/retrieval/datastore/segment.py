"""Segments: the immutable parts of a datastore, each with documents' tokens, chunks' keys, and an index.

A segment never changes once it is committed. Documents are deleted by a mark in the ledger; adding makes
another segment; compacting writes new ones and removes the old.
"""

from functools import cached_property
from pathlib import Path

import numpy as np

from retro.errors import ArtifactError
from retro.retrieval.chunks import ChunkGrid
from retro.retrieval.index import Index, open_index
from retro.stages.arrays import load_array
from retro.stages.hints import quoted, with_paths

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

    def __init__(
        self, path: Path, chunk_len: int, dtype: np.dtype, pad_id: int, is_joined: bool = False
    ) -> None:
        """Where an index over many segments finds its keys, its own is opened only if it is asked for."""
        self.name = path.name
        self.path = path
        remedy = f"restore it, or remove the datastore and run: {with_paths('retro build WORK', path)}"
        try:
            self.tokens: np.ndarray = np.memmap(path / TOKENS, dtype=dtype, mode="r")
        except ValueError as error:
            raise ArtifactError(
                f"{path} has a broken file ({error}); expected a whole segment; {remedy}"
            ) from None
        # In memory: every search reads them. Tokens and keys stay on disk and are paged in.
        self.documents: np.ndarray = load_array(path / DOCUMENTS, remedy)
        self.keys: np.ndarray = load_array(path / KEYS, remedy, mapped=True)
        rows: np.ndarray = load_array(path / ROWS, remedy)
        self._expect_fitting(rows, remedy)
        self._index = None if is_joined else open_index(path / INDEX, self.keys)
        self.grid = document_grid(self.tokens, self.documents, chunk_len, pad_id)
        self.num_chunks = self.grid.num_chunks
        if len(rows) and rows[-1] >= len(self.grid):
            raise ArtifactError(
                f"{path / ROWS} names chunk {rows[-1]:,} of {len(self.grid):,}; expected one that is there; "
                f"{remedy}"
            )
        self.places: np.ndarray = self.grid.documents_of(rows)
        # A row names a chunk of this segment's grid; the datastore counts chunks from its own first.
        self.chunks: np.ndarray = (
            self.documents["first_chunk"][self.places] + rows - self.grid.first[self.places]
        )
        if not len(self.keys) == len(rows):
            raise ArtifactError(
                f"{path} holds {len(self.keys)} keys for {len(rows)} chunks; expected as many; "
                f"run: retro db verify {quoted(path.parent.parent)}"
            )

    @cached_property
    def num_keys(self) -> np.ndarray:
        """How many chunks of each document have a key."""
        return np.bincount(self.places, minlength=len(self.documents))

    @property
    def index(self) -> Index:
        """Its own index."""
        if self._index is None:
            self._index = open_index(self.path / INDEX, self.keys)
        return self._index

    @index.setter
    def index(self, index: Index) -> None:
        self._index = index

    def _expect_fitting(self, rows: np.ndarray, remedy: str) -> None:
        """Refuse files that are readable but do not belong together."""
        if self.documents.dtype != DOCUMENT or self.documents.ndim != 1:
            fault = f"{DOCUMENTS} holds {self.documents.dtype} of shape {self.documents.shape}"
        elif not _lie_within(self.documents, len(self.tokens)):
            fault = f"{DOCUMENTS} names tokens that are not among the {len(self.tokens):,} of {TOKENS}"
        elif self.keys.ndim != 2 or self.keys.dtype != np.float16:
            fault = f"{KEYS} holds {self.keys.dtype} of shape {self.keys.shape}"
        elif rows.ndim != 1 or rows.dtype.kind != "i" or (np.diff(rows, prepend=-1) < 1).any():
            fault = f"{ROWS} holds no growing row of chunks"
        else:
            return
        raise ArtifactError(f"{self.path} is damaged: {fault}; expected a whole segment; {remedy}")

    def gather(self, places: np.ndarray, chunks: np.ndarray, length: int) -> np.ndarray:
        """`length` tokens from the start of each of the datastore's chunks; `places` are their documents."""
        offsets = chunks - self.documents["first_chunk"][places]
        return self.grid.gather(self.grid.first[places] + offsets, length)


def _lie_within(documents: np.ndarray, num_tokens: int) -> bool:
    """Whether the documents are pieces of the tokens, one after the other, with none left."""
    starts, ends = documents["start"], documents["end"]
    follow = np.array_equal(starts, np.concatenate([[0], ends[:-1]])) if len(ends) else True
    return bool(follow and (ends >= starts).all() and (not len(ends) or ends[-1] == num_tokens))


def document_grid(tokens: np.ndarray, documents: np.ndarray, chunk_len: int, pad_id: int) -> ChunkGrid:
    """The chunks of a segment's documents."""
    return ChunkGrid(tokens, documents["start"], documents["end"], chunk_len, pad_id)
