"""An inspected document as an HTML page, like the paper's tables, and as plain JSON."""

from collections.abc import Sequence
from html import escape
from itertools import groupby
from math import log
from typing import Any

from retro.pages.coloured_text import chunk_record, legend_html, neighbour_html, spans_html
from retro.pages.shell import BETTER, page
from retro.scoring.inspection import InspectedChunk, InspectedDocument

LIMIT = 0.5 / log(2)
"""The gain in bits that gets the strongest colour: half a nat, as in the paper."""
LEVELS = len(BETTER)
DIFFERENCE = "L<sub>OFF</sub> − L<sub>ON</sub>"
NOTHING_BEFORE = "there is no chunk before, and so no neighbour to share with"
EXPLANATION = """\
Bits saved in each chunk, from first to last. Each chunk C is shown twice: by what every token
gained, and by how much of it occurs in the neighbours of the chunk before, the only ones it could
see. Beside it are its own neighbours ┃ and their continuations, by what they share with the next
chunk. The first chunk sees no neighbour."""
STYLE = """\
.legend { display: inline-block; margin: .3em 2em .3em 0; font-size: 13px; color: var(--quiet); }
.totals { display: flex; flex-wrap: wrap; gap: .4em 2.6em; margin: 1em 0; padding: 0; }
.totals div { display: flex; flex-direction: column-reverse; }
.totals dt { font-size: 12px; color: var(--quiet); }
.totals dd { margin: 0; font-size: 1.35em; font-variant-numeric: tabular-nums; }
.map { width: 100%; height: 72px; display: block; margin: .4em 0 0; }
.map rect:hover { opacity: .6; }
.map .gain { fill: var(--better-4); }
.map .loss { fill: var(--worse-4); }
section { border-top: 1px solid var(--line); padding: .5em 0 1.1em; }
section:target { background: var(--raised); }
section h2 { margin: .1em 0 .6em; font-size: 14px; font-weight: 600; font-variant-numeric: tabular-nums; }
section h2 span { font-weight: 400; color: var(--quiet); margin-left: 1em; }
sub { line-height: 0; font-size: .75em; }
.row { display: grid; gap: .9em 1.6em;
       grid-template-columns: repeat(auto-fit, minmax(min(290px, 100%), 1fr)); }
.row h3 { margin: 0 0 .4em; font-size: 12px; font-weight: 500; color: var(--quiet); }
.row p { margin: 0; font: 12.5px/1.6 ui-monospace, monospace;
         white-space: pre-wrap; overflow-wrap: anywhere; }
"""


def inspection_page(document: InspectedDocument, note: str = "") -> str:
    """The page. `note` says where the numbers come from."""
    origin = " · ".join(filter(None, [document.source, document.id, note]))
    sections = "".join(_section(number, chunk) for number, chunk in enumerate(document.chunks, start=1))
    body = f"""<p class="note">{escape(origin)}</p>
{_totals(document)}{_map(document.chunks)}
<p class="note">{EXPLANATION}</p>
{_gain_legend()}{legend_html("Longest common run with the neighbours, in tokens")}
{sections}"""
    return page(document.title or document.id, body, STYLE, wide=True)


def _totals(document: InspectedDocument) -> str:
    # An empty document must not divide by zero.
    size = max(1, document.num_bytes)
    saved = document.off - document.on
    totals = [
        (f"{document.off / size:.3f}", "bits per byte, RETRO[OFF]"),
        (f"{document.on / size:.3f}", f"bits per byte, RETRO[ON], k = {document.num_neighbours}"),
        (f"{abs(saved):,.1f}", "bits saved" if saved >= 0 else "bits more"),
        (f"{100 * abs(saved) / (document.off or 1.0):.1f} %", "of all bits"),
        (f"{document.num_bytes:,}", "bytes"),
        (f"{len(document.chunks)}", "chunks"),
    ]
    cells = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for value, name in totals)
    return f'<dl class="totals">{cells}</dl>'


