"""Batches of documents as they were read, cleaned, split and written: one shard of text each."""

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zstandard

from retro.config import CorpusConfig
from retro.corpus.documents import Document, is_sampled, is_too_long, split_of
from retro.corpus.readers.problems import Kind
from retro.corpus.readers.wikipedia import RawPage, clean_page
from retro.errors import DataError
from retro.stages.files import atomic_write

TRAIN_BYTES = "bytes of train: "
SHARD = ".jsonl.zst"
Item = Document | RawPage


@dataclass(frozen=True)
class Batch:
    """Documents as they were read, or raw pages, on their way to a shard."""

    shard: Path
    items: list[Item]
    config: CorpusConfig


def cut_batches(
    items: Iterable[Item], folder: Path, prefix: str, config: CorpusConfig, num_bytes: int
) -> Iterator[tuple[str, Batch]]:
    """Batches of about so many bytes, named by the prefix and their number.

    Where a batch ends depends on what was read alone, so that shard i is the same in every run.
    """
    pending: list[Item] = []
    size = 0
    number = 0

    def named() -> tuple[str, Batch]:
        name = f"{prefix}{number:06d}"
        return name, Batch(folder / f"{name}{SHARD}", pending, config)

    for item in items:
        pending.append(item)
        size += len(_raw_text(item))
        if size >= num_bytes:
            yield named()
            pending = []
            size = 0
            number += 1
    if pending:
        yield named()


def _raw_text(item: Item) -> str:
    """What was read of an item, before cleaning."""
    return item.text if isinstance(item, Document) else item.wikitext


def write_shard(batch: Batch) -> dict[str, Any]:
    """Write a batch's documents; say how many there are by split, and what was left out."""
    with (
        atomic_write(batch.shard, alone=False) as file,
        # A quick level, since the shards are read a few times only.
        zstandard.ZstdCompressor(level=1).stream_writer(file, closefd=False) as stream,
    ):

        def keep(document: Document) -> None:
            row = dataclasses.asdict(document)
            stream.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")

        return _sift(batch, keep)


def look_at_shard(batch: Batch) -> dict[str, Any]:
    """The same without writing, and what tells the documents from each other."""
    rows: list[dict[str, Any]] = []

    def keep(document: Document) -> None:
        rows.append(
            {
                "id": document.id,
                "source": document.source,
                "split": document.split,
                "content_hash": document.content_hash,
                "num_bytes": len(document.text.encode()),
            }
        )

    return {**_sift(batch, keep), "kept": rows}


def _sift(batch: Batch, keep: Callable[[Document], None]) -> dict[str, Any]:
    """Clean and split the documents of a batch; all that are not kept are named, with the reason."""
    counts: Counter[str] = Counter()
    problems: list[tuple[str, str, str, int]] = []
    for item in batch.items:
        try:
            document = item if isinstance(item, Document) else clean_page(item)
        except DataError as error:
            problems.append((f"page {item.id}", str(error), Kind.UNREADABLE, len(_raw_text(item))))
            continue
        reason = _why_not(document, batch.config)
        if reason is not None:
            kind, words = reason
            problems.append((_place_of(item), words, kind, len(_raw_text(item).encode())))
            counts["left out"] += 1
            continue
        assert document is not None  # or there would be a reason
        split = split_of(document, batch.config)
        keep(dataclasses.replace(document, split=split))
        size = len(document.text.encode())
        counts.update({"documents": 1, split: 1, f"bytes of {split}": size})
        # The tokenizer is trained on these, by source.
        if split == "train":
            counts[TRAIN_BYTES + document.source] += size
    return {"counts": counts, "problems": problems}


def _why_not(document: Document | None, config: CorpusConfig) -> tuple[str, str] | None:
    """Why a document is left out, as its kind and in words; nothing if it is kept."""
    if document is None or not document.text.strip():
        return Kind.EMPTY, "has no text"
    if not is_sampled(document, config):
        return Kind.NOT_SAMPLED, f"is not in the sample of {config.sample_fraction:g}"
    if is_too_long(document, config):
        size = len(document.text.encode())
        return Kind.TOO_LONG, f"has {size:,} bytes; expected at most {config.max_document_bytes:,}"
    return None


def _place_of(item: Item) -> str:
    return f"{item.source}/{item.id}" if isinstance(item, Document) else f"page {item.id} ({item.title})"
