"""All units of a plan, read and sifted wherever that is done, and what was found added up in their order.

Workers read units of files and write their shards: no text passes the command. A stream is read here, and its
batches are sent to the workers.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from retro.config import CorpusConfig
from retro.corpus.documents import SPLITS
from retro.corpus.readers.problems import Problems
from retro.corpus.readers.streams import metered
from retro.corpus.reading import Files, Stream
from retro.corpus.sifting import Batch, Item, cut_batches, look_at_shard, write_shard
from retro.stages.executor import Executor
from retro.stages.files import atomic_write
from retro.stages.parts import JSON, Parts

SUMMARIES = replace(JSON, suffix=".jsonl.summary")
"""A shard's counts and what it left out, written after it: where a summary stands, the shard is whole."""

ReadingProgress = Callable[[int, int, int], None]
"""Called with the documents so far, the bytes of their text, and the bytes read of the sources' files."""


@dataclass
class Found:
    """What a unit held, or all of them: counts, what was left out, and how much was read."""

    counts: Counter[str] = field(default_factory=Counter)
    readers: Problems = field(default_factory=Problems)
    """What the readers left out."""
    shards: Problems = field(default_factory=Problems)
    """What was read and then left out; it is told behind what the readers did."""
    num_items: int = 0
    num_read: int = 0
    """Bytes of the sources' files."""
    kept: list[dict[str, Any]] = field(default_factory=list)
    """In a dry run, a row of every document that is kept, by which duplicates are found."""

    def add(self, summary: Mapping[str, Any]) -> None:
        """Count what became of a batch."""
        self.counts.update(summary["counts"])
        self.kept.extend(summary.get("kept", ()))
        for row in summary["problems"]:
            self.shards.add(*row)

    def absorb(self, other: "Found") -> None:
        self.counts.update(other.counts)
        self.readers.absorb(other.readers)
        self.shards.absorb(other.shards)
        self.num_items += other.num_items
        self.num_read += other.num_read
        self.kept.extend(other.kept)

    def to_json(self) -> dict[str, Any]:
        problems = {name: getattr(self, name).to_json() for name in ("readers", "shards")}
        return {**vars(self), "counts": dict(self.counts), **problems}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> "Found":
        problems = {name: Problems.from_json(value[name]) for name in ("readers", "shards")}
        return Found(**{**value, "counts": Counter(value["counts"]), **problems})


@dataclass(frozen=True)
class Sifting:
    """How units become shards. It is sent to the workers, and does the same there as here."""

    config: CorpusConfig
    strict: bool
    shard_bytes: int
    folder: Path = Path()
    """Where shards are written."""
    lists: Path | None = None
    """Where the list of what was left out of each unit is written; none in a dry run, which writes none."""
    is_only: bool = False
    """Whether there is but one unit, whose shards are then known by their numbers alone."""

    def shard(self, batch: Batch) -> dict[str, Any]:
        return write_shard(batch) if self.lists else look_at_shard(batch)

    def unit(self, numbered: tuple[int, Files]) -> dict[str, Any]:
        """Read a unit of files and make its shards; those that are there already are only counted."""
        number, files = numbered
        found = self.nothing()
        parts = Parts(self.folder, SUMMARIES, alone=False)
        with metered() as meter, self.listed(number, found.readers):
            for name, batch in self.batches(number, files.read(found.readers), found):
                make = partial(self.shard, batch)
                found.add(parts.keep(name, make) if self.lists else make())
            found.num_read = meter.num_bytes
        return found.to_json()

    def nothing(self) -> Found:
        return Found(readers=Problems(self.strict), shards=Problems(self.strict))

    def batches(self, number: int, items: Iterator[Item], found: Found) -> Iterator[tuple[str, Batch]]:
        prefix = "" if self.is_only else f"{number:06d}-"

        def counted() -> Iterator[Item]:
            for item in items:
                found.num_items += 1
                yield item

        return cut_batches(counted(), self.folder, prefix, self.config, self.shard_bytes)

    @contextmanager
    def listed(self, number: int, problems: Problems) -> Iterator[None]:
        """Write what is left out while the unit is read into the unit's own list."""
        if self.lists is None:
            yield
            return
        with atomic_write(self.list_of(number), alone=False) as file, problems.listed_in(file):
            yield

    def list_of(self, number: int) -> Path:
        assert self.lists is not None
        return self.lists / f"{number:06d}.jsonl"


def gather(
    units: Sequence[Files | Stream],
    sifting: Sifting,
    executor: Executor,
    finished: Path | None,
    progress: ReadingProgress | None,
) -> list[Found]:
    """What was found in each unit. Units of files that are done are kept in the folder `finished`, if any."""
    found: dict[int, Found] = {}
    files = [(number, unit) for number, unit in enumerate(units) if isinstance(unit, Files)]
    shown = _Shown(progress)
    run: Any = partial(executor.map, sifting.unit)
    if finished is not None:
        named = ((f"{number:06d}", (number, unit)) for number, unit in files)
        results = Parts(finished, JSON).map(run, named)
    else:
        results = run(files)
    for (number, _), result in zip(files, results, strict=True):
        found[number] = Found.from_json(result)
        shown.add(found[number].counts, found[number].num_read)
    for number, unit in enumerate(units):
        if isinstance(unit, Stream):
            found[number] = _read_stream(number, unit, sifting, executor, shown)
    return [found[number] for number in range(len(units))]


def _read_stream(number: int, stream: Stream, sifting: Sifting, executor: Executor, shown: "_Shown") -> Found:
    """Read a stream here, and have its batches sifted by the workers."""
    found = replace(sifting.nothing(), readers=stream.problems)
    parts = Parts(sifting.folder, SUMMARIES)
    # Where in the sources' files each batch ends that was cut and whose shard is still to come.
    positions: deque[int] = deque()
    run: Any = partial(executor.map, sifting.shard)
    with metered() as meter, sifting.listed(number, stream.problems):

        def cut() -> Iterator[tuple[str, Batch]]:
            for named in sifting.batches(number, stream.items, found):
                positions.append(meter.num_bytes)
                yield named

        summaries = parts.map(run, cut()) if sifting.lists else run(batch for _, batch in cut())
        before = 0
        for summary in summaries:
            found.add(summary)
            position = positions.popleft()
            shown.add(summary["counts"], position - before)
            before = position
    return found


class _Shown:
    """How far all of the reading is."""

    def __init__(self, progress: ReadingProgress | None) -> None:
        self._progress = progress
        self._documents = 0
        self._bytes = 0
        self._position = 0

    def add(self, counts: Mapping[str, int], num_read: int) -> None:
        self._documents += counts.get("documents", 0)
        self._bytes += text_bytes(counts)
        self._position += num_read
        if self._progress:
            self._progress(self._documents, self._bytes, self._position)


def text_bytes(counts: Mapping[str, int]) -> int:
    """Bytes of the documents of all splits, out of a stage's counts."""
    return sum(counts.get(f"bytes of {split}", 0) for split in SPLITS)
