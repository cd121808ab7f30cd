"""Neighbours in a random part of the datastore, without building it: what the size of the memory brings.

Whole documents are kept or left out, as a smaller datastore would hold fewer documents; the paper counts
its parts in tokens. Keeping single chunks would leave a piece of every document, and the continuations,
which are the next chunks of the text, would stay readable.
"""

import copy
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from retro.corpus.tokens import TokenStore
from retro.errors import ConfigError
from retro.retrieval.blocks import block_of, query_entries
from retro.retrieval.chunks import ChunkTable, content_hashes
from retro.retrieval.datastore import Datastore
from retro.retrieval.datastore.segment import Segment
from retro.retrieval.datastore.snapshot import Snapshot
from retro.retrieval.finding import QUERIES, highest_chunk
from retro.retrieval.index import Entries
from retro.retrieval.index.exact import DenseIndex
from retro.retrieval.neighbours import FoundFiles, Neighbours
from retro.retrieval.other_documents import search_other_documents
from retro.stages.parts import ARRAYS, Parts
from retro.stages.progress import Progress, at_step, no_progress
from retro.stages.stage import Artifact, Stage, run_stage

COMMAND = "the same command again"


def thinned_neighbours(
    store: TokenStore,
    datastore: Datastore,
    folder: Path,
    fractions: Sequence[float],
    k: int = 0,
    seed: int = 0,
    progress: Progress = no_progress,
) -> dict[float, Neighbours]:
    """The k exactly nearest chunks, of other documents, in each part of the datastore.

    With k 0 it is as many as the datastore's config saves. The store's chunks are embedded once. What is
    left are folders of neighbours like any other, one for each fraction, k and seed.
    """
    snapshot = datastore.snapshot()
    k = k or datastore.config.num_neighbours
    inputs = {"tokens": store.fingerprint, "datastore": snapshot.version.lineage}
    table = ChunkTable(store, datastore.chunk_len)
    embed = partial(_write_queries, table, datastore, snapshot, at_step(progress, "embedding"))
    queries = run_stage(
        folder / "queries", "queries", {"chunk_len": datastore.chunk_len}, inputs, embed, COMMAND
    )
    found: dict[float, Neighbours] = {}
    for fraction in fractions:
        config = {"num_neighbours": k, "chunk_len": datastore.chunk_len, "fraction": fraction, "seed": seed}
        listener = at_step(progress, f"in {fraction:.4g}")
        search = partial(_search, queries, table, thin(snapshot, fraction, seed), k, listener)
        path = folder / f"{fraction:.6g}-{k}-{seed}"
        artifact = run_stage(path, "neighbours", config, inputs, search, COMMAND)
        found[fraction] = Neighbours(artifact, store, datastore)
    return found


def thin(snapshot: Snapshot, fraction: float, seed: int = 0) -> Snapshot:
    """The snapshot with only a part of its documents, searched exactly by their keys.

    A document is kept if a hash of its text is below the fraction: smaller parts lie within larger ones,
    and copies stay together.
    """
    if not 0.0 < fraction <= 1.0:
        raise ConfigError(f"the fraction is {fraction}; expected 0 < fraction ≤ 1")
    gone = []
    for segment, live in zip(snapshot.segments, snapshot.live, strict=True):
        # Comparing one number with every fraction nests the parts: what a half keeps, the whole keeps too.
        kept = live & (uniform(segment.documents["content_hash"], seed) < fraction)
        gone.append(segment.documents["number"][~kept].tolist())
    segments = [_exact(segment) for segment in snapshot.segments]
    return Snapshot(snapshot.version, segments, gone, snapshot.chunk_len, snapshot.pad_id)


def uniform(hashes: np.ndarray, seed: int) -> np.ndarray:
    """A number in [0, 1) for each 64-bit hash; another seed gives others (the finaliser of splitmix64)."""
    mixed = hashes.astype(np.uint64) + np.uint64((seed + 1) * 0x9E3779B97F4A7C15 % 2**64)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    # The upper 53 bits are as many as a double holds.
    numbers: np.ndarray = ((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(11)) / 2.0**53
    return numbers


def _exact(segment: Segment) -> Segment:
    """The same segment with exact search over the same keys on disk."""
    if not isinstance(segment.index, DenseIndex):
        raise ConfigError(
            f"{segment.path} is searched by {segment.index.kind}; expected an index over keys to thin the "
            "datastore"
        )
    # A shallow copy: tokens and keys are shared, only the index is another.
    segment = copy.copy(segment)
    segment.index = DenseIndex(segment.keys.shape[1])
    segment.index.add(Entries(segment.keys))
    return segment


def _write_queries(
    table: ChunkTable, datastore: Datastore, snapshot: Snapshot, progress: Progress, stage: Stage
) -> None:
    """Chunks with text and their keys, in blocks; these are the stage's result."""
    hashes = content_hashes(table.store)
    parts = Parts(stage.path, ARRAYS)

    def embed(chunks: np.ndarray) -> dict[str, np.ndarray]:
        found = list(query_entries(block_of(table, hashes, chunks), datastore, snapshot))
        return {
            "chunks": np.concatenate([np.zeros(0, dtype=np.int64), *(chunks[asked] for asked, _ in found)]),
            "keys": np.concatenate([entries.keys for _, entries in found] or [np.zeros((0, 0))]),
        }

    for start in range(0, len(table), QUERIES):
        chunks = np.arange(start, min(start + QUERIES, len(table)))
        parts.keep(_name(start), partial(embed, chunks))
        progress(int(chunks[-1]) + 1, len(table))


def _search(
    queries: Artifact, table: ChunkTable, snapshot: Snapshot, k: int, progress: Progress, stage: Stage
) -> None:
    """The neighbours of all chunks; finished blocks of them are kept until the stage is finished."""
    own = content_hashes(table.store)[table.documents]
    embedded = Parts(queries.path, ARRAYS)
    blocks = Parts(stage.scratch("blocks"), ARRAYS)

    def search(start: int) -> dict[str, np.ndarray]:
        asked = embedded.read(_name(start))
        entries = Entries(asked["keys"])
        found_distances, found = search_other_documents(snapshot, entries, own[asked["chunks"]], k)
        return {"asked": asked["chunks"], "distances": found_distances, "chunks": found}

    with FoundFiles(stage, table, k, highest_chunk(snapshot)) as files:
        for start in range(0, len(table), QUERIES):
            end = min(start + QUERIES, len(table))
            block = blocks.keep(_name(start), partial(search, start))
            chunks = np.full((end - start, k), -1, dtype=np.int64)
            distances = np.full((end - start, k), np.inf, dtype=np.float32)
            chunks[block["asked"] - start] = block["chunks"]
            distances[block["asked"] - start] = block["distances"]
            files.write(np.arange(start, end), chunks, distances)
            progress(end, len(table))
    stage.counts.update(documents=snapshot.num_documents, tokens=snapshot.num_tokens(), keys=len(snapshot))


def _name(start: int) -> str:
    return f"{start // QUERIES:06d}"
