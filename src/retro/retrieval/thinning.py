"""Neighbours in a random part of the datastore, without building it: how results change with the size of the memory.

Whole documents are kept or left out, as a smaller datastore would hold fewer documents, and the paper counts its parts in tokens.
Keeping single chunks would leave a piece of every document, whose neighbours in the text, the continuations, stay readable.
"""

import copy
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from retro.corpus.tokens import TokenStore
from retro.errors import ConfigError
from retro.retrieval.chunks import ChunkTable, content_hashes
from retro.retrieval.datastore.datastore import Datastore
from retro.retrieval.datastore.segment import Segment
from retro.retrieval.datastore.snapshot import Snapshot
from retro.retrieval.index.exact import DenseIndex
from retro.retrieval.index import Entries
from retro.retrieval.neighbours import QUERIES, Neighbours, query_entries, search_other_documents, write_found
from retro.stages.progress import Progress, at_step
from retro.stages.stage import Artifact, Stage, run_stage


def thinned_neighbours(
    store: TokenStore,
    datastore: Datastore,
    folder: Path,
    fractions: Sequence[float],
    k: int = 0,
    seed: int = 0,
    progress: Progress | None = None,
) -> dict[float, Neighbours]:
    """The k exactly nearest chunks, of other documents, in each part of the datastore; 0: as many as the datastore's config saves.

    The store's chunks are embedded once. What is left here are folders of neighbours like any other, one for each fraction, k and seed.
    """
    snapshot, k = datastore.snapshot(), k or datastore.config.num_neighbours
    inputs = {"tokens": store.fingerprint, "datastore": snapshot.version.lineage}
    command = "the same command again"
    table, found = ChunkTable(store, datastore.chunk_len), {}
    embed = partial(_write_queries, table, datastore, snapshot, progress)
    queries = run_stage(
        folder / "queries", "queries", {"chunk_len": datastore.chunk_len}, inputs, embed, command
    )
    for fraction in fractions:
        config = {"num_neighbours": k, "chunk_len": datastore.chunk_len, "fraction": fraction, "seed": seed}
        search = partial(
            _search, queries, table, thin(snapshot, fraction, seed), k, _named(progress, f"in {fraction:.4g}")
        )
        artifact = run_stage(
            folder / f"{fraction:.6g}-{k}-{seed}", "neighbours", config, inputs, search, command
        )
        found[fraction] = Neighbours(artifact, store, datastore)
    return found


def thin(snapshot: Snapshot, fraction: float, seed: int = 0) -> Snapshot:
    """The snapshot with only a part of its documents, searched exactly by their keys.

    A document is kept if a hash of its text is below the fraction: smaller parts lie within larger ones, and copies stay together.
    """
    if not 0.0 < fraction <= 1.0:
        raise ConfigError(f"the fraction is {fraction}; expected 0 < fraction ≤ 1")
    gone = [
        segment.documents["number"][
            ~(live & (uniform(segment.documents["content_hash"], seed) < fraction))
        ].tolist()
        for segment, live in zip(snapshot.segments, snapshot.live, strict=True)
    ]
    return Snapshot(
        snapshot.version,
        [_exact(segment) for segment in snapshot.segments],
        gone,
        snapshot.chunk_len,
        snapshot.pad_id,
    )


def uniform(hashes: np.ndarray, seed: int) -> np.ndarray:
    """A number in [0, 1) for each 64-bit hash; another seed gives others (the finaliser of splitmix64)."""
    mixed = hashes.astype(np.uint64) + np.uint64((seed + 1) * 0x9E3779B97F4A7C15 % 2**64)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    numbers: np.ndarray = ((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(11)) / 2.0**53
    return numbers


def _exact(segment: Segment) -> Segment:
    """The same segment with exact search over the same keys on disk."""
    if not isinstance(segment.index, DenseIndex):
        raise ConfigError(
            f"{segment.path} is searched by {segment.index.kind}; expected an index over keys to thin the datastore"
        )
    segment = copy.copy(segment)
    segment.index = DenseIndex(segment.keys.shape[1])
    segment.index.add(Entries(segment.keys))
    return segment


def _write_queries(
    table: ChunkTable, datastore: Datastore, snapshot: Snapshot, progress: Progress | None, stage: Stage
) -> None:
    own = content_hashes(table.store)[table.documents]
    for start in range(0, len(table), QUERIES):
        chunks = np.arange(start, min(start + QUERIES, len(table)))
        if not stage.has(_name(start)):
            parts = list(query_entries(table, own, datastore, snapshot, chunks))
            with stage.write(_name(start)) as file:
                keys = np.concatenate([entries.keys for _, entries in parts])
                np.savez(
                    file, allow_pickle=False, chunks=np.concatenate([part for part, _ in parts]), keys=keys
                )
        if progress:
            progress(int(chunks[-1]) + 1, len(table), "embedding")


def _search(
    queries: Artifact,
    table: ChunkTable,
    snapshot: Snapshot,
    k: int,
    progress: Progress | None,
    stage: Stage,
) -> None:
    own = content_hashes(table.store)[table.documents]
    chunks, distances = (
        np.full((len(table), k), -1, dtype=np.int64),
        np.full((len(table), k), np.inf, dtype=np.float32),
    )
    for start in range(0, len(table), QUERIES):
        with np.load(queries.file(_name(start)), allow_pickle=False) as block:
            asked, keys = block["chunks"], block["keys"]
        if len(asked) and len(snapshot):
            distances[asked], chunks[asked] = search_other_documents(snapshot, Entries(keys), own[asked], k)
        if progress:
            progress(min(start + QUERIES, len(table)), len(table))
    write_found(stage, table, chunks, distances)
    stage.counts.update(documents=snapshot.num_documents, tokens=snapshot.num_tokens(), keys=len(snapshot))


def _name(start: int) -> str:
    return f"{start // QUERIES:06d}.npz"


def _named(progress: Progress | None, step: str) -> Progress | None:
    return at_step(progress, step) if progress else None
