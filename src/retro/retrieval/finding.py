"""Finding the neighbours of all chunks of a token store, block by block, wherever that is done.

A block holds all that its search needs, so a worker opens the datastore and nothing else. Found blocks are
kept; memory holds those under way, and a few numbers a chunk. Neighbours of an earlier version of the
datastore, or of other tokens, are brought up to date: only what the changes make necessary is searched.
"""

import json
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from retro.config import FILE_BYTES
from retro.corpus.tokens import TokenStore
from retro.retrieval.blocks import Block, BlockSearch, block_of
from retro.retrieval.chunks import ChunkTable, content_hashes
from retro.retrieval.datastore import Datastore
from retro.retrieval.datastore.ledger import CompactedError
from retro.retrieval.datastore.snapshot import Snapshot
from retro.retrieval.neighbours import (
    COMMAND,
    DOCUMENTS,
    FoundFiles,
    Neighbours,
    load_found,
    recorded_version,
)
from retro.stages.executor import Executor, LocalExecutor
from retro.stages.files import locked
from retro.stages.hints import with_paths
from retro.stages.parts import ARRAYS, Parts
from retro.stages.progress import Progress, no_progress
from retro.stages.shards import Rows
from retro.stages.stage import PLAN, Artifact, Stage, open_artifact, run_stage

QUERIES = 8192
"""Chunks that are searched together, and kept together if the work is interrupted."""


def find_neighbours(
    store: TokenStore,
    datastore: Datastore,
    path: Path,
    progress: Progress = no_progress,
    executor: Executor | None = None,
    file_bytes: int = FILE_BYTES,
) -> Neighbours:
    """Find the neighbours of every chunk, without chunks of the same document or of an equal one.

    Neighbours of an earlier version or of other tokens are brought up to date: of the documents that had
    theirs, a chunk that lost one is searched again, and the others look through what was added; new
    documents are searched in full. Interrupted, it goes on behind the last finished block of chunks.
    `file_bytes` bounds the files of what is found; how they are cut is no setting.
    """
    place = store.artifact.path
    command = with_paths("retro ingest SOURCE --out WORK", place)
    datastore.tokenizer.expect(store.tokenizer_fingerprint, str(place), command)
    executor = executor or LocalExecutor(1)
    while True:
        version = datastore.snapshot().version
        try:
            found = _find(store, datastore, path, progress, executor, file_bytes)
            return Neighbours(found, store, datastore)
        except CompactedError:
            # The newest version can be asked. If it is the same, files of it are missing.
            if datastore.ledger.version() == version:
                raise


def _find(
    store: TokenStore,
    datastore: Datastore,
    path: Path,
    progress: Progress,
    executor: Executor,
    file_bytes: int,
) -> Artifact:
    snapshot = datastore.snapshot()
    inputs = {"tokens": store.fingerprint, "datastore": snapshot.version.lineage}
    config = {"num_neighbours": datastore.config.num_neighbours, "chunk_len": datastore.chunk_len}
    former = former_of(path)
    if path.exists() and open_artifact(path, "neighbours", COMMAND).inputs != inputs:
        shutil.rmtree(former, ignore_errors=True)
        path.replace(former)
    # They would make the stage refuse to go on, since it was planned for other inputs.
    _drop_outdated(path.with_name(path.name + ".partial"), inputs)

    def work(stage: Stage) -> None:
        finding = _Finding(store, datastore, snapshot, file_bytes)
        if former.exists():
            finding.take_over(open_artifact(former, "neighbours", COMMAND))
        finding.finish(stage, progress, executor)

    artifact = run_stage(path, "neighbours", config, inputs, work, COMMAND)
    shutil.rmtree(former, ignore_errors=True)
    return artifact


def former_of(path: Path) -> Path:
    """Where neighbours lie while they are brought up to date."""
    return path.with_name(path.name + ".former")


def _drop_outdated(partial: Path, inputs: dict[str, str]) -> None:
    """Remove unfinished neighbours of another version or of other tokens: nothing in them is of use now."""
    plan = partial / PLAN
    if plan.exists() and json.loads(plan.read_text())["inputs"] != inputs:
        with locked(partial):
            shutil.rmtree(partial)


