"""One index over the keys of many segments: a search asks it once, however many segments there are.

Tokens and keys stay in their segments, which are small enough to be written, and written again, one by one.
The index holds codes of the keys alone, so it can be made anew from those of the last one: only keys that it
did not have are encoded.
"""

import json
import multiprocessing
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path

import faiss
import numpy as np

from retro.errors import ArtifactError
from retro.retrieval.datastore.index_table import IndexRow
from retro.retrieval.datastore.segment import KEYS, Segment
from retro.retrieval.index import open_index
from retro.retrieval.index.compressed import BLOCK, CompressedIndex
from retro.retrieval.index.exact import DenseIndex
from retro.retrieval.index.keys import KeyParts
from retro.retrieval.index.tuning import tune
from retro.stages.executor import Executor
from retro.stages.files import file_checksum, flush_folder, write_json
from retro.stages.hints import with_paths
from retro.stages.parts import ARRAY, Parts
from retro.stages.progress import Progress, no_progress
from retro.wording import counted

INDEXES = "indexes"
TRAINED, SHARDS, PLAN = "trained", "shards", "plan.json"
RETRAIN = 4
"""The lists are made anew once so many times as many would be right for the number of keys."""


class JointIndex:
    """An open index, and the segments whose rows it holds, one after another."""

    def __init__(self, path: Path, segments: Sequence[Segment]) -> None:
        self.name = path.name
        self.path = path
        self.segments = tuple(segments)

    @cached_property
    def index(self) -> DenseIndex:
        """Opened when it is first asked for: where an engine searches it never is."""
        index = open_index(self.path, KeyParts([segment.keys for segment in self.segments]))
        if not isinstance(index, DenseIndex):
            raise ArtifactError(
                f"{self.path} is an index of kind {index.kind}; expected one over keys; "
                f"remove the datastore and run: {with_paths('retro build WORK', self.path)}"
            )
        return index

    def chunks(self) -> np.ndarray:
        """The number of every row's chunk."""
        return np.concatenate([segment.chunks for segment in self.segments])


def write_joint(
    folder: Path,
    name: str,
    segments: Sequence[Segment],
    kind: str,
    target_recall: float,
    former: JointIndex | None,
    executor: Executor,
    progress: Progress = no_progress,
) -> IndexRow | None:
    """Index the keys of the segments, of which at least one has keys, as `name` below `folder`.

    None if there are too few keys to train on. Codes are taken from the former index where it has them. An
    interrupted run goes on behind the last finished shard of codes.
    """
    segments = [segment for segment in segments if len(segment.keys)]
    former = former if former is not None and _still_fits(former.index, kind) else None
    begun = folder / f"{name}.partial"
    _begin(begun, [segment.name for segment in segments], kind, former)
    keys = KeyParts([segment.keys for segment in segments])
    progress(0, 0, f"Learning codes from {counted(len(keys), 'key')}")
    index = _trained(begun / TRAINED, keys, kind, former)
    if not index.is_trained:
        shutil.rmtree(begun)
        return None
    taken = _TakenCodes(former) if former is not None else None
    for codes in _codes(begun, segments, taken, executor, progress):
        index.add_codes(codes)
    index.attach(keys)
    progress(0, 0, "Tuning the index")
    measured = asdict(tune(index, target_recall))
    index.save(begun)
    for place in (begun / SHARDS, begun / TRAINED):
        shutil.rmtree(place, ignore_errors=True)
    (begun / PLAN).unlink()
    files = {file.name: file_checksum(file) for file in sorted(begun.iterdir())}
    flush_folder(begun)
    begun.replace(folder / name)
    flush_folder(folder, deep=False)
    return IndexRow(
        name,
        [segment.name for segment in segments],
        files,
        {"keys": len(keys), "index": {**measured, "kind": index.kind}},
    )


def _still_fits(index: DenseIndex, kind: str) -> bool:
    """Whether an index that was trained on fewer keys can take those that have come since."""
    if not isinstance(index, CompressedIndex) or not index.is_trained:
        return False
    wanted = CompressedIndex(index.keys.shape[1], kind).num_lists
    return index.num_lists * RETRAIN > wanted and index.num_lists < wanted * RETRAIN


def _begin(begun: Path, names: list[str], kind: str, former: JointIndex | None) -> None:
    """Keep what an interrupted run left behind only if it was about the same."""
    plan = {"segments": names, "kind": kind, "former": former.name if former else None}
    before = json.loads((begun / PLAN).read_text()) if (begun / PLAN).exists() else None
    if plan != before:
        shutil.rmtree(begun, ignore_errors=True)
    begun.mkdir(parents=True, exist_ok=True)
    write_json(begun / PLAN, plan)


