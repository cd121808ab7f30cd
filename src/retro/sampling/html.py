"""Coloured samples as HTML: retrieval off, retrieval on, and the neighbours, side by side like the paper's tables."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from retro.sampling.colours import PALETTE, ColouredChunk, ColouredNeighbour, Span

STYLE = """
table.sample { border-collapse: collapse; width: 100%; table-layout: fixed; }
table.sample td, table.sample th { vertical-align: top; padding: .6em; border-top: 1px solid #ddd; text-align: left; }
table.sample th { position: sticky; top: 0; background: #fff; font-size: 13px; border-top: none; border-bottom: 2px solid #bbb; }
table.sample td { font: 12px/1.55 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; }
table.sample td + td { border-left: 1px solid #eee; }
table.sample .prompt { color: #667; }
table.sample .origin { font: 11px/1.4 system-ui, sans-serif; color: #555; display: block; margin-bottom: .4em; }
table.sample .divider { color: #b3261e; font-weight: bold; }
.legend span { padding: .1em .5em; margin-right: .2em; font-size: 12px; }
"""

PAGE_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1500px; margin: 1.5em auto; padding: 0 1.2em; color: #1d2228; background: #fff; }
h1 { font-size: 1.4em; margin-bottom: .2em; } h2 { margin-top: 2em; font-size: 1.1em; } .note { color: #555; font-size: .93em; }
"""


@dataclass(frozen=True)
class Pair:
    """The same prompt and seed without and with retrieval; either may be missing."""

    heading: str
    off: list[ColouredChunk]
    on: list[ColouredChunk]
    note: str = ""


def spans_html(spans: list[Span]) -> str:
    return "".join(
        f'<span style="background:{span.colour}" title="{span.overlap} in common">{escape(span.text)}</span>'
        if span.colour
        else escape(span.text)
        for span in spans
    )


def legend_html() -> str:
    labels = [*map(str, range(len(PALETTE) - 1)), f"≥ {len(PALETTE) - 1}"]
    boxes = "".join(f'<span style="background:{colour}">{label}</span>' for colour, label in zip(PALETTE, labels, strict=True))
    return f'<p class="legend">Longest common run in tokens: {boxes}</p>'


def _chunk(chunk: ColouredChunk) -> str:
    prompt = chunk.spans[: chunk.prompt_len]
    head = f'<span class="prompt">{spans_html(prompt)}</span>' if prompt else ""
    return head + spans_html(chunk.spans[chunk.prompt_len :])


def _neighbour(neighbour: ColouredNeighbour) -> str:
    origin = (
        f'<span class="origin" title="{escape(neighbour.document)}"><b>{escape(neighbour.title or neighbour.document)}</b>'
        f" · {escape(neighbour.source)} · distance {neighbour.distance:.2f}</span>"
    )
    continuation = f'<span class="divider"> ┃ </span>{spans_html(neighbour.continuation)}' if neighbour.continuation else ""
    return origin + spans_html(neighbour.neighbour) + continuation


def samples_table(off: list[ColouredChunk], on: list[ColouredChunk], num_neighbours: int = 2) -> str:
    """One row a chunk: retrieval off, retrieval on, and the neighbours that the chunk retrieved; an empty sample has no column."""
    columns: list[tuple[str, list[str]]] = []
    if off:
        columns.append(("retrieval off", [_chunk(chunk) for chunk in off]))
    if on:
        columns.append(("retrieval on, coloured by the neighbours of the row above", [_chunk(chunk) for chunk in on]))
        for rank in range(num_neighbours):
            cells = [_neighbour(chunk.neighbours[rank]) if rank < len(chunk.neighbours) else "" for chunk in on]
            columns.append((f"neighbour {rank + 1} ┃ its continuation", cells))
    length = max(len(off), len(on))
    head = "".join(f"<th>{escape(heading)}</th>" for heading, _ in columns)
    rows = zip(*(cells + [""] * (length - len(cells)) for _, cells in columns), strict=True)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f'{legend_html()}<table class="sample"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def samples_page(title: str, note: str, pairs: Sequence[Pair]) -> str:
    """A page that needs nothing else."""
    parts = []
    for pair in pairs:
        k = max((len(chunk.neighbours) for chunk in pair.on), default=0)
        parts.append(f'<h2>{escape(pair.heading)}</h2><p class="note">{escape(pair.note)}</p>{samples_table(pair.off, pair.on, k)}')
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(title)}</title>
<style>{PAGE_STYLE}{STYLE}</style></head><body>
<h1>{escape(title)}</h1><p class="note">{escape(note)}</p>
{"".join(parts)}
</body></html>
"""
