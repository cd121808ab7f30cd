"""Writing a segment: tokens, then keys shard by shard, then the index.

Interrupted, it goes on behind the last finished shard.
"""

import json
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from retro.config import DatastoreConfig
from retro.corpus.tokenizers.tokenizer import Tokenizer
from retro.retrieval.chunks import ChunkGrid, ChunkTokens, short_hash
from retro.retrieval.datastore.ledger import SegmentRow
from retro.retrieval.datastore.segment import (
    DOCUMENT,
    DOCUMENTS,
    INDEX,
    KEYS,
    ROWS,
    TOKENS,
    Segment,
    document_grid,
)
from retro.retrieval.index import Entries, make_index, open_index
from retro.retrieval.index.exact import DenseIndex
from retro.retrieval.index.tuning import tune
from retro.stages.files import atomic_write, file_checksum, flush_folder, write_json
from retro.stages.parts import ARRAY, Parts
from retro.stages.progress import Progress, no_progress
from retro.wording import counted

SHARD = 2048
"""Chunks embedded between two saves."""
PLAN, SHARDS = "plan.json", "shards"
EXACT = "exact"
EmbedShards = Callable[[Iterable[list[str]]], Iterator[np.ndarray]]
"""Keys of each list of texts, as float16, in order."""


@dataclass(frozen=True)
class Piece:
    """A document on its way into a segment: its row of the ledger, and its tokens with the end token."""

    row: dict[str, Any]
    tokens: np.ndarray


@dataclass
class Numbering:
    """The numbers that the next document, chunk and segment will get; none is ever given twice."""

    document: int = 0
    chunk: int = 0
    segment: int = 0
    index: int = 0
    """Of those over several segments."""


@dataclass(frozen=True)
class Written:
    """A finished segment and the ledger's rows of its documents."""

    segment: SegmentRow
    rows: list[dict[str, Any]]


def write_segment(
    folder: Path,
    pieces: Iterable[Piece],
    numbering: Numbering,
    config: DatastoreConfig,
    tokenizer: Tokenizer,
    embed: EmbedShards,
    progress: Progress = no_progress,
    is_linear: bool = False,
) -> Written:
    """Write the pieces as the next segment below `folder`, and move the numbering on.

    A linear segment is searched key by key until something else finds its keys, whatever the config says.
    """
    name, partial = _begin(folder, numbering)
    rows, documents = _write_documents(partial, pieces, numbering, config, tokenizer.dtype)
    # Shards are known by their number alone, so those of other text must go before any is read.
    if _changed(partial):
        shutil.rmtree(partial / SHARDS, ignore_errors=True)
    grid = _grid(partial, documents, config, tokenizer)
    _write_keys(partial, _embedded(partial, _texts(grid, tokenizer), len(grid), embed, progress))
    kind = EXACT if is_linear else config.index
    return _finish(partial, folder / name, rows, documents, config, tokenizer, kind, progress=progress)


def copy_segment(
    folder: Path,
    pieces: Iterable[Piece],
    kept: Iterable[tuple[np.ndarray, np.ndarray]],
    numbering: Numbering,
    config: DatastoreConfig,
    tokenizer: Tokenizer,
    is_linear: bool = False,
    begins_with: Segment | None = None,
) -> Written:
    """Write pieces whose rows carry their numbers already, with the keys that they have: nothing is embedded.

    `kept` are the chunks that have keys, as numbers of the new segment's grid, and the keys. If all of a
    segment comes first, as it is, its index is extended by the rest.
    """
    name, partial = _begin(folder, numbering)
    rows, documents = _write_documents(partial, pieces, None, config, tokenizer.dtype)
    _write_keys(partial, kept)
    kind = EXACT if is_linear else config.index
    return _finish(partial, folder / name, rows, documents, config, tokenizer, kind, begins_with)


def _grid(partial: Path, documents: np.ndarray, config: DatastoreConfig, tokenizer: Tokenizer) -> ChunkGrid:
    tokens = np.memmap(partial / TOKENS, dtype=tokenizer.dtype, mode="r")
    return document_grid(tokens, documents, config.chunk_len, tokenizer.pad_id)


def _begin(folder: Path, numbering: Numbering) -> tuple[str, Path]:
    name = f"{numbering.segment:06d}"
    numbering.segment += 1
    partial = folder / f"{name}.partial"
    partial.mkdir(parents=True, exist_ok=True)
    return name, partial


