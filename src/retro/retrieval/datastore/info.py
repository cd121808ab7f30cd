"""What a datastore holds, in rows for people to read."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retro.retrieval.datastore.datastore import SEGMENTS, Datastore
from retro.retrieval.datastore.segment import INDEX, KEYS, TOKENS


@dataclass(frozen=True)
class Description:
    """Rows of tables."""

    facts: list[tuple[str, str]]
    segment_headings: list[str]
    segments: list[list[str]]
    sources: list[list[str]]
    versions: list[list[str]]


def describe(datastore: Datastore) -> Description:
    with datastore.reading() as snapshot:
        rows = datastore.ledger.segments()
        by_source = datastore.ledger.rows(
            "SELECT source, count(*), sum(num_tokens), sum(num_bytes) FROM documents WHERE deleted IS NULL GROUP BY source ORDER BY source"
        )
        deleted = datastore.ledger.rows("SELECT count(*) FROM documents WHERE deleted IS NOT NULL")[0][0]
        versions = datastore.ledger.versions()
    folder = datastore.path / SEGMENTS
    tokens = max(1, snapshot.num_tokens())
    sizes = {part: sum(_size(folder / row.name / part) for row in rows) for part in (TOKENS, INDEX, KEYS)}
    without_keys, keys = (sizes[TOKENS] + sizes[INDEX]) / tokens, sizes[KEYS] / tokens
    facts = [
        ("version", f"{snapshot.version.number} ({snapshot.version.lineage})"),
        (
            "documents",
            f"{snapshot.num_documents:,}" + (f", and {deleted:,} deleted ones to compact" if deleted else ""),
        ),
        ("tokens", f"{snapshot.num_tokens():,}"),
        ("chunks", f"{snapshot.num_chunks():,} of {datastore.chunk_len} tokens, {len(snapshot):,} with text"),
        ("encoder", datastore.config.encoder),
        (
            "bytes a token",
            f"{without_keys:.2f} tokens and index, {without_keys + keys:.2f} with the stored keys",
        ),
    ]
    return Description(
        facts=facts,
        segment_headings=["documents", "keys", "blank", "index", "recall", "ms", "a second", "MB"],
        segments=[_segment_row(row.name, row.report, _size(folder / row.name)) for row in rows],
        sources=[
            [source, f"{count:,}", f"{num_tokens:,}", f"{num_bytes:,}"]
            for source, count, num_tokens, num_bytes in by_source
        ],
        versions=[[str(version.number), version.action, f"{version.documents:,}"] for version in versions],
    )


def _segment_row(name: str, report: dict[str, Any], size: int) -> list[str]:
    index = report["index"]
    measured = [
        f"{index[key]:{form}}" if index.get(key) is not None else "–" for key, form in _MEASURED.items()
    ]
    counts = [f"{report[key]:,}" for key in ("documents", "keys", "empty_chunks")]
    return [name, *counts, index["kind"], *measured, f"{size / 1e6:,.1f}"]


_MEASURED = {"recall_at_10": ".3f", "latency_ms": ".2f", "queries_per_second": ",.0f"}


def _size(path: Path) -> int:
    return (
        path.stat().st_size
        if path.is_file()
        else sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    )