class _Finding:
    """Neighbours on their way: what is known already, and what is still to be searched."""

    def __init__(self, store: TokenStore, datastore: Datastore, snapshot: Snapshot, file_bytes: int) -> None:
        self.datastore = datastore
        self.file_bytes = file_bytes
        self.snapshot = snapshot
        self.k = datastore.config.num_neighbours
        self.table = ChunkTable(store, datastore.chunk_len)
        self.hashes = content_hashes(store)
        self.known = np.zeros(len(self.table), dtype=bool)
        """Chunks whose former neighbours are all there still; they only look through what was added since."""
        self.rows = np.zeros(0, dtype=np.int64)
        """The row of every known chunk among the former ones."""
        self.former: tuple[Rows, Rows] | None = None
        """The chunks and distances that were found before."""
        self.added: list[int] = []
        """Documents that were added since the former neighbours were found."""

    def take_over(self, former: Artifact) -> None:
        """Use the neighbours of documents that were searched before, unless one of them is gone."""
        version = recorded_version(former, self.datastore)
        config = {"num_neighbours": self.k, "chunk_len": self.table.chunk_len}
        if version is None or former.config != config:
            return
        self.former = load_found(former)
        former.expect_whole(DOCUMENTS)
        firsts = _look_up(self.hashes, np.load(former.file(DOCUMENTS)))
        # An equal text has equal chunks, wherever it stood among the former tokens.
        own = np.repeat(np.where(firsts >= 0, firsts - self.table.first[:-1], 0), self.table.num_chunks)
        self.known = np.repeat(firsts >= 0, self.table.num_chunks)
        self.rows = np.where(self.known, own + np.arange(len(self.table)), -1)
        for part in _parts(np.flatnonzero(self.known)):
            chunks, _ = self._of_former(part)
            lost = ((chunks >= 0) & ~self.snapshot.is_live(chunks)).any(axis=1)
            self.known[part[lost]] = False
        self.added = self.datastore.ledger.added_since(version, self.snapshot.version.number)

    def _of_former(self, part: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The former neighbours of known chunks, and their distances."""
        assert self.former is not None
        chunks, distances = self.former
        return np.asarray(chunks[self.rows[part]], dtype=np.int64), np.asarray(distances[self.rows[part]])

    def finish(self, stage: Stage, progress: Progress, executor: Executor) -> None:
        """Search what is missing, block by block; blocks that an interrupted run finished are read."""
        blocks = [("all", part) for part in _parts(np.flatnonzero(~self.known))]
        kept = _parts(np.flatnonzero(self.known))
        if self.added:
            blocks += [("added", part) for part in kept]
            kept = []
        total = sum(len(part) for _, part in blocks)
        done = 0
        parts = Parts(stage.scratch("blocks"), ARRAYS)
        search = BlockSearch(self.datastore, self.snapshot, self.k, self.added)
        if not self.snapshot.is_sendable:
            executor = LocalExecutor(1)  # a search engine does the work, wherever it is asked from
        executor.needs(None, *search.files.paths())
        run: Any = partial(executor.map, search)
        with FoundFiles(stage, self.table, self.k, highest_chunk(self.snapshot), self.file_bytes) as files:
            for part in kept:
                files.write(part, *self._of_former(part))
            for (_, part), found in zip(blocks, parts.map(run, self._named(blocks)), strict=True):
                files.write(part, found["chunks"], found["distances"])
                done += len(part)
                progress(done, total)
        searched = int((~self.known).sum())
        stage.counts.update(searched=searched, looked_through_added=total - searched)

    def _named(self, blocks: list[tuple[str, np.ndarray]]) -> Iterator[tuple[str, Block]]:
        for among, part in blocks:
            # The name says which chunks it holds, so that blocks of another size are never mistaken for
            # these.
            name = f"{among}-{part[0]:09d}-{part[-1]:09d}-{len(part)}"
            known = self._of_former(part) if among == "added" else None
            yield name, block_of(self.table, self.hashes, part, self.k, known)


def _look_up(hashes: np.ndarray, firsts: np.ndarray) -> np.ndarray:
    """The first former chunk of every document, by its content hash; −1 where it was not there."""
    order = np.argsort(firsts[:, 0], kind="stable")
    known = firsts[order, 0]
    # Of several equal documents the last: the place before the first one that is greater.
    places = np.searchsorted(known, hashes, side="right") - 1
    is_known = (places >= 0) & (known[np.maximum(places, 0)] == hashes)
    return np.where(is_known, firsts[order[np.maximum(places, 0)], 1].astype(np.int64), -1)


def highest_chunk(snapshot: Snapshot) -> int:
    """The largest number of a chunk that can be found."""
    return max((int(segment.chunks.max(initial=0)) for segment in snapshot.segments), default=0)


def _parts(chunks: np.ndarray) -> list[np.ndarray]:
    return [chunks[start : start + QUERIES] for start in range(0, len(chunks), QUERIES)]
