"""Coloured text as HTML; colours are classes and equal ones run together, so that a long document makes a small page."""

from collections.abc import Sequence
from html import escape
from itertools import groupby

from retro.retrieval.shared_runs import PALETTE, ColouredNeighbour, Span

STYLE = (
    "mark { color: inherit; background: none; border-radius: 2px; }\n"
    + "".join(f".o{level} {{ background: {colour}; }}\n" for level, colour in enumerate(PALETTE))
    + """.origin { font: 11px/1.4 system-ui, sans-serif; color: #555; display: block; margin-bottom: .4em; }
.divider { color: #b3261e; font-weight: bold; }
.legend mark { padding: .1em .5em; margin-right: .2em; font-size: 12px; white-space: nowrap; }
"""
)

PAGE_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1500px; margin: 1.5em auto; padding: 0 1.2em; color: #1d2228; background: #fff; }
h1 { font-size: 1.4em; margin-bottom: .2em; } h2 { margin-top: 2em; font-size: 1.1em; } .note { color: #555; font-size: .93em; }
"""


def spans_html(spans: Sequence[Span]) -> str:
    """Runs of tokens with their colours; those of the last colour tell how long the common run is."""
    parts = []
    for level, group in groupby(spans, lambda span: span.level):
        run = list(group)
        text = escape("".join(span.text for span in run), quote=False)
        longest = max(span.overlap or 0 for span in run)
        told = f' title="{longest} in common"' if level == len(PALETTE) - 1 else ""
        parts.append(text if level is None or not text else f"<mark class=o{level}{told}>{text}</mark>")
    return "".join(parts)


def neighbour_html(neighbour: ColouredNeighbour) -> str:
    """Where a neighbour comes from, its text and its continuation."""
    origin = (
        f'<span class="origin" title="{escape(neighbour.document)}"><b>{escape(neighbour.title or neighbour.document)}</b>'
        f" · {escape(neighbour.source)} · distance {neighbour.distance:.2f}</span>"
    )
    continuation = (
        f'<span class="divider"> ┃ </span>{spans_html(neighbour.continuation)}'
        if neighbour.continuation
        else ""
    )
    return origin + spans_html(neighbour.neighbour) + continuation


def legend_html(words: str = "Longest common run in tokens") -> str:
    labels = [*map(str, range(len(PALETTE) - 1)), f"≥ {len(PALETTE) - 1}"]
    boxes = "".join(f"<mark class=o{level}>{label}</mark>" for level, label in enumerate(labels))
    return f'<p class="legend">{words}: {boxes}</p>'


def page_html(title: str, style: str, body: str) -> str:
    """A page that needs nothing else."""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(title)}</title>
<style>{PAGE_STYLE}{STYLE}{style}</style></head><body>
<h1>{escape(title)}</h1>{body}
</body></html>
"""
