"""Writing segments anew: merged with others, or without what was deleted, and the index over all of them.

Keys are copied, not made again. New folders are written beside the old ones; one transaction puts them in
their place, and the next sweep removes what no row names any more.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from retro.retrieval.datastore.index_table import IndexRow
from retro.retrieval.datastore.joint import INDEXES, write_joint
from retro.retrieval.datastore.ledger import COMPACT, MERGE, NEWEST, Ledger
from retro.retrieval.datastore.merging import (
    MIN_JOINED,
    Merge,
    SegmentState,
    merges_by_itself,
    outgrows_a_segment,
)
from retro.retrieval.datastore.reader import SEGMENTS, DatastoreReader
from retro.retrieval.datastore.segment import Segment
from retro.retrieval.datastore.segment_writer import EXACT, Numbering, Piece, Written, copy_segment
from retro.retrieval.datastore.snapshot import Snapshot
from retro.retrieval.index.compressed import compressed_kind
from retro.stages.executor import Executor
from retro.stages.progress import Progress, at_step, no_progress

NUMBERING, UNSWEPT = "numbering", "unswept"
"""Facts of the ledger: the next numbers, and whether deleted rows are still to be removed from its file."""
Stale = list[tuple[Segment, np.ndarray]]
"""Segments to write anew, and which of their documents are there."""


class Rewriting:
    """One change of the newest version's files, which a writer makes."""

    def __init__(
        self,
        datastore: DatastoreReader,
        numbering: Numbering,
        executor: Executor,
        progress: Progress = no_progress,
    ) -> None:
        self.datastore = datastore
        self.ledger = datastore.ledger
        self.config = datastore.config
        self.numbering = numbering
        self._executor = executor
        self._progress = progress
        self.snapshot = datastore.snapshot()

    @staticmethod
    def states(snapshot: Snapshot) -> list[SegmentState]:
        """The segments as the rules of merging see them."""
        joined = {segment.name for segment in snapshot.joint.segments} if snapshot.joint else set()
        return [
            SegmentState(
                num_chunks=int(segment.num_chunks.sum()),
                num_keys=len(segment.keys),
                # A segment of the joint index is not opened for this.
                is_linear=segment.name in joined or segment.index.kind == EXACT,
                is_joined=segment.name in joined,
            )
            for segment in snapshot.segments
        ]

    def merge(self, merge: Merge) -> int:
        """Take one step of merging, as one version."""
        parts = list(zip(self.snapshot.segments, self.snapshot.live, strict=True))
        groups = [[parts[position] for position in group] for group in merge.groups]
        return self._write(groups, merge.joins, is_linear=not merge.is_indexed, action=MERGE)

    def compact(self) -> int:
        """Drop what was deleted, join what is small, and index all that is searched key by key."""
        # Segments below half the full size are joined, so that many small additions do not slow searches.
        enough = self.config.segment_chunks // 2
        stale = [
            (segment, live)
            for segment, live in zip(self.snapshot.segments, self.snapshot.live, strict=True)
            if not live.all() or segment.num_chunks.sum() < enough
        ]
        # One small segment without deleted documents would only be written again as it is.
        if len(stale) == 1 and stale[0][1].all():
            stale = []
        joins = outgrows_a_segment(self.config, self.snapshot.num_chunks())
        joins = joins and len(self.snapshot) >= max(self.config.exact_below, MIN_JOINED)
        is_elsewhere = not self.datastore.is_indexed_here
        joins = joins and not is_elsewhere
        has_unjoined = joins and any(not state.is_joined for state in self.states(self.snapshot))
        # A merge drops the documents that were deleted, but not their rows of the ledger.
        if not stale and not has_unjoined and not self.ledger.num_deleted():
            return self.snapshot.version.number
        is_linear = joins or (is_elsewhere and merges_by_itself(self.config))
        return self._write([stale], joins, is_linear, action=COMPACT)

    def _write(self, groups: list[Stale], joins: bool, is_linear: bool, action: str) -> int:
        """Write each group into new segments, index all anew if it is to be joined, and commit."""
        written = [
            self._copied(part, is_linear)
            for group in groups
            for part in _regrouped(group, self._max, self.ledger)
        ]
        gone = {segment.name for group in groups for segment, _ in group}
        index = self._joint(written, gone) if joins else None
        with self.ledger.transaction():
            version = self.ledger.commit(action, (), 0)
            for name in sorted(gone):
                self.ledger.remove_segment(name)
            if action == COMPACT:
                self.ledger.remove_deleted()
            for new in written:
                self.ledger.add_segment(new.segment, version.number)
                self.ledger.move_documents(new.segment.name, [row["number"] for row in new.rows])
            if joins or not self._keeps_joint(gone):
                self.ledger.set_index(index)
            self.ledger.set_fact(NUMBERING, vars(self.numbering))
            if action == COMPACT:
                # The bytes of deleted rows stay in the file until it is rewritten, by the next sweep.
                self.ledger.set_fact(UNSWEPT, True)
        return version.number

    @property
    def _max(self) -> int:
        return self.config.segment_chunks

    def _copied(self, part: "_Group", is_linear: bool) -> Written:
        return copy_segment(
            self.datastore.path / SEGMENTS,
            part.pieces,
            part.keys(),
            self.numbering,
            self.config,
            self.datastore.tokenizer,
            is_linear,
            None if is_linear else part.beginning(),
        )

    def _joint(self, written: Sequence[Written], gone: set[str]) -> IndexRow | None:
        """One index over the segments that stay and those that were written."""
        kept = [segment for segment in self.snapshot.segments if segment.name not in gone]
        new = [self.datastore.open_segment(part.segment.name, is_joined=True) for part in written]
        segments = [segment for segment in (*kept, *new) if len(segment.keys)]
        num_keys = sum(len(segment.keys) for segment in segments)
        if not num_keys:
            return None
        kind = self.config.index
        if kind == "auto":
            kind = compressed_kind(segments[0].keys.shape[1], num_keys)
        name = f"{self.numbering.index:06d}"
        self.numbering.index += 1
        return write_joint(
            self.datastore.path / INDEXES,
            name,
            segments,
            kind,
            self.config.target_recall,
            self.snapshot.joint,
            self._executor,
            at_step(self._progress, "indexing"),
        )

    def _keeps_joint(self, gone: set[str]) -> bool:
        """Whether the joint index holds nothing of what is gone, and stays as it is."""
        joint = self.snapshot.joint
        return joint is not None and not gone & {segment.name for segment in joint.segments}


