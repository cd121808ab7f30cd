"""Looking a datastore over: every checksum, the ledger, and a random sample of keys made anew."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from retro.errors import ArtifactError, ConfigError
from retro.retrieval.datastore.datastore import Datastore
from retro.retrieval.datastore.index_table import IndexRow
from retro.retrieval.datastore.joint import INDEXES
from retro.retrieval.datastore.ledger import CompactedError, SegmentRow
from retro.retrieval.datastore.reader import SEGMENTS
from retro.retrieval.datastore.snapshot import Snapshot
from retro.stages.files import file_checksum
from retro.stages.hints import with_paths
from retro.stages.progress import Progress, no_progress
from retro.wording import counted

TOLERANCE = 2e-2
"""How far a key made anew may be from the stored one, relative to its length.

Both float16 and batches of another shape round.
"""


@dataclass(frozen=True)
class Verified:
    """What was looked at; all of it was sound."""

    version: int
    files: int
    documents: int
    keys: int
    recomputed: int


def verify(
    datastore: Datastore, sample: int = 100, seed: int = 0, progress: Progress = no_progress
) -> Verified:
    """Check the ledger, every file against its checksum, the counts, and `sample` keys against their text."""
    for name, number in (("sample", sample), ("seed", seed)):
        if number < 0:
            raise ConfigError(f"{name} is {number}; expected 0 or more")
    while True:
        try:
            return _verify_newest(datastore, sample, seed, progress)
        except CompactedError:
            continue  # while it was being read; the newest version has other files


def _verify_newest(datastore: Datastore, sample: int, seed: int, progress: Progress) -> Verified:
    datastore.ledger.check()
    snapshot = datastore.snapshot()
    number = snapshot.version.number
    with datastore.ledger.at(number):
        rows = datastore.ledger.segments(number)
        indexes = datastore.ledger.indexes()
        live = datastore.ledger.num_documents(number)
    if live != snapshot.num_documents:
        raise ArtifactError(
            f"{datastore.path} names {counted(live, 'document')} and holds {snapshot.num_documents}; "
            "expected as many; restore a copy"
        )
    checked = _check_files(datastore, rows, indexes, number, progress)
    return Verified(number, checked, live, len(snapshot), _recompute(datastore, snapshot, sample, seed))


def _check_files(
    datastore: Datastore, rows: list[SegmentRow], indexes: list[IndexRow], version: int, progress: Progress
) -> int:
    """Compare every file of segments and indexes with its checksum; how many there were."""
    folders = [(Path(SEGMENTS) / row.name, row.files) for row in rows]
    folders += [(Path(INDEXES) / index.name, index.files) for index in indexes]
    files = [(folder / name, checksum) for folder, held in folders for name, checksum in held.items()]
    for number, (name, checksum) in enumerate(files, start=1):
        file = datastore.path / name
        if not file.is_file() or file_checksum(file) != checksum:
            with datastore.ledger.at(version):  # a compaction removes files, which is no fault
                found = "is missing" if not file.is_file() else "does not match its checksum"
            raise ArtifactError(
                f"{file} {found}; expected what was committed; restore it, or remove the datastore and "
                f"run: {with_paths('retro build WORK', datastore.path)}"
            )
        progress(number, len(files))
    return len(files)


def _recompute(datastore: Datastore, snapshot: Snapshot, sample: int, seed: int) -> int:
    """Embed a random sample of chunks again and compare; how many there were."""
    rng = np.random.default_rng(seed)
    parts = zip(snapshot.segments, snapshot.live, strict=True)
    chunks = np.concatenate(
        [np.zeros(0, dtype=np.int64), *(segment.chunks[live[segment.places]] for segment, live in parts)]
    )
    # Sorted, so that stored keys come in the order of the chunks that are embedded below.
    picked = np.sort(rng.choice(chunks, size=min(sample, len(chunks)), replace=False))
    if not len(picked):
        return 0
    tokens = snapshot.values(picked, datastore.chunk_len)
    _, stored = snapshot.keys(picked)
    fresh = datastore.embedder.embed([datastore.tokenizer.decode(row.tolist()) for row in tokens])
    lengths = np.maximum(np.linalg.norm(fresh, axis=1), 1e-6)
    apart = np.linalg.norm(fresh - stored.astype(np.float32), axis=1) / lengths
    if (apart > TOLERANCE).any():
        chunk = int(picked[np.argmax(apart)])
        raise ArtifactError(
            f"the key of chunk {chunk} in {datastore.path} is not that of its text "
            f"(apart by {apart.max():.3f}); expected at most {TOLERANCE}; "
            f"remove the datastore and run: {with_paths('retro build WORK', datastore.path)}"
        )
    return len(picked)
