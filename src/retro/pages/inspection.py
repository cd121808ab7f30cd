"""An inspected document as one HTML page, in the manner of the paper's tables."""

from collections.abc import Sequence
from html import escape
from itertools import groupby
from math import log
from typing import Any

from retro.pages.html import legend_html, neighbour_html, page_html, spans_html
from retro.pages.record import chunk_record
from retro.scoring.inspection import InspectedChunk, InspectedDocument

LIMIT = 0.5 / log(2)
"""Bits at which the colour of a gain is full: half a nat, as in the paper."""
WORSE, BETTER = ("#efeaf7", "#ddd3ee", "#c9badf", "#b3a0d3"), ("#fdf5c9", "#fbeb94", "#f9e266", "#f6d743")
LEVELS = len(BETTER)
DIFFERENCE = "L<sub>OFF</sub> − L<sub>ON</sub>"
NOTHING_BEFORE = "there is no chunk before, and so no neighbour to share with"
NARROWEST = 290
"""Pixels of a column, below which the columns wrap."""

STYLE = (
    "".join(f".w{level} {{ background: {colour}; }}\n" for level, colour in enumerate(WORSE, start=1))
    + "".join(f".b{level} {{ background: {colour}; }}\n" for level, colour in enumerate(BETTER, start=1))
    + f"""
.legend {{ display: inline-block; margin: .3em 2em .3em 0; font-size: 13px; color: #444; }}
.numbers {{ display: flex; flex-wrap: wrap; gap: .4em 2.6em; margin: 1em 0; padding: 0; }}
.numbers div {{ display: flex; flex-direction: column-reverse; }} .numbers dt {{ font-size: 12px; color: #666; }}
.numbers dd {{ margin: 0; font-size: 1.35em; font-variant-numeric: tabular-nums; }}
.map {{ width: 100%; height: 72px; display: block; margin: .4em 0 0; }}
.map rect:hover {{ opacity: .6; }}
section {{ border-top: 1px solid #ccd; padding: .5em 0 1.1em; }} section:target {{ background: #f7f9fb; }}
section h2 {{ margin: .1em 0 .6em; font-size: 14px; font-weight: 600; font-variant-numeric: tabular-nums; }}
sub {{ line-height: 0; font-size: .75em; }} section h2 span {{ font-weight: 400; color: #666; margin-left: 1em; }}
.row {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(min({NARROWEST}px, 100%), 1fr)); gap: .9em 1.6em; }}
.row h3 {{ margin: 0 0 .4em; font-size: 12px; font-weight: 500; color: #777; }}
.row p {{ margin: 0; font: 12.5px/1.6 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; }}
"""
)


def inspection_page(document: InspectedDocument, note: str = "") -> str:
    """The page. `note` says where the numbers come from."""
    sections = "".join(_section(number, chunk) for number, chunk in enumerate(document.chunks, start=1))
    body = f"""<p class="note">{escape(" · ".join(filter(None, [document.source, document.id, note])))}</p>
{_numbers(document)}{_map(document.chunks)}
<p class="note">Bits saved in each chunk, from first to last. A chunk C is shown twice: by what every token gained, and by how much of it stands
in the neighbours of the chunk before, the only ones that it could see. Beside it are its own neighbours ┃ and their continuations, by what they
share with the chunk that comes next. The first chunk sees no neighbour.</p>
{_gain_legend()}{legend_html("Longest common run with the neighbours, in tokens")}
{sections}"""
    return page_html(document.title or document.id, STYLE, body)


def _numbers(document: InspectedDocument) -> str:
    size = max(1, document.num_bytes)
    saved = document.off - document.on
    facts = [
        (f"{document.off / size:.3f}", "bits per byte, RETRO[OFF]"),
        (f"{document.on / size:.3f}", f"bits per byte, RETRO[ON], k = {document.num_neighbours}"),
        (f"{abs(saved):,.1f}", "bits saved" if saved >= 0 else "bits more"),
        (f"{100 * abs(saved) / (document.off or 1.0):.1f} %", "of all bits"),
        (f"{document.num_bytes:,}", "bytes"),
        (f"{len(document.chunks)}", "chunks"),
    ]
    return (
        '<dl class="numbers">'
        + "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for value, name in facts)
        + "</dl>"
    )


