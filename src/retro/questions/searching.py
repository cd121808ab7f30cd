"""The passages that a datastore has for many questions: found block by block, once, and kept.

Whoever reads the same search reads the same passages, though the datastore may have changed since.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from retro.corpus.tokens import TokenStore
from retro.questions.answering import FromBm25, Source, by_both_ranks, from_datastore
from retro.questions.examples import Question
from retro.retrieval.chunks import content_hashes
from retro.retrieval.datastore import Datastore
from retro.retrieval.retriever import Passage
from retro.scoring.evaluate import VERSION
from retro.stages.files import make_fingerprint
from retro.stages.parts import ROWS, Parts
from retro.stages.progress import Progress, no_progress
from retro.stages.stage import Artifact, Stage, open_artifact, run_stage

BLOCK = 64
"""Questions that are kept together."""
SEARCHES: dict[str, Callable[[Datastore, int, Sequence[str]], Source]] = {
    "dense": from_datastore,
    "bm25": FromBm25,
    "hybrid": by_both_ranks,
}
Found = Parts[list[dict[str, Any]]]
"""What was found, a block of questions in each part."""


def search_passages(
    questions: Sequence[Question],
    datastore: Callable[[], Datastore],
    path: Path,
    search: str,
    k: int,
    command: str,
    progress: Progress = no_progress,
    held_out: Sequence[TokenStore] = (),
) -> Artifact:
    """The first k passages of each question, or more if more were found before; nothing `held_out` is found.

    A finished search of the same questions is opened, though the datastore has changed since.
    """
    fingerprint = make_fingerprint([asdict(question) for question in questions])
    if path.exists():
        there = open_artifact(path, "passages", command)
        if there.inputs["questions"] == fingerprint and there.config["k"] >= k:
            return there
    version = datastore().snapshot().version
    inputs = {"questions": fingerprint, "datastore": version.lineage}
    for store in held_out:
        inputs[f"without {store.artifact.path.name}"] = store.fingerprint

    def work(stage: Stage) -> None:
        _search(questions, datastore(), search, k, held_out, stage, progress)
        stage.counts[VERSION] = version.number

    return run_stage(path, "passages", {"search": search, "k": k}, inputs, work, command, renew=True)


def _search(
    questions: Sequence[Question],
    datastore: Datastore,
    search: str,
    k: int,
    held_out: Sequence[TokenStore],
    stage: Stage,
    progress: Progress,
) -> None:
    parts = Parts(stage.path, ROWS)
    source: Source | None = None
    done = 0
    for name, block in blocks(questions):
        if not parts.has(name):
            # Made when it is first needed: BM25 reads the whole datastore for its index.
            source = source or SEARCHES[search](datastore, k, documents_of(held_out, datastore))
            rows = [{"passages": [asdict(passage) for passage in row]} for row in source(block)]
            parts.write(name, rows)
        done += len(block)
        progress(done, len(questions), f"searching, {search}")


def blocks(questions: Sequence[Question]) -> list[tuple[str, Sequence[Question]]]:
    """The questions in blocks, each with its name."""
    starts = range(0, len(questions), BLOCK)
    return [(f"{number:05d}", questions[start : start + BLOCK]) for number, start in enumerate(starts)]


def passages_of(row: dict[str, Any], number: int | None = None) -> list[Passage]:
    """The first passages that were found for a question."""
    return [Passage(**passage) for passage in row["passages"][:number]]


def found_passages(artifact: Artifact, questions: Sequence[Question]) -> list[list[Passage]]:
    """All that a finished search has found, in the order of its questions."""
    parts: Found = Parts(artifact.path, ROWS)
    return [passages_of(row) for name, _ in blocks(questions) for row in parts.read(name)]


def documents_of(stores: Sequence[TokenStore], datastore: Datastore) -> list[str]:
    """The ids of the datastore's documents that have the text of one in these stores."""
    if not stores:
        return []
    hashes = np.concatenate([content_hashes(store) for store in stores])
    snapshot = datastore.snapshot()
    numbers: list[int] = []
    for segment, live in zip(snapshot.segments, snapshot.live, strict=True):
        there = live & np.isin(segment.documents["content_hash"], hashes)
        numbers += segment.documents["number"][there].tolist()
    rows = datastore.ledger.documents(numbers, snapshot.version.number)
    return [row["id"] for row in rows.values()]
