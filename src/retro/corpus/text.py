"""The text stage: documents from any source, cleaned, split and packed into compressed shards.

What is read is cut into batches of a fixed size, unit by unit of the plan (`reading.py`), and each batch
becomes a shard. A run that was killed reads again what it has not read to the end, which is quick, and makes
only the shards that are missing: the result depends neither on interruptions nor on the number of workers,
nor on the machines they are on.
"""

import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import zstandard

from retro.config import CorpusConfig
from retro.config.as_json import to_dict
from retro.corpus.documents import Document
from retro.corpus.gathering import SUMMARIES, Found, ReadingProgress, Sifting, gather, text_bytes
from retro.corpus.readers.problems import LOST, Kind, Problems, Tally, from_counts, to_counts, write_row
from retro.corpus.readers.streams import open_stream, packing_of
from retro.corpus.reading import Files, Stream, expect_trees_with_text
from retro.corpus.sifting import SHARD, TRAIN_BYTES
from retro.errors import ArtifactError, DataError
from retro.stages.executor import Executor
from retro.stages.files import DAMAGED, make_fingerprint
from retro.stages.hints import quoted, with_paths
from retro.stages.parts import JSON, Parts
from retro.stages.stage import Artifact, Stage, open_artifact, run_stage

SETTINGS = ("split_seed", "valid_fraction", "test_fraction", "max_document_bytes", "sample_fraction")
"""The fields of the corpus config that decide about the text."""
SHARD_BYTES = 4 << 20
"""Text of a batch as it is read, which is what a worker holds at once."""
LEFT_OUT = "left-out.jsonl"
"""The list of all that was left out, one JSON object a line."""

Plan = Callable[[Problems], list[Files | Stream]]
"""Says what is read where; what is left out by its name alone goes to the problems."""
ONLY = re.compile(r"\d{6}")
ONE_OF_MANY = re.compile(r"\d{6}-\d{6}")


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
    plan: Plan,
    path: Path,
    config: CorpusConfig,
    inputs: dict[str, str],
    executor: Executor,
    problems: Problems,
    progress: ReadingProgress | None = None,
) -> TextStore:
    """Read, clean, split and write what is planned. What is left out goes to `problems` and into a list."""

    def work(stage: Stage) -> None:
        lists = stage.scratch("left-out")
        lists.mkdir(parents=True, exist_ok=True)
        with stage.write(LEFT_OUT) as listing:
            with problems.listed_in(listing):
                units = plan(problems)
            _drop_others(stage, units)
            sifting = Sifting(config, problems.strict, SHARD_BYTES, stage.path, lists, len(units) == 1)
            found = gather(units, sifting, executor, stage.scratch("units"), progress)
            expect_trees_with_text(units, [unit.num_items for unit in found])
            for number in range(len(units)):
                with sifting.list_of(number).open("rb") as rows:
                    shutil.copyfileobj(rows, listing)
            counts = _added_up(found, problems).counts
            # Within the block, which then leaves no list behind: there is nothing to go on with.
            if not counts["train"]:
                raise _no_text(problems)
            # What the shards left out stands behind what the readers did: an order that no timing changes.
            parts = Parts(stage.path, SUMMARIES)
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


def _drop_others(stage: Stage, units: list[Files | Stream]) -> None:
    """Remove shards that were begun by another plan for the same sources, as that of an earlier version."""
    layout = make_fingerprint([_described(unit) for unit in units])
    record = Parts(stage.scratch("layout"), JSON)
    is_same = not record.has("units") or record.read("units") == layout
    form = ONLY if len(units) == 1 else ONE_OF_MANY
    for ending in (SHARD, SUMMARIES.suffix):
        for file in stage.path.glob(f"*{ending}"):
            if not is_same or not form.fullmatch(file.name.removesuffix(ending)):
                file.unlink()
    if not is_same:
        shutil.rmtree(stage.scratch("units"), ignore_errors=True)
    record.write("units", layout)


def _described(unit: Files | Stream) -> Any:
    return [str(unit.path), unit.kind, unit.names, asdict(unit.fields)] if isinstance(unit, Files) else None


def _added_up(units: list[Found], problems: Problems) -> Found:
    """All units together; what they left out goes to `problems`, what the readers did first."""
    whole = Found()
    for unit in units:
        whole.absorb(unit)
    problems.absorb(whole.readers)
    problems.absorb(whole.shards)
    return whole


def _no_text(problems: Problems) -> DataError:
    """Said here rather than by the tokenizer, which would only miss its text."""
    missed = [row for kind, tally in problems.tallies.items() if kind in LOST for row in tally.first]
    skipped = "".join(f"; skipped: {where} {reason}" for where, reason in (missed or problems.rows)[:1])
    return DataError(
        f"the corpus holds no training document with text{skipped}; expected at least one; "
        "give more documents"
    )


def look_at(
    plan: Plan,
    config: CorpusConfig,
    executor: Executor,
    problems: Problems,
    progress: ReadingProgress | None = None,
    kept: list[dict[str, Any]] | None = None,
) -> Counter[str]:
    """What `write_text` would count, and leave out, by the same plan; nothing is written.

    `kept` receives a row of every document that is kept, by which duplicates are found.
    """
    units = plan(problems)
    found = gather(units, Sifting(config, problems.strict, SHARD_BYTES), executor, None, progress)
    expect_trees_with_text(units, [unit.num_items for unit in found])
    whole = _added_up(found, problems)
    if kept is not None:
        kept.extend(whole.kept)
    return whole.counts
