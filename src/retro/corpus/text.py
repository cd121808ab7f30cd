"""The text stage: documents from any source, cleaned, split and packed into compressed shards.

The input is cut into batches of a fixed size in the order it is read, and each batch becomes a shard. A run
that was killed reads its input again, which is quick, and makes only the shards that are missing: the result
depends neither on interruptions nor on the number of workers.
"""

import dataclasses
import io
import json
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import zstandard

from retro.config import CorpusConfig
from retro.config.as_json import to_dict
from retro.corpus.documents import SPLITS, Document, split_of
from retro.corpus.readers import Problems
from retro.corpus.readers.streams import metered
from retro.corpus.readers.wikipedia import RawPage, clean_page
from retro.errors import DataError
from retro.stages.executor import Executor
from retro.stages.files import atomic_write
from retro.stages.parts import JSON, Parts
from retro.stages.stage import Artifact, Stage, open_artifact, run_stage

SETTINGS = ("split_seed", "valid_fraction", "test_fraction", "max_document_bytes", "sample_fraction")
"""The fields of the corpus config that decide about the text."""
TRAIN_BYTES = "bytes of train: "
SHARD_BYTES = 4 << 20
"""Text of a batch as it is read, which is what a worker holds at once."""
SHARD = ".jsonl.zst"
SUMMARIES = dataclasses.replace(JSON, suffix=".jsonl.summary")
"""A shard's counts and problems, written after the shard: where a summary stands, the shard is whole."""

ReadingProgress = Callable[[int, int, int], None]
"""Called with the documents so far, the bytes of their text, and the bytes read of the sources' files."""


@dataclass(frozen=True)
class Batch:
    """Documents as they were read, or raw pages, on their way to a shard."""

    shard: Path
    items: list[Document | RawPage]
    config: CorpusConfig


class TextStore:
    """Finished shards of text. Each document carries the split that was drawn for it."""

    def __init__(self, artifact: Artifact) -> None:
        self.artifact = artifact
        self.fingerprint = artifact.fingerprint
        self.shards = sorted(artifact.path.glob(f"*{SHARD}"))

    @staticmethod
    def open(path: str | Path) -> "TextStore":
        return TextStore(open_artifact(Path(path), "text", f"retro ingest SOURCE --out {Path(path).parent}"))

    def train_bytes(self) -> dict[str, int]:
        """Bytes of training text by source."""
        counts = self.artifact.counts
        names = [name for name in counts if name.startswith(TRAIN_BYTES)]
        return {name.removeprefix(TRAIN_BYTES): counts[name] for name in names}

    def documents(self) -> Iterator[Document]:
        for shard in self.shards:
            yield from read_shard(shard)


def read_shard(path: Path) -> Iterator[Document]:
    """The documents of a shard, one at a time."""
    with path.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as stream:
        for line in io.TextIOWrapper(stream, encoding="utf-8"):
            yield Document(**json.loads(line))


def write_text(
    items: Iterable[Document | RawPage],
    path: Path,
    config: CorpusConfig,
    inputs: dict[str, str],
    executor: Executor,
    problems: Problems,
    progress: ReadingProgress | None = None,
) -> TextStore:
    """Clean, split and write what the readers yield. Pages that cannot be cleaned go to `problems`."""

    def work(stage: Stage) -> None:
        counts: Counter[str] = Counter()
        # Where in the sources' files each batch ends that was cut and whose shard is still to come.
        positions: deque[int] = deque()
        with metered() as meter:
            batches = _batches(items, stage.path, config, lambda: positions.append(meter.num_bytes))
            summaries = Parts(stage.path, SUMMARIES).map(partial(executor.map, _write_shard), batches)
            for summary in summaries:
                counts.update(summary["counts"])
                for where, reason in summary["problems"]:
                    problems.add(where, reason)
                position = positions.popleft()
                if progress:
                    text_bytes = sum(counts[f"bytes of {split}"] for split in SPLITS)
                    progress(counts["documents"], text_bytes, position)
        # Said here rather than by the tokenizer, which would only miss its text.
        if not counts["train"]:
            skipped = "".join(f"; skipped: {where} {reason}" for where, reason in problems.rows[:1])
            raise DataError(
                f"the corpus holds no training document with text{skipped}; expected at least one; "
                "give more documents"
            )
        stage.counts.update(counts, skipped=problems.count)

    settings = {name: value for name, value in to_dict(config).items() if name in SETTINGS}
    command = f"retro ingest SOURCE --out {path.parent}"
    return TextStore(run_stage(path, "text", settings, inputs, work, command))


def raw_text(item: Document | RawPage) -> str:
    """What was read of an item, before cleaning."""
    return item.text if isinstance(item, Document) else item.wikitext


def _batches(
    items: Iterable[Document | RawPage], folder: Path, config: CorpusConfig, cut: Callable[[], None]
) -> Iterator[tuple[str, Batch]]:
    """Named batches of about `SHARD_BYTES`; `cut` is called before each of them.

    Where a batch ends depends on what was read alone, so that shard i is the same in every run.
    """
    pending: list[Document | RawPage] = []
    size = 0
    number = 0
    for item in items:
        pending.append(item)
        size += len(raw_text(item))
        if size >= SHARD_BYTES:
            cut()
            yield _named_batch(number, pending, folder, config)
            pending = []
            size = 0
            number += 1
    if pending:
        cut()
        yield _named_batch(number, pending, folder, config)


def _named_batch(
    number: int, items: list[Document | RawPage], folder: Path, config: CorpusConfig
) -> tuple[str, Batch]:
    name = f"{number:06d}"
    return name, Batch(folder / f"{name}{SHARD}", items, config)


def _write_shard(batch: Batch) -> dict[str, Any]:
    """Write a batch's documents; say how many there are by split, and which could not be cleaned."""
    counts: Counter[str] = Counter()
    problems: list[tuple[str, str]] = []
    with (
        atomic_write(batch.shard) as file,
        # A quick level, since the shards are read a few times only.
        zstandard.ZstdCompressor(level=1).stream_writer(file, closefd=False) as stream,
    ):
        for item in batch.items:
            try:
                document = item if isinstance(item, Document) else clean_page(item)
            except DataError as error:
                problems.append((f"page {item.id}", str(error)))
                continue
            # A page without text is no document, and a document that is not sampled has no split.
            split = split_of(document, batch.config) if document is not None else None
            if document is None or split is None or not document.text.strip():
                counts["left out"] += 1
                continue
            row = dataclasses.asdict(dataclasses.replace(document, split=split))
            stream.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
            size = len(document.text.encode())
            counts.update({"documents": 1, split: 1, f"bytes of {split}": size})
            # The tokenizer is trained on these, by source.
            if split == "train":
                counts[TRAIN_BYTES + document.source] += size
    return {"counts": counts, "problems": problems}
