"""A datastore at one version, searched on this machine: what is there, what is near, and its tokens."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from retro.retrieval.datastore.joint import JointIndex
from retro.retrieval.datastore.scanning import Part, search_parts
from retro.retrieval.datastore.segment import DOCUMENT, Segment
from retro.retrieval.index import Entries
from retro.retrieval.search import Version


@dataclass(frozen=True)
class Places:
    """Where chunks are."""

    segment: np.ndarray
    """The position of each chunk's segment, −1 where this version holds no such chunk."""
    document: np.ndarray
    """The place of each chunk's document in its segment."""


class Snapshot:
    """The `Search` over local segments. It never changes and asks nothing of the ledger.

    Chunks of documents that were deleted by this version are not there, although their segments hold them.
    """

    is_sendable = True
    """Whether a worker that opens the same files searches as this one does."""

    def __init__(
        self,
        version: Version,
        segments: Sequence[Segment],
        deleted: Sequence[Sequence[int]],
        chunk_len: int,
        pad_id: int,
        joint: JointIndex | None = None,
    ) -> None:
        """`deleted` are the numbers of the deleted documents of each segment.

        Segments of the joint index are found by it, and the others by their own.
        """
        self.version = version
        self.segments = tuple(segments)
        self.chunk_len = chunk_len
        self.pad_id = pad_id
        self.joint = joint
        self.live = [
            ~np.isin(segment.documents["number"], gone)
            for segment, gone in zip(segments, deleted, strict=True)
        ]
        """For each segment, which of its documents are there."""
        # All documents of all segments in the order of their first chunks, so that one binary search finds
        # the document of any chunk.
        sizes = [len(segment.documents) for segment in segments]
        first = _joined([segment.documents["first_chunk"] for segment in segments])
        order = np.argsort(first)
        self._first = first[order]
        self._segment_of = np.repeat(np.arange(len(segments)), sizes)[order]
        self._place_of = _joined([np.arange(size) for size in sizes])[order]
        self._by_hash: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None

    def _parts(self) -> Iterator[tuple[Segment, np.ndarray]]:
        """Every segment, and which of its documents are there."""
        return zip(self.segments, self.live, strict=True)

    @cached_property
    def indexed(self) -> list[Part]:
        """What is searched: each index with the segments whose keys it finds."""
        live = {segment.name: live for segment, live in self._parts()}
        joined = self.joint.segments if self.joint is not None else ()
        names = {segment.name for segment in joined}
        parts = [
            Part(segment.index, [segment], [live[segment.name]])
            for segment in self.segments
            if segment.name not in names
        ]
        if self.joint is None:
            return parts
        return [Part(self.joint.index, joined, [live[segment.name] for segment in joined]), *parts]

    @property
    def kinds(self) -> list[str]:
        """The kinds of index that are searched, the most keys first, each once."""
        parts = sorted(self.indexed, key=len, reverse=True)
        return list(dict.fromkeys(part.index.kind for part in parts))

    def __len__(self) -> int:
        """How many chunks can be found."""
        return self._size

    @cached_property
    def _size(self) -> int:
        # Counted once, as every search asks for it and a version never changes.
        # Few documents are deleted, so most segments need not be looked through.
        return sum(
            len(segment.chunks) if live.all() else int(segment.num_keys[live].sum())
            for segment, live in self._parts()
        )

    @property
    def width(self) -> int:
        """How many numbers a key has; 0 if there is none."""
        return max((segment.keys.shape[1] for segment in self.segments), default=0)

    def num_keys_of(self, documents: Sequence[int]) -> int:
        """How many chunks of these documents can be found."""
        if not len(documents):
            return 0
        masks = (live & np.isin(segment.documents["number"], documents) for segment, live in self._parts())
        pairs = zip(self.segments, masks, strict=True)
        return sum(int(segment.num_keys[mask].sum()) for segment, mask in pairs)

    @property
    def num_documents(self) -> int:
        return sum(int(live.sum()) for live in self.live)

    def num_tokens(self) -> int:
        lengths = (segment.documents["end"] - segment.documents["start"] for segment in self.segments)
        return sum(int(length[live].sum()) for length, live in zip(lengths, self.live, strict=True))

    def texts(self) -> Iterator[tuple[int, np.ndarray]]:
        """The number and the tokens, which stay on disk, of every document that is there."""
        for segment, live in self._parts():
            for row in segment.documents[live]:
                yield int(row["number"]), segment.tokens[row["start"] : row["end"]]

    def num_chunks(self) -> int:
        """All chunks, those without text as well."""
        return sum(int(segment.num_chunks[live].sum()) for segment, live in self._parts())

    def search(
        self, entries: Entries, k: int, documents: Sequence[int] | None = None, without: Sequence[int] = ()
    ) -> tuple[np.ndarray, np.ndarray]:
        parts = [(part, part.allowed) for part in self.indexed]
        if documents is not None or len(without):
            masks = self.wanted(documents, without)
            wanted = {segment.name: mask for segment, mask in zip(self.segments, masks, strict=True)}
            parts = [
                (part, part.rows_of([wanted[segment.name] for segment in part.segments]))
                for part in self.indexed
            ]
        return search_parts(parts, entries, k)

    def wanted(self, documents: Sequence[int] | None, without: Sequence[int]) -> list[np.ndarray]:
        """Which documents of each segment may be found."""
        masks = []
        for segment, live in self._parts():
            numbers = segment.documents["number"]
            mask = live if documents is None else live & np.isin(numbers, documents)
            masks.append(mask & ~np.isin(numbers, without) if len(without) else mask)
        return masks

    def locate(self, chunks: np.ndarray) -> Places:
        """Where chunks of any numbers are."""
        if not len(self._first):
            return Places(np.full(chunks.shape, -1), np.zeros(chunks.shape, dtype=np.int64))
        # The last document that begins at or before each chunk. The chunk is there if the document is live
        # and long enough: numbers between documents belonged to others that are gone.
        found = np.maximum(np.searchsorted(self._first, chunks, side="right") - 1, 0)
        segment = self._segment_of[found]
        place = self._place_of[found]
        offset = chunks - self._first[found]
        inside = np.zeros(chunks.shape, dtype=bool)
        for number, (part, live) in enumerate(self._parts()):
            here = segment == number
            long_enough = offset[here] < part.num_chunks[place[here]]
            inside[here] = (offset[here] >= 0) & long_enough & live[place[here]]
        return Places(np.where(inside, segment, -1), place)

    def is_live(self, chunks: np.ndarray) -> np.ndarray:
        """Which of the chunks are there."""
        live: np.ndarray = self.locate(chunks).segment >= 0
        return live

    def values(self, chunks: np.ndarray, length: int = 0) -> np.ndarray:
        places = self.locate(chunks)
        values = np.full((*chunks.shape, length or 2 * self.chunk_len), self.pad_id, dtype=np.int64)
        for number, segment in enumerate(self.segments):
            here = places.segment == number
            if here.any():
                values[here] = segment.gather(places.document[here], chunks[here], values.shape[-1])
        return values

    def content_hashes(self, chunks: np.ndarray) -> np.ndarray:
        return self._of_documents(chunks, "content_hash", np.uint64(0))

    def documents(self, chunks: np.ndarray) -> np.ndarray:
        return self._of_documents(chunks, "number", np.int64(-1))

    def _of_documents(self, chunks: np.ndarray, field: str, missing: np.generic) -> np.ndarray:
        places = self.locate(chunks)
        values = np.full(chunks.shape, missing)
        for number, segment in enumerate(self.segments):
            here = places.segment == number
            values[here] = segment.documents[field][places.document[here]]
        return values

    def copies(self, content_hash: int) -> list[int]:
        hashes, _, numbers = self._hashed()
        begin = np.searchsorted(hashes, np.uint64(content_hash), side="left")
        end = np.searchsorted(hashes, np.uint64(content_hash), side="right")
        return [int(number) for number in numbers[begin:end]]

    def find(self, content_hashes: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        hashes, first, _ = self._hashed()
        if not len(hashes):
            return np.full(len(content_hashes), -1, dtype=np.int64)
        # Of several copies the first one is taken; where the hash does not stand, the chunk is not there.
        place = np.minimum(np.searchsorted(hashes, content_hashes), len(hashes) - 1)
        found: np.ndarray = np.where(hashes[place] == content_hashes, first[place] + offsets, -1)
        return found

    def _hashed(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Content hashes, first chunks and numbers of the live documents, in the order of the first two."""
        if self._by_hash is None:
            live = _joined([segment.documents[live] for segment, live in self._parts()], DOCUMENT)
            order = np.lexsort((live["first_chunk"], live["content_hash"]))
            live = live[order]
            self._by_hash = live["content_hash"], live["first_chunk"], live["number"]
        return self._by_hash

    def keys(self, chunks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        segment_of = self.locate(chunks).segment
        width = self.width
        found = np.zeros(len(chunks), dtype=bool)
        keys = np.zeros((len(chunks), width), dtype=np.float16)
        for number, segment in enumerate(self.segments):
            here = np.flatnonzero(segment_of == number)
            if len(segment.chunks) and len(here):
                # A segment's rows are in the order of their chunks; chunks without text have no row.
                rows = np.minimum(np.searchsorted(segment.chunks, chunks[here]), len(segment.chunks) - 1)
                real = segment.chunks[rows] == chunks[here]
                found[here[real]] = True
                keys[here[real]] = segment.keys[rows[real]]
        return found, keys[found]


def _joined(arrays: Sequence[np.ndarray], dtype: Any = np.int64) -> np.ndarray:
    """The arrays one after another; an empty one if there are none."""
    return np.concatenate([np.zeros(0, dtype=dtype), *arrays])
