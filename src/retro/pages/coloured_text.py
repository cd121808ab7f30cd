"""Text coloured by the runs of tokens it shares with neighbours, as HTML and as plain JSON.

Colours are CSS classes, and adjacent tokens of one colour share an element, so that even a
long document makes a small page.
"""

from collections.abc import Sequence
from html import escape
from itertools import groupby
from typing import Any

from retro.retrieval.shared_runs import PALETTE, ColouredChunk, ColouredNeighbour, Span

LAST = len(PALETTE) - 1
"""The level of the longest runs, which all have the same colour."""


def spans_html(spans: Sequence[Span]) -> str:
    """Tokens with their colours; in the last colour, a title says how long the common run is."""
    parts = []
    # Adjacent tokens of one colour become one mark.
    for level, group in groupby(spans, lambda span: span.level):
        run = list(group)
        text = escape("".join(span.text for span in run), quote=False)
        # Text that was compared with nothing stays plain.
        if level is None or not text:
            parts.append(text)
            continue
        # Only the last colour stands for runs of several lengths.
        longest = max(span.overlap or 0 for span in run)
        title = f' title="{longest} in common"' if level == LAST else ""
        parts.append(f"<mark class=o{level}{title}>{text}</mark>")
    return "".join(parts)


def neighbour_html(neighbour: ColouredNeighbour) -> str:
    """Where a neighbour comes from, its text and its continuation."""
    name = escape(neighbour.title or neighbour.document)
    origin = (
        f'<span class="origin" title="{escape(neighbour.document)}"><b>{name}</b>'
        f" · {escape(neighbour.source)} · distance {neighbour.distance:.2f}</span>"
    )
    text = origin + spans_html(neighbour.neighbour)
    if neighbour.continuation:
        text += f'<span class="divider"> ┃ </span>{spans_html(neighbour.continuation)}'
    return text


def legend_html(words: str = "Longest common run in tokens") -> str:
    """What the colours mean."""
    labels = [*map(str, range(LAST)), f"≥ {LAST}"]
    boxes = "".join(f"<mark class=o{level}>{label}</mark>" for level, label in enumerate(labels))
    return f'<p class="legend">{words}: {boxes}</p>'


def chunk_record(chunk: ColouredChunk) -> dict[str, Any]:
    """A chunk and its neighbours.

    `overlap` is the longest common prefix at each token, null where nothing was compared.
    """
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