def _map(chunks: Sequence[InspectedChunk]) -> str:
    """A bar for every chunk, linked to it: up for bits saved, down for bits lost."""
    top = max(0.0, *(chunk.saved for chunk in chunks))
    bottom = min(0.0, *(chunk.saved for chunk in chunks))
    # The bars fill a height of 100, whatever the largest gain and loss.
    scale = 100 / ((top - bottom) or 1.0)
    bars = []
    for number, chunk in enumerate(chunks):
        # In SVG y grows downwards: gains end at the zero line, losses begin there.
        y = (top - max(0.0, chunk.saved)) * scale
        # A bar without height could be neither seen nor clicked.
        height = max(abs(chunk.saved) * scale, 0.6)
        name = "gain" if chunk.saved >= 0 else "loss"
        bars.append(
            f'<a href="#c{number + 1}">'
            f'<rect class="{name}" x="{number * 10}" y="{y:.1f}" width="9" height="{height:.1f}">'
            f"<title>C{number + 1}: {chunk.saved:+.1f} bits saved</title></rect></a>"
        )
    # Room for at least 24 bars, so that those of a short document stay narrow.
    box = f"0 0 {10 * max(len(chunks), 24)} 101"
    return f'<svg class="map" viewBox="{box}" preserveAspectRatio="none" role="img">{"".join(bars)}</svg>'


def _section(number: int, chunk: InspectedChunk) -> str:
    """A chunk by its gains and by what it shares with the neighbours of the chunk before, and
    its own neighbours."""
    verdict = "sees no neighbour"
    shared = (NOTHING_BEFORE, "")  # empty, so that the columns stay where they are
    if number > 1:
        verdict = f"{'saves' if chunk.saved >= 0 else 'costs'} {abs(chunk.saved):.1f}"
        heading = f"C{number} by what it shares with the neighbours of C{number - 1}"
        shared = (heading, spans_html(chunk.coloured.spans))
    cells = [(f"C{number} by {DIFFERENCE}", _gains(chunk)), shared]
    for rank, neighbour in enumerate(chunk.coloured.neighbours, start=1):
        heading = f"neighbour {rank} ┃ its continuation, by what it shares with C{number + 1}"
        cells.append((heading, neighbour_html(neighbour)))
    bits = f"{sum(chunk.off):.1f} → {sum(chunk.on):.1f} bits"
    head = f"C{number}<span>{bits}</span><span>{verdict}</span>"
    row = "".join(f"<div><h3>{heading}</h3><p>{text}</p></div>" for heading, text in cells)
    return f'<section id="c{number}"><h2>{head}</h2><div class="row">{row}</div></section>\n'


def _gains(chunk: InspectedChunk) -> str:
    """Tokens coloured by their gain; those that gained or lost almost nothing are plain text."""
    rows = zip(chunk.coloured.spans, chunk.off, chunk.on, strict=True)
    parts = []
    # Plain tokens are joined; coloured ones are not, as each has a title with its own bits.
    for level, group in groupby(rows, lambda row: _level(row[1] - row[2])):
        if not level:
            parts.append(escape("".join(span.text for span, _, _ in group), quote=False))
            continue
        name = f"{'b' if level > 0 else 'w'}{abs(level)}"
        for span, off, on in group:
            if span.text:
                text = escape(span.text, quote=False)
                parts.append(f'<mark class={name} title="{off:.1f} → {on:.1f}">{text}</mark>')
    return "".join(parts)


def _level(gain: float) -> int:
    """The colour of a gain in bits: −4 for a large loss, 0 for none, 4 for a large gain."""
    # Beyond the limit the colour stays the strongest.
    return max(-LEVELS, min(LEVELS, round(gain / LIMIT * LEVELS)))


def _gain_legend() -> str:
    boxes = []
    for level in range(-LEVELS, LEVELS + 1):
        size = f"{abs(level) / LEVELS * LIMIT:.2f}"
        if level < 0:
            boxes.append(f"<mark class=w{-level}>{'≤ ' if level == -LEVELS else ''}−{size}</mark>")
        elif level > 0:
            boxes.append(f"<mark class=b{level}>{'≥ ' if level == LEVELS else ''}{size}</mark>")
        else:
            boxes.append("<mark>0</mark>")
    return f'<p class="legend">{DIFFERENCE} of a token, in bits: {"".join(boxes)}</p>'


def inspection_record(document: InspectedDocument) -> dict[str, Any]:
    """Everything the page shows; `off` and `on` of a chunk are the bits of each token."""
    chunks = [
        {
            **chunk_record(chunk.coloured),
            "tokens": [span.text for span in chunk.coloured.spans],
            "off": chunk.off,
            "on": chunk.on,
            "num_bytes": chunk.num_bytes,
            "saved": chunk.saved,
        }
        for chunk in document.chunks
    ]
    return {
        "id": document.id,
        "title": document.title,
        "source": document.source,
        "num_neighbours": document.num_neighbours,
        "num_bytes": document.num_bytes,
        "off": document.off,
        "on": document.on,
        "chunks": chunks,
    }
