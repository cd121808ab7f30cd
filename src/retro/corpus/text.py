"""The text stage: documents from any source, cleaned, split and packed into compressed shards.

The input is cut into batches of a fixed size in the order it is read, and each batch becomes a shard. A run
that was killed reads its input again, which is quick, and makes only the shards that are missing: the result
depends neither on interruptions nor on the number of workers.
"""

import dataclasses
import json
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import zstandard

from retro.config import CorpusConfig
from retro.config.as_json import to_dict
from retro.corpus.documents import SPLITS, Document, is_sampled, is_too_long, split_of
from retro.corpus.readers.problems import LOST, Kind, Problems, Tally, from_counts, to_counts, write_row
from retro.corpus.readers.streams import metered, open_stream, packing_of
from retro.corpus.readers.wikipedia import RawPage, clean_page
from retro.errors import ArtifactError, DataError
from retro.stages.executor import Executor
from retro.stages.files import DAMAGED, atomic_write
from retro.stages.hints import quoted, with_paths
from retro.stages.parts import JSON, Parts
from retro.stages.stage import Artifact, Stage, open_artifact, run_stage

SETTINGS = ("split_seed", "valid_fraction", "test_fraction", "max_document_bytes", "sample_fraction")
"""The fields of the corpus config that decide about the text."""
TRAIN_BYTES = "bytes of train: "
SHARD_BYTES = 4 << 20
"""Text of a batch as it is read, which is what a worker holds at once."""
SHARD = ".jsonl.zst"
SUMMARIES = dataclasses.replace(JSON, suffix=".jsonl.summary")
"""A shard's counts and what it left out, written after it: where a summary stands, the shard is whole."""
LEFT_OUT = "left-out.jsonl"
"""The list of all that was left out, one JSON object a line."""

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
        command = f"retro ingest SOURCE --out {quoted(Path(path).parent)}"
        return TextStore(open_artifact(Path(path), "text", command))

    def train_bytes(self) -> dict[str, int]:
        """Bytes of training text by source."""
        counts = self.artifact.counts
        names = [name for name in counts if name.startswith(TRAIN_BYTES)]
        return {name.removeprefix(TRAIN_BYTES): counts[name] for name in names}

    def left_out(self) -> dict[str, Tally]:
        """How much was left out, by kind; of a corpus from before there were kinds, all that is known."""
        counts = self.artifact.counts
        if "left out by kind" in counts:
            return from_counts(counts["left out by kind"])
        old = {
            Kind.UNREADABLE: counts["skipped"],
            "too long, not sampled, or empty": counts.get("left out", 0),
        }
        return {kind: Tally(number) for kind, number in old.items() if number}

    def encodings(self) -> dict[str, int]:
        """How many files were read in another encoding than UTF-8, by its name."""
        return dict(self.artifact.counts.get("read as", {}))

    def num_bytes(self) -> int:
        """Bytes of all documents."""
        return text_bytes(self.artifact.counts)

    def documents(self) -> Iterator[Document]:
        for shard in self.shards:
            yield from read_shard(shard)


def read_shard(path: Path) -> Iterator[Document]:
    """The documents of a shard, one at a time."""
    try:
        if packing_of(path) != "zst":
            raise ValueError("it is not packed")
        # Not by the library's own stream, which ends quietly where a file was cut off.
        with open_stream(path) as lines:
            for line in lines:
                yield Document(**json.loads(line))
    except (*DAMAGED, zstandard.ZstdError) as error:
        mend = with_paths("retro doctor --work WORK --mend", path)
        raise ArtifactError(
            f"{path} is damaged ({error}); expected a whole shard; run: {mend}; then ingest again"
        ) from None