def _regrouped(stale: Stale, max_chunks: int, ledger: Ledger) -> "Iterator[_Group]":
    """The live documents of segments, in order, in groups that make new segments of bounded size."""
    members = [(segment, int(place)) for segment, live in stale for place in np.flatnonzero(live)]
    members.sort(key=lambda member: int(member[0].documents["first_chunk"][member[1]]))
    group = _Group(ledger)
    for segment, place in members:
        if group.num_chunks and group.num_chunks + segment.num_chunks[place] > max_chunks:
            yield group
            group = _Group(ledger)
        group.add(segment, place)
    if group.num_chunks:
        yield group


class _Group:
    """Documents of finished segments that are going to be a new one."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._members: list[tuple[Segment, int]] = []
        self.num_chunks = 0

    def add(self, segment: Segment, place: int) -> None:
        self._members.append((segment, place))
        self.num_chunks += int(segment.num_chunks[place])

    def beginning(self) -> Segment | None:
        """The segment whose documents come first, all of them and in their order."""
        first = self._members[0][0]
        begins = self._members[: len(first.documents)]
        is_whole = [place for segment, place in begins if segment is first] == list(
            range(len(first.documents))
        )
        return first if is_whole else None

    @property
    def pieces(self) -> Iterator[Piece]:
        for segment, place in self._members:
            document = segment.documents[place]
            number = int(document["number"])
            row = self._ledger.documents([number], NEWEST)[number]
            row |= {"number": number, "first_chunk": int(document["first_chunk"])}
            yield Piece(row, segment.tokens[document["start"] : document["end"]])

    def keys(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Chunk rows in the new segment and their keys, document by document."""
        first = 0
        for segment, place in self._members:
            # A segment's rows are in the order of its documents; chunks without text have none.
            begin, end = np.searchsorted(segment.places, [place, place + 1])
            offsets = segment.chunks[begin:end] - segment.documents[place]["first_chunk"]
            yield (first + offsets).astype(np.int32), segment.keys[begin:end]
            first += int(segment.num_chunks[place])
