"""What a datastore holds, in rows for people to read."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from retro.retrieval.datastore.datastore import Datastore
from retro.retrieval.datastore.elsewhere import EngineSnapshot
from retro.retrieval.datastore.index_table import IndexRow
from retro.retrieval.datastore.joint import INDEXES
from retro.retrieval.datastore.ledger import IS_THERE, CompactedError
from retro.retrieval.datastore.reader import SEGMENTS
from retro.retrieval.datastore.segment import INDEX, KEYS, TOKENS
from retro.retrieval.datastore.segment_writer import EXACT
from retro.retrieval.datastore.snapshot import Snapshot
from retro.retrieval.datastore.spread import SpreadSnapshot
from retro.wording import counted


@dataclass(frozen=True)
class Description:
    """Rows of tables."""

    facts: list[tuple[str, str]]
    segment_headings: list[str]
    segments: list[list[str]]
    """An index over many segments, if there is one, has the first row."""
    sources: list[list[str]]
    versions: list[list[str]]


def describe(datastore: Datastore) -> Description:
    """What the newest version holds."""
    while True:
        try:
            return _describe_version(datastore, datastore.snapshot())
        except CompactedError:
            continue  # meanwhile; the newest version can be described


def _describe_version(datastore: Datastore, snapshot: Snapshot) -> Description:
    number = snapshot.version.number
    with datastore.ledger.at(number):
        rows = datastore.ledger.segments(number)
        indexes = datastore.ledger.indexes()
        by_source = datastore.ledger.rows(
            "SELECT source, count(*), sum(num_tokens), sum(num_bytes) FROM documents "
            f"WHERE {IS_THERE} GROUP BY source ORDER BY source",
            (number, number),
        )
        deleted = datastore.ledger.rows("SELECT count(*) FROM documents WHERE deleted <= ?", (number,))[0][0]
        versions = [version for version in datastore.ledger.versions() if version.number <= number]
    folder = datastore.path / SEGMENTS
    num_tokens = max(1, snapshot.num_tokens())
    # Sizes are of files, with deleted documents in them until they are compacted.
    sizes = {part: sum(_size(folder / row.name / part) for row in rows) for part in (TOKENS, INDEX, KEYS)}
    joint = {index.name: _size(datastore.path / INDEXES / index.name) for index in indexes}
    without_keys = (sizes[TOKENS] + sizes[INDEX] + sum(joint.values())) / num_tokens
    with_keys = without_keys + sizes[KEYS] / num_tokens
    to_compact = f", and {deleted:,} deleted ones to compact" if deleted else ""
    facts = [
        ("version", f"{number} ({snapshot.version.lineage})"),
        ("documents", f"{snapshot.num_documents:,}{to_compact}"),
        ("tokens", f"{snapshot.num_tokens():,}"),
        ("chunks", f"{snapshot.num_chunks():,} of {datastore.chunk_len} tokens, {len(snapshot):,} with text"),
        ("embedder", datastore.config.embedder),
        ("searched by", _searched_by(snapshot)),
        ("bytes a token", f"{without_keys:.2f} tokens and index, {with_keys:.2f} with the stored keys"),
    ]
    return Description(
        facts=facts,
        segment_headings=["documents", "keys", "blank", "index", "recall", "ms", "a second", "MB"],
        segments=[
            *(_joint_row(index, joint[index.name]) for index in indexes),
            *(_segment_row(row.name, row.report, _size(folder / row.name)) for row in rows),
        ],
        sources=[[source, *(f"{count:,}" for count in counts)] for source, *counts in by_source],
        versions=[[str(version.number), version.action, f"{version.documents:,}"] for version in versions],
    )


def tokens_of_deleted(snapshot: Snapshot, vocab_size: int) -> int:
    """How many tokens stand in documents that were deleted, and are still to compact, and in no others.

    A tokenizer learns words from the text that it is trained on. Compacting leaves it as it is, so these
    words can be read in it afterwards.
    """
    live_uses = np.zeros(vocab_size, dtype=bool)
    deleted_uses = np.zeros(vocab_size, dtype=bool)
    for segment, live in zip(snapshot.segments, snapshot.live, strict=True):
        for document, is_live in zip(segment.documents, live, strict=True):
            uses = live_uses if is_live else deleted_uses
            # Marking instead of counting: one pass over the tokens, a byte for each of the vocabulary.
            uses[segment.tokens[document["start"] : document["end"]]] = True
    return int((deleted_uses & ~live_uses).sum())


def _searched_by(snapshot: Snapshot) -> str:
    """How many indexes a search asks, of which kinds, and how many keys it looks at one by one.

    Or which engine, and how well it found when it was filled.
    """
    if isinstance(snapshot, EngineSnapshot | SpreadSnapshot):
        setting = snapshot.setting
        measured = f"recall@10 {setting.recall_at_10:.3f}, {setting.latency_ms:.2f} ms when it was filled"
        if not setting.latency_ms:
            measured = "not measured"
        return f"{setting}; {measured}; {snapshot.state()}"
    if not snapshot.indexed:
        return "nothing"
    kinds = ", ".join(snapshot.kinds)
    linear = sum(len(part) for part in snapshot.indexed if part.index.kind == EXACT)
    return f"{counted(len(snapshot.indexed), 'index', 'indexes')} ({kinds}), {linear:,} keys one by one"


def _joint_row(index: IndexRow, size: int) -> list[str]:
    """The row of an index over several segments."""
    named = counted(len(index.segments), "segment")
    return [f"{named} together", *_segment_row(index.name, index.report, size)[1:]]


def _segment_row(name: str, report: dict[str, Any], size: int) -> list[str]:
    index = report.get("index")
    if not isinstance(index, dict):
        index = {}
    counts = [_number(report.get(key), ",") for key in ("documents", "keys", "empty_chunks")]
    measured = [_number(index.get(key), form) for key, form in _MEASURED.items()]
    return [name, *counts, str(index.get("kind", "–")), *measured, f"{size / 1e6:,.1f}"]


_MEASURED = {"recall_at_10": ".3f", "latency_ms": ".2f", "queries_per_second": ",.0f"}


def _number(value: Any, form: str) -> str:
    return f"{value:{form}}" if isinstance(value, int | float) else "–"


def _size(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
