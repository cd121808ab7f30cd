"""When segments are merged and what finds their keys, so that a search grows as the logarithm of the text.

What is added is written as a small segment that is searched exactly, key by key. Three rules keep it quick,
whatever is added and how often:

- eight small segments of about one size become one, as in search engines;
- whenever the keys that are searched one by one reach `exact_below`, they are indexed: by a graph while the
  datastore fits into one segment, and beyond by one compressed index over the keys of all segments;
- both are extended by what is new, rather than made anew, as long as they fit.

So a search looks through one large index and at most `exact_below` further keys. The reasons and numbers are
in docs/decisions/0020-growing.md.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from retro.config import DatastoreConfig
from retro.retrieval.index.compressed import COMPRESSED

FEW = 8
"""So many small segments of about one size become one, of the next size."""

MIN_JOINED = 1024
"""Fewer keys are too few to train codes on."""


@dataclass(frozen=True)
class SegmentState:
    """What the rules must know of a segment."""

    num_chunks: int
    num_keys: int
    is_linear: bool
    """Whether its own index looks at every key."""
    is_joined: bool
    """Whether an index over many segments finds its keys."""

    @property
    def is_waiting(self) -> bool:
        """Whether its keys are searched one by one."""
        return self.is_linear and not self.is_joined


@dataclass(frozen=True)
class Merge:
    """One step: segments to write as one each, by their positions, and what will find them."""

    groups: tuple[tuple[int, ...], ...]
    is_indexed: bool = False
    """Whether what is written gets an index of its own, by its size; otherwise it is searched exactly."""
    joins: bool = False
    """Whether all segments get a joint index after it."""


def merges_by_itself(config: DatastoreConfig) -> bool:
    """Whether the kind of index allows merging beyond what `compact` does."""
    return config.index in ("auto", "exact") or joins(config)


def joins(config: DatastoreConfig) -> bool:
    """Whether a joint index may be made: of codes, which can be those of keys that lie anywhere."""
    return config.index == "auto" or bool(COMPRESSED.fullmatch(config.index))


def outgrows_a_segment(config: DatastoreConfig, num_chunks: int) -> bool:
    """Whether so many chunks are found by a joint index, and not by each segment's own."""
    return joins(config) and num_chunks > config.segment_chunks


def next_merge(
    states: Sequence[SegmentState], config: DatastoreConfig, is_elsewhere: bool = False
) -> Merge | None:
    """What is worthwhile now, or nothing. Where an engine finds the keys, nothing is indexed here."""
    if not merges_by_itself(config):
        return None
    waiting = [number for number, state in enumerate(states) if state.is_waiting]
    num_waiting = sum(states[number].num_keys for number in waiting)
    if joins(config) and not is_elsewhere and num_waiting >= max(config.exact_below, 1):
        total = sum(state.num_chunks for state in states)
        if not outgrows_a_segment(config, total):
            return Merge((tuple(range(len(states))),), is_indexed=True)
        if sum(state.num_keys for state in states) >= MIN_JOINED:
            return _joined(states, waiting, config)
    group = _full_tier(states, waiting, config)
    return Merge((group,)) if group else None


def _joined(states: Sequence[SegmentState], waiting: Sequence[int], config: DatastoreConfig) -> Merge:
    """A joint index over everything, after small segments that have come together are written as one."""
    small = [number for number in waiting if states[number].num_chunks < config.segment_chunks // 2]
    groups = [tuple(small)] if len(small) > 1 else []
    joined = [number for number, state in enumerate(states) if state.is_joined]
    if tier := _full_tier(states, joined, config):
        groups.append(tier)
    return Merge(tuple(groups), joins=True)


def _full_tier(
    states: Sequence[SegmentState], members: Sequence[int], config: DatastoreConfig
) -> tuple[int, ...]:
    """The segments of the lowest size that has enough of them, with the smaller ones; none if none has."""
    tiers: dict[int, list[int]] = defaultdict(list)
    for number in members:
        tiers[_tier(states[number].num_chunks)].append(number)
    for tier in sorted(tiers):
        group = [number for number in members if _tier(states[number].num_chunks) <= tier]
        size = sum(states[number].num_chunks for number in group)
        if len(tiers[tier]) >= FEW and size <= config.segment_chunks:
            return tuple(group)
    return ()


def _tier(num_chunks: int) -> int:
    """How many times eight it is: segments of one tier differ by less than eight times."""
    tier = 0
    while num_chunks >= FEW:
        num_chunks //= FEW
        tier += 1
    return tier
