"""Coloured text as plain JSON."""

from collections.abc import Sequence
from typing import Any

from retro.retrieval.shared_runs import ColouredChunk, ColouredNeighbour, Span


def chunk_record(chunk: ColouredChunk) -> dict[str, Any]:
    """A chunk and its neighbours. `overlap` is the longest common prefix of every token, null where none was compared."""
    return {**_text(chunk.spans), "neighbours": [_neighbour(neighbour) for neighbour in chunk.neighbours]}


def _neighbour(neighbour: ColouredNeighbour) -> dict[str, Any]:
    return {
        "document": neighbour.document,
        "title": neighbour.title,
        "source": neighbour.source,
        "distance": neighbour.distance,
        "neighbour": _text(neighbour.neighbour),
        "continuation": _text(neighbour.continuation),
    }


def _text(spans: Sequence[Span]) -> dict[str, Any]:
    return {"text": "".join(span.text for span in spans), "overlap": [span.overlap for span in spans]}