def write_text(
    items: Iterable[Document | RawPage],
    path: Path,
    config: CorpusConfig,
    inputs: dict[str, str],
    executor: Executor,
    problems: Problems,
    progress: ReadingProgress | None = None,
) -> TextStore:
    """Clean, split and write what the readers yield. What is left out goes to `problems` and into a list."""

    def work(stage: Stage) -> None:
        parts = Parts(stage.path, SUMMARIES)
        with stage.write(LEFT_OUT) as listing:
            with problems.listed_in(listing):
                run = partial(parts.map, partial(executor.map, _write_shard))
                counts = _gather(items, stage.path, config, run, problems, progress)
            # Within the block, which then leaves no list behind: there is nothing to go on with.
            if not counts["train"]:
                raise _no_text(problems)
            # What the shards left out stands behind what the readers did: an order that no timing changes.
            for name in sorted(path.name for path in stage.path.glob(f"*{SUMMARIES.suffix}")):
                for where, reason, *others in parts.read(name.removesuffix(SUMMARIES.suffix))["problems"]:
                    kind, size = others or (Kind.UNREADABLE, 0)
                    write_row(listing, where, reason, kind, size)
        stage.counts.update(counts)
        stage.counts["left out by kind"] = to_counts(problems.tallies)
        stage.counts["read as"] = dict(sorted(problems.encodings.items()))

    settings = {name: value for name, value in to_dict(config).items() if name in SETTINGS}
    command = f"retro ingest SOURCE --out {quoted(path.parent)}"
    return TextStore(run_stage(path, "text", settings, inputs, work, command))


def _no_text(problems: Problems) -> DataError:
    """Said here rather than by the tokenizer, which would only miss its text."""
    missed = [row for kind, tally in problems.tallies.items() if kind in LOST for row in tally.first]
    skipped = "".join(f"; skipped: {where} {reason}" for where, reason in (missed or problems.rows)[:1])
    return DataError(
        f"the corpus holds no training document with text{skipped}; expected at least one; "
        "give more documents"
    )


def look_at(
    items: Iterable[Document | RawPage],
    config: CorpusConfig,
    executor: Executor,
    problems: Problems,
    progress: ReadingProgress | None = None,
    kept: list[dict[str, Any]] | None = None,
) -> Counter[str]:
    """What `write_text` would count, and leave out, of the same items; nothing is written.

    `kept` receives a row of every document that is kept, by which duplicates are found.
    """

    def run(batches: Iterator[tuple[str, Batch]]) -> Iterable[dict[str, Any]]:
        for summary in executor.map(_look_at_shard, (batch for _, batch in batches)):
            if kept is not None:
                kept.extend(summary["kept"])
            yield summary

    return _gather(items, Path(), config, run, problems, progress)


def text_bytes(counts: Mapping[str, int]) -> int:
    """Bytes of the documents of all splits, out of a stage's counts."""
    return sum(counts.get(f"bytes of {split}", 0) for split in SPLITS)


def _gather(
    items: Iterable[Document | RawPage],
    folder: Path,
    config: CorpusConfig,
    run: Callable[[Iterator[tuple[str, Batch]]], Iterable[dict[str, Any]]],
    problems: Problems,
    progress: ReadingProgress | None,
) -> Counter[str]:
    """Cut the items into batches, have them sifted by `run`, and add up what it says of them."""
    counts: Counter[str] = Counter()
    # What the shards leave out is counted apart, and behind what the readers do.
    of_shards = Problems(problems.strict)
    # Where in the sources' files each batch ends that was cut and whose shard is still to come.
    positions: deque[int] = deque()
    with metered() as meter:
        batches = _batches(items, folder, config, lambda: positions.append(meter.num_bytes))
        for summary in run(batches):
            counts.update(summary["counts"])
            for row in summary["problems"]:
                of_shards.add(*row)
            position = positions.popleft()
            if progress:
                progress(counts["documents"], text_bytes(counts), position)
    problems.absorb(of_shards)
    return counts


def _raw_text(item: Document | RawPage) -> str:
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
        size += len(_raw_text(item))
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
    """Write a batch's documents; say how many there are by split, and what was left out."""
    with (
        atomic_write(batch.shard) as file,
        # A quick level, since the shards are read a few times only.
        zstandard.ZstdCompressor(level=1).stream_writer(file, closefd=False) as stream,
    ):

        def keep(document: Document) -> None:
            row = dataclasses.asdict(document)
            stream.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")

        return _sift(batch, keep)


def _look_at_shard(batch: Batch) -> dict[str, Any]:
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


def _place_of(item: Document | RawPage) -> str:
    return f"{item.source}/{item.id}" if isinstance(item, Document) else f"page {item.id} ({item.title})"
