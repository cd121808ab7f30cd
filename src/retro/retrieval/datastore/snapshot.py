"""A datastore at one version: which chunks are there, their nearest ones, their tokens and documents."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from retro.retrieval.datastore.ledger import Version
from retro.retrieval.datastore.segment import Segment, chunks_of
from retro.retrieval.index import Entries


@dataclass(frozen=True)
class Places:
    """Where chunks are: the number of their segment, −1 where there is no such chunk now, and their document's place in it."""

    segment: np.ndarray
    document: np.ndarray


class Snapshot:
    """Immutable. Chunks have numbers that stay theirs for good; those of deleted documents are not there any more."""

    def __init__(
        self,
        version: Version,
        segments: Sequence[Segment],
        deleted: Sequence[Sequence[int]],
        chunk_len: int,
        pad_id: int,
    ) -> None:
        self.version, self.segments, self.chunk_len, self.pad_id = version, tuple(segments), chunk_len, pad_id
        self.live = [
            ~np.isin(segment.documents["number"], gone)
            for segment, gone in zip(segments, deleted, strict=True)
        ]
        """For each segment, which of its documents are there."""
        self._allowed = [
            None if live.all() else live[segment.places]
            for segment, live in zip(segments, self.live, strict=True)
        ]
        sizes = [len(segment.documents) for segment in segments]
        segment_of = np.repeat(np.arange(len(segments)), sizes)
        place_of = (
            np.concatenate([np.arange(size) for size in sizes]) if sizes else np.zeros(0, dtype=np.int64)
        )
        first = (
            np.concatenate([segment.documents["first_chunk"] for segment in segments])
            if sizes
            else np.zeros(0, dtype=np.int64)
        )
        order = np.argsort(first)
        self._first, self._segment_of, self._place_of = first[order], segment_of[order], place_of[order]
        self._by_hash: tuple[np.ndarray, np.ndarray] | None = None

    def __len__(self) -> int:
        """How many chunks can be found."""
        return sum(
            int(live[segment.places].sum()) for segment, live in zip(self.segments, self.live, strict=True)
        )

    @property
    def num_documents(self) -> int:
        return sum(int(live.sum()) for live in self.live)

    def search(
        self, entries: Entries, k: int, documents: Sequence[int] | None = None, without: Sequence[int] = ()
    ) -> tuple[np.ndarray, np.ndarray]:
        """Squared distances and numbers of the k nearest chunks, nearest first; −1 where there are no more.

        `documents` are the numbers of those that may be found, `without` of those that may not.
        """
        num_queries = len(entries.keys)
        distances = [np.full((num_queries, k), np.inf, dtype=np.float32)]
        chunks = [np.full((num_queries, k), -1, dtype=np.int64)]
        for segment, live, allowed in zip(self.segments, self.live, self._allowed, strict=True):
            if documents is not None or len(without):
                numbers = segment.documents["number"]
                wanted = live if documents is None else live & np.isin(numbers, documents)
                allowed = (wanted & ~np.isin(numbers, without))[segment.places]
            found_distances, rows = segment.index.search(entries, k, allowed)
            distances.append(found_distances)
            chunks.append(np.where(rows >= 0, segment.chunks[rows], -1))
        return nearest(np.concatenate(distances, axis=1), np.concatenate(chunks, axis=1), k)

    def locate(self, chunks: np.ndarray) -> Places:
        if not len(self._first):
            return Places(np.full(chunks.shape, -1), np.zeros(chunks.shape, dtype=np.int64))
        found = np.maximum(np.searchsorted(self._first, chunks, side="right") - 1, 0)
        segment, place = self._segment_of[found], self._place_of[found]
        inside = np.zeros(chunks.shape, dtype=bool)
        for number, (part, live) in enumerate(zip(self.segments, self.live, strict=True)):
            here = segment == number
            counts = part.num_chunks[place[here]]
            inside[here] = (
                (chunks[here] >= self._first[found[here]])
                & (chunks[here] < self._first[found[here]] + counts)
                & live[place[here]]
            )
        return Places(np.where(inside, segment, -1), place)

    def is_live(self, chunks: np.ndarray) -> np.ndarray:
        live: np.ndarray = self.locate(chunks).segment >= 0
        return live

    def values(self, chunks: np.ndarray, length: int = 0) -> np.ndarray:
        """[N, F] of each chunk, or its first `length` tokens; all padding for one that is not there."""
        places = self.locate(chunks)
        values = np.full((*chunks.shape, length or 2 * self.chunk_len), self.pad_id, dtype=np.int64)
        for number, segment in enumerate(self.segments):
            here = places.segment == number
            if here.any():
                values[here] = segment.gather(
                    places.document[here], chunks[here], values.shape[-1], self.pad_id
                )
        return values

    def content_hashes(self, chunks: np.ndarray) -> np.ndarray:
        """The short content hash of each chunk's document; 0 for a chunk that is not there."""
        return self._of_documents(chunks, "content_hash", np.uint64(0))

    def documents(self, chunks: np.ndarray) -> np.ndarray:
        """The number of each chunk's document; −1 for a chunk that is not there."""
        return self._of_documents(chunks, "number", np.int64(-1))

    def find(self, content_hashes: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """The numbers of chunks by their document's short content hash and their place in it; −1 where there is none."""
        if self._by_hash is None:
            hashes = np.concatenate(
                [
                    segment.documents["content_hash"][live]
                    for segment, live in zip(self.segments, self.live, strict=True)
                ]
            )
            first = np.concatenate(
                [
                    segment.documents["first_chunk"][live]
                    for segment, live in zip(self.segments, self.live, strict=True)
                ]
            )
            order = np.lexsort((first, hashes))
            self._by_hash = hashes[order], first[order]
        hashes, first = self._by_hash
        place = np.minimum(np.searchsorted(hashes, content_hashes), len(hashes) - 1)
        found: np.ndarray = np.where(hashes[place] == content_hashes, first[place] + offsets, -1)
        return found

    def keys(self, chunks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which of the chunks have a key here, and the keys of those."""
        segment_of = self.locate(chunks).segment
        found = np.zeros(len(chunks), dtype=bool)
        keys = np.zeros(
            (len(chunks), self.segments[0].keys.shape[1] if self.segments else 0), dtype=np.float16
        )
        for number, segment in enumerate(self.segments):
            here = np.flatnonzero(segment_of == number)
            if len(segment.chunks) and len(here):
                rows = np.minimum(np.searchsorted(segment.chunks, chunks[here]), len(segment.chunks) - 1)
                real = segment.chunks[rows] == chunks[here]
                found[here[real]], keys[here[real]] = True, segment.keys[rows[real]]
        return found, keys[found]

    def _of_documents(self, chunks: np.ndarray, field: str, missing: np.generic) -> np.ndarray:
        places = self.locate(chunks)
        values = np.full(chunks.shape, missing)
        for number, segment in enumerate(self.segments):
            here = places.segment == number
            values[here] = segment.documents[field][places.document[here]]
        return values

    def num_tokens(self) -> int:
        return sum(
            int((s.documents["end"] - s.documents["start"])[live].sum())
            for s, live in zip(self.segments, self.live, strict=True)
        )

    def num_chunks(self) -> int:
        """All chunks, those without text as well."""
        return sum(
            int(chunks_of(s.documents, self.chunk_len)[live].sum())
            for s, live in zip(self.segments, self.live, strict=True)
        )


def nearest(distances: np.ndarray, chunks: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The k smallest distances of each row with their chunks; of equal ones the lower chunk comes first, and what is missing last."""
    order = np.lexsort(
        (np.where(chunks < 0, np.iinfo(np.int64).max, chunks), np.where(chunks < 0, np.inf, distances)),
        axis=-1,
    )[:, :k]
    return np.take_along_axis(distances, order, axis=1), np.take_along_axis(chunks, order, axis=1)
