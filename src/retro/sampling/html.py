"""Coloured samples as HTML: retrieval off, retrieval on, and the neighbours, side by side like the paper's tables."""

from html import escape

from retro.sampling.colours import PALETTE, ColouredChunk, ColouredNeighbour, Span

STYLE = """
table.sample { border-collapse: collapse; width: 100%; table-layout: fixed; }
table.sample td, table.sample th { vertical-align: top; padding: .6em; border-top: 1px solid #ddd; text-align: left; }
table.sample td { font: 12px/1.5 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; }
table.sample .prompt { color: #667; }
table.sample .origin { font: 11px/1.4 system-ui, sans-serif; color: #555; display: block; margin-bottom: .4em; }
table.sample .divider { color: #999; }
.legend span { padding: .1em .5em; margin-right: .2em; font-size: 12px; }
"""


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


def _chunk(chunk: ColouredChunk | None) -> str:
    if chunk is None:
        return ""
    prompt = chunk.spans[: chunk.prompt_len]
    head = f'<span class="prompt">{spans_html(prompt)}</span>' if prompt else ""
    return head + spans_html(chunk.spans[chunk.prompt_len :])


def _neighbour(neighbour: ColouredNeighbour | None) -> str:
    if neighbour is None:
        return ""
    origin = (
        f'<span class="origin"><b>{escape(neighbour.title)}</b> · {escape(neighbour.source)} · distance {neighbour.distance:.2f}</span>'
    )
    continuation = f'<span class="divider"> ⏐ </span>{spans_html(neighbour.continuation)}' if neighbour.continuation else ""
    return origin + spans_html(neighbour.neighbour) + continuation


def samples_table(off: list[ColouredChunk], on: list[ColouredChunk], num_neighbours: int = 2) -> str:
    """One row a chunk: RETRO[OFF], RETRO[ON], and the neighbours that the chunk retrieved."""
    headings = ["RETRO[OFF]", "RETRO[ON]", *(f"neighbour {rank} ⏐ its continuation" for rank in range(1, num_neighbours + 1))]
    rows = []
    for u in range(max(len(off), len(on))):
        chunk = on[u] if u < len(on) else None
        found = chunk.neighbours if chunk else []
        cells = [_chunk(off[u] if u < len(off) else None), _chunk(chunk)]
        cells += [_neighbour(found[rank] if rank < len(found) else None) for rank in range(num_neighbours)]
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    return f'{legend_html()}<table class="sample"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
