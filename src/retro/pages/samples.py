"""Coloured samples as HTML: retrieval off, retrieval on, and the neighbours, side by side like the paper's tables."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from retro.pages import html
from retro.pages.html import legend_html, neighbour_html, page_html, spans_html
from retro.retrieval.shared_runs import ColouredChunk

TABLE_STYLE = """
table.sample { border-collapse: collapse; width: 100%; table-layout: fixed; }
table.sample td, table.sample th { vertical-align: top; padding: .6em; border-top: 1px solid #ddd; text-align: left; }
table.sample th { position: sticky; top: 0; background: #fff; font-size: 13px; border-top: none; border-bottom: 2px solid #bbb; }
table.sample td { font: 12px/1.55 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; }
table.sample td + td { border-left: 1px solid #eee; }
table.sample .prompt { color: #667; }
"""
STYLE = html.STYLE + TABLE_STYLE


@dataclass(frozen=True)
class Pair:
    """The same prompt and seed without and with retrieval; either may be missing."""

    heading: str
    off: list[ColouredChunk]
    on: list[ColouredChunk]
    note: str = ""


def _chunk(chunk: ColouredChunk) -> str:
    prompt = chunk.spans[: chunk.prompt_len]
    head = f'<span class="prompt">{spans_html(prompt)}</span>' if prompt else ""
    return head + spans_html(chunk.spans[chunk.prompt_len :])


def samples_table(off: list[ColouredChunk], on: list[ColouredChunk], num_neighbours: int = 2) -> str:
    """One row a chunk: retrieval off, retrieval on, and the neighbours that the chunk retrieved; an empty sample has no column."""
    columns: list[tuple[str, list[str]]] = []
    if off:
        columns.append(("retrieval off", [_chunk(chunk) for chunk in off]))
    if on:
        columns.append(
            ("retrieval on, coloured by the neighbours of the row above", [_chunk(chunk) for chunk in on])
        )
        for rank in range(num_neighbours):
            cells = [
                neighbour_html(chunk.neighbours[rank]) if rank < len(chunk.neighbours) else "" for chunk in on
            ]
            columns.append((f"neighbour {rank + 1} ┃ its continuation", cells))
    length = max(len(off), len(on))
    head = "".join(f"<th>{escape(heading)}</th>" for heading, _ in columns)
    rows = zip(*(cells + [""] * (length - len(cells)) for _, cells in columns), strict=True)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f'{legend_html()}<table class="sample"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def samples_page(title: str, note: str, pairs: Sequence[Pair]) -> str:
    """A page that needs nothing else."""
    parts = [f'<p class="note">{escape(note)}</p>']
    for pair in pairs:
        k = max((len(chunk.neighbours) for chunk in pair.on), default=0)
        parts.append(
            f'<h2>{escape(pair.heading)}</h2><p class="note">{escape(pair.note)}</p>{samples_table(pair.off, pair.on, k)}'
        )
    return page_html(title, TABLE_STYLE, "\n".join(parts))