def _trained(folder: Path, keys: KeyParts, kind: str, former: JointIndex | None) -> CompressedIndex:
    """An index without rows: trained now, by a run that was interrupted, or for the former index.

    It is saved for other processes.
    """
    if folder.exists():
        return _opened(folder, keys.shape[1])
    if former is not None:
        assert isinstance(former.index, CompressedIndex)
        index = former.index.emptied()
    else:
        index = CompressedIndex(keys.shape[1], kind)
        index.train(keys)
    if index.is_trained:
        unfinished = folder.with_name(f"{TRAINED}.tmp")
        shutil.rmtree(unfinished, ignore_errors=True)
        index.save(unfinished)
        flush_folder(unfinished)
        unfinished.replace(folder)
    return index


def _opened(folder: Path, width: int) -> CompressedIndex:
    index = open_index(folder, np.zeros((0, width), dtype=np.float16))
    assert isinstance(index, CompressedIndex)
    return index


@dataclass(frozen=True)
class _Shard:
    """Rows of a segment that are encoded together, or taken from the former index."""

    segment: int
    start: int
    end: int
    is_known: bool


def _shards(segments: Sequence[Segment], taken: "_TakenCodes | None") -> list[_Shard]:
    """Segments are known to the former index as a whole, or are encoded as a whole."""
    shards = []
    for number, segment in enumerate(segments):
        is_known = taken is not None and taken.has(segment.chunks)
        for start in range(0, len(segment.keys), BLOCK):
            shards.append(_Shard(number, start, min(start + BLOCK, len(segment.keys)), is_known))
    return shards


def _codes(
    begun: Path,
    segments: Sequence[Segment],
    taken: "_TakenCodes | None",
    executor: Executor,
    progress: Progress,
) -> Iterator[np.ndarray]:
    """The codes of every shard, in order; those that are new are made wherever the executor runs."""
    shards = _shards(segments, taken)
    new = [shard for shard in shards if not shard.is_known]
    total = sum(shard.end - shard.start for shard in new)
    named = (
        (
            f"{shard.segment:06d}-{shard.start:09d}",
            (str(segments[shard.segment].path / KEYS), shard.start, shard.end),
        )
        for shard in new
    )
    # By these a worker on another machine sees that it has the same training and the same keys.
    sources = {shard.segment: segments[shard.segment].path / KEYS for shard in new}
    executor.needs(None, *sorted((begun / TRAINED).glob("*")), *sources.values())
    run: Callable[[Iterable[tuple[str, int, int]]], Iterable[np.ndarray]]
    run = partial(executor.map, partial(_encode, str(begun / TRAINED)))
    made = iter(Parts(begun / SHARDS, ARRAY).map(run, named))
    done = 0
    for shard in shards:
        if shard.is_known:
            assert taken is not None
            yield taken.of(segments[shard.segment].chunks[shard.start : shard.end])
        else:
            yield next(made)
            done += shard.end - shard.start
            progress(done, total)


class _TakenCodes:
    """The codes of a former index, by chunk."""

    def __init__(self, former: JointIndex) -> None:
        assert isinstance(former.index, CompressedIndex)
        self._codes = former.index.codes()
        chunks = former.chunks()
        self._order = np.argsort(chunks)
        self._chunks = chunks[self._order]

    def has(self, chunks: np.ndarray) -> bool:
        """Whether it has all of these chunks."""
        places = np.minimum(np.searchsorted(self._chunks, chunks), len(self._chunks) - 1)
        return bool((self._chunks[places] == chunks).all())

    def of(self, chunks: np.ndarray) -> np.ndarray:
        return self._codes[self._order[np.searchsorted(self._chunks, chunks)]]


def _encode(trained: str, shard: tuple[str, int, int]) -> np.ndarray:
    """The codes of some keys of a file, in whatever process."""
    path, start, end = shard
    keys = np.load(path, mmap_mode="r")
    return _opened_in_worker(trained, keys.shape[1]).encode(keys[start:end])


# One for each worker process, kept from shard to shard.
@lru_cache(maxsize=1)
def _opened_in_worker(trained: str, width: int) -> CompressedIndex:
    if multiprocessing.parent_process() is not None:
        faiss.omp_set_num_threads(1)  # there is a worker a core
    return _opened(Path(trained), width)