def _write_documents(
    partial: Path,
    pieces: Iterable[Piece],
    numbering: Numbering | None,
    config: DatastoreConfig,
    dtype: np.dtype,
) -> tuple[list[dict[str, Any]], np.ndarray]:
    rows: list[dict[str, Any]] = []
    table: list[tuple[int, ...]] = []
    end = 0
    with atomic_write(partial / TOKENS) as file:
        for piece in pieces:
            file.write(np.asarray(piece.tokens, dtype=dtype).tobytes())
            start, end = end, end + len(piece.tokens)
            row = dict(piece.row)
            if numbering is not None:
                num_chunks = -(-len(piece.tokens) // config.chunk_len)
                row |= {
                    "number": numbering.document,
                    "first_chunk": numbering.chunk,
                    "num_chunks": num_chunks,
                }
                numbering.document += 1
                numbering.chunk += num_chunks
            rows.append(row)
            table.append((row["number"], row["first_chunk"], start, end, short_hash(row["content_hash"])))
    documents = np.array(table, dtype=DOCUMENT)
    with atomic_write(partial / DOCUMENTS) as file:
        np.save(file, documents)
    return rows, documents


def _changed(partial: Path) -> bool:
    """Whether shards that an interrupted run left behind belong to other text."""
    plan = {"tokens": file_checksum(partial / TOKENS), "documents": file_checksum(partial / DOCUMENTS)}
    # The plan stands beside the shards and is compared when they are met again.
    before = json.loads((partial / PLAN).read_text()) if (partial / PLAN).exists() else None
    write_json(partial / PLAN, plan)
    return plan != before


def _texts(grid: ChunkGrid, tokenizer: Tokenizer) -> Iterator[tuple[np.ndarray, list[str]]]:
    """The chunks of each shard that have text, and their texts."""
    for start in range(0, len(grid), SHARD):
        chunks = range(start, min(start + SHARD, len(grid)))
        texts = [tokenizer.decode(grid.tokens(chunk).tolist()) for chunk in chunks]
        kept = [chunk for chunk, text in zip(chunks, texts, strict=True) if text.strip()]
        yield np.array(kept, dtype=np.int32), [text for text in texts if text.strip()]


def _embedded(
    partial: Path,
    shards: Iterable[tuple[np.ndarray, list[str]]],
    total: int,
    embed: EmbedShards,
    progress: Progress,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Chunks and keys of every shard; a shard that was embedded before is read."""
    parts = Parts(partial / SHARDS, ARRAY)
    # `embed` may take shards ahead of their keys; their chunks wait here until the keys come, in the same
    # order.
    waiting: deque[np.ndarray] = deque()

    def named() -> Iterator[tuple[str, list[str]]]:
        for number, (chunks, texts) in enumerate(shards):
            waiting.append(chunks)
            yield f"{number:06d}", texts

    for number, keys in enumerate(parts.map(embed, named()), start=1):
        progress(min(number * SHARD, total), total)
        yield waiting.popleft(), keys


def _write_keys(partial: Path, shards: Iterable[tuple[np.ndarray, np.ndarray]]) -> None:
    """Join the shards into one file of keys, through a raw one as their number is known only at the end."""
    rows: list[np.ndarray] = []
    width = 0
    raw = partial / "keys.raw"
    with raw.open("wb") as file:
        for shard_rows, keys in shards:
            rows.append(shard_rows)
            width = keys.shape[1]
            file.write(np.ascontiguousarray(keys, dtype=np.float16).tobytes())
    joined = np.concatenate(rows) if rows else np.zeros(0, dtype=np.int32)
    # Keys are too many for memory, so the header of the .npy file is written by hand and the rest copied.
    header = {"descr": "<f2", "fortran_order": False, "shape": (len(joined), width)}
    with atomic_write(partial / KEYS) as file, raw.open("rb") as source:
        np.lib.format.write_array_header_2_0(file, header)
        shutil.copyfileobj(source, file, 1 << 24)
    raw.unlink()
    with atomic_write(partial / ROWS) as file:
        np.save(file, joined.astype(np.int32))


def _finish(
    partial: Path,
    path: Path,
    rows: list[dict[str, Any]],
    documents: np.ndarray,
    config: DatastoreConfig,
    tokenizer: Tokenizer,
    kind: str,
    begins_with: Segment | None = None,
    progress: Progress = no_progress,
) -> Written:
    """Build the index, drop what was needed on the way, and give the folder its name."""
    keys = np.load(partial / KEYS, mmap_mode="r")
    grid = _grid(partial, documents, config, tokenizer)
    index = make_index(kind, keys.shape[1], len(keys), config.exact_below)
    entries = Entries(keys, ChunkTokens(grid, np.load(partial / ROWS)))
    if begins_with is not None and index.kind == begins_with.index.kind:
        # Opened anew: the one that others search must not change.
        index = open_index(begins_with.path / INDEX, begins_with.keys)
        entries = entries.select(np.arange(len(begins_with.keys), len(keys)))
    # One call of FAISS, which tells nothing on its way.
    progress(0, 0, f"Indexing {counted(len(keys), 'key')}")
    index.add(entries)
    # A hybrid index is measured by its dense half; BM25 alone has nothing to tune.
    dense = getattr(index, "dense", index)
    measured: dict[str, Any] = {}
    # So many keys are looked at one by one only until a joint index has them: nobody waits for that.
    is_passing = kind == EXACT != config.index and len(keys) >= config.exact_below
    if isinstance(dense, DenseIndex) and len(keys) and not is_passing:
        measured = asdict(tune(dense, config.target_recall))
    shutil.rmtree(partial / INDEX, ignore_errors=True)
    index.save(partial / INDEX)
    shutil.rmtree(partial / SHARDS, ignore_errors=True)
    (partial / PLAN).unlink(missing_ok=True)
    report = {
        "documents": len(documents),
        "tokens": int(documents["end"][-1]),
        "chunks": len(grid),
        "keys": len(keys),
        "empty_chunks": len(grid) - len(keys),
        "width": int(keys.shape[1]),
        "index": {**measured, "kind": index.kind},
    }
    # Checksums are taken before the rename: a segment that has its name has them in the ledger's row.
    files = {
        str(file.relative_to(partial)): file_checksum(file)
        for file in sorted(partial.rglob("*"))
        if file.is_file()
    }
    flush_folder(partial)
    partial.replace(path)
    flush_folder(path.parent, deep=False)
    return Written(SegmentRow(path.name, files, report), rows)
