"""A datastore's life as a script that can be killed anywhere; it goes on after the last committed change.

python -m tests.retrieval.changes WORK DATASTORE ENCODER [EXACT_BELOW]
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path

from retro.corpus.folder import CorpusFolder
from retro.retrieval.datastore import Datastore, merging, segment_writer
from tests.retrieval.datastores import build, make_documents

BATCH = [f"Batch text number {number}: anyone may share this software. " * 4 for number in range(6)]
STEPS: list[Callable[[Datastore], object]] = [
    lambda datastore: datastore.add(make_documents(BATCH, "first")),
    lambda datastore: datastore.delete(ids=["first-1", "first-3", "02.txt"]),
    lambda datastore: datastore.compact(),
    lambda datastore: datastore.add(make_documents(BATCH[:2], "second")),
    lambda datastore: datastore.delete(titles=["Title 0"]),
    lambda datastore: datastore.add(make_documents(BATCH[2:], "third")),
    lambda datastore: datastore.delete(sources=["second"]),
    lambda datastore: datastore.compact(),
]


def live(
    work: Path,
    path: Path,
    encoder: str,
    told: Callable[[str], None] = lambda line: None,
    exact_below: int = 50_000,
) -> Datastore:
    """Build the datastore and make the changes that were not made yet."""
    segment_writer.SHARD = 32
    merging.MIN_JOINED = 300
    datastore = build(CorpusFolder(work), path, encoder, segment_chunks=200, exact_below=exact_below)
    before = sum(version.action not in ("build", "merge") for version in datastore.ledger.versions())
    told(f"went on after {before} changes")
    for step in STEPS[before:]:
        step(datastore)
        told(f"committed {datastore.snapshot().version.number}")
    datastore.compact()  # the last one may have been killed after its commit, before its files were gone
    return datastore


def tell(line: str) -> None:
    print(f"{time.monotonic():.3f} {line}", flush=True)  # noqa: T201


if __name__ == "__main__":
    tell("ready")
    live(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], tell, *map(int, sys.argv[4:]))
    tell("finished")