def _map(chunks: Sequence[InspectedChunk]) -> str:
    """A bar for every chunk, up for what was saved and down for what was lost, which leads to it."""
    top, bottom = max(0.0, *(chunk.saved for chunk in chunks)), min(0.0, *(chunk.saved for chunk in chunks))
    scale = 100 / ((top - bottom) or 1.0)
    bars = []
    for number, chunk in enumerate(chunks):
        y, height = (top - max(0.0, chunk.saved)) * scale, max(abs(chunk.saved) * scale, 0.6)
        colour = BETTER[-1] if chunk.saved >= 0 else WORSE[-1]
        told = f"<title>C{number + 1}: {chunk.saved:+.1f} bits saved</title>"
        bars.append(
            f'<a href="#c{number + 1}"><rect x="{number * 10}" y="{y:.1f}" width="9" height="{height:.1f}" fill="{colour}">{told}</rect></a>'
        )
    return f'<svg class="map" viewBox="0 0 {10 * max(len(chunks), 24)} 101" preserveAspectRatio="none" role="img">{"".join(bars)}</svg>'


def _section(number: int, chunk: InspectedChunk) -> str:
    off, on = sum(chunk.off), sum(chunk.on)
    verdict = (
        f"{'saves' if chunk.saved >= 0 else 'costs'} {abs(chunk.saved):.1f}"
        if number > 1
        else "sees no neighbour"
    )
    head = f"C{number}<span>{off:.1f} → {on:.1f} bits</span><span>{verdict}</span>"
    cells = [(f"C{number} by {DIFFERENCE}", _gains(chunk))]
    if number > 1:
        cells.append(
            (
                f"C{number} by what it shares with the neighbours of C{number - 1}",
                spans_html(chunk.coloured.spans),
            )
        )
    else:
        cells.append((NOTHING_BEFORE, ""))  # the columns stay where they are
    for rank, neighbour in enumerate(chunk.coloured.neighbours, start=1):
        cells.append(
            (
                f"neighbour {rank} ┃ its continuation, by what it shares with C{number + 1}",
                neighbour_html(neighbour),
            )
        )
    row = "".join(f"<div><h3>{label}</h3><p>{text}</p></div>" for label, text in cells)
    return f'<section id="c{number}"><h2>{head}</h2><div class="row">{row}</div></section>\n'


def _gains(chunk: InspectedChunk) -> str:
    """Tokens coloured by their gain; what gained or lost next to nothing is plain text."""
    rows = zip(chunk.coloured.spans, chunk.off, chunk.on, strict=True)
    parts = []
    for level, group in groupby(
        rows, lambda row: max(-LEVELS, min(LEVELS, round((row[1] - row[2]) / LIMIT * LEVELS)))
    ):
        if level:
            name = f"{'b' if level > 0 else 'w'}{abs(level)}"
            parts += [
                f'<mark class={name} title="{off:.1f} → {on:.1f}">{escape(span.text, quote=False)}</mark>'
                for span, off, on in group
                if span.text
            ]
        else:
            parts.append(escape("".join(span.text for span, _, _ in group), quote=False))
    return "".join(parts)


def _gain_legend() -> str:
    boxes = [
        f"<mark class=w{level}>{'≤ −' if level == LEVELS else '−'}{level / LEVELS * LIMIT:.2f}</mark>"
        for level in range(LEVELS, 0, -1)
    ]
    boxes += ["<mark>0</mark>"]
    boxes += [
        f"<mark class=b{level}>{'≥ ' if level == LEVELS else ''}{level / LEVELS * LIMIT:.2f}</mark>"
        for level in range(1, LEVELS + 1)
    ]
    return f'<p class="legend">{DIFFERENCE} of a token, in bits: {"".join(boxes)}</p>'


def inspection_record(document: InspectedDocument) -> dict[str, Any]:
    """Everything that the page shows, as plain JSON; bits are of every token."""
    head = {
        name: getattr(document, name)
        for name in ("id", "title", "source", "num_neighbours", "num_bytes", "off", "on")
    }
    chunks = [
        {**chunk_record(chunk.coloured), "tokens": [span.text for span in chunk.coloured.spans], "off": chunk.off, "on": chunk.on,
         "num_bytes": chunk.num_bytes, "saved": chunk.saved}
        for chunk in document.chunks
    ]  # fmt: skip
    return {**head, "chunks": chunks}
