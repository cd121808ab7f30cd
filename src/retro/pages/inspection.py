"""An inspected document as an HTML page, like the paper's tables, and as plain JSON."""

from collections.abc import Iterator
from html import escape
from itertools import groupby
from math import log
from typing import Any

from retro.pages.chunk_map import chunk_map
from retro.pages.coloured_text import chunk_html, chunk_record, legend_html, neighbour_html
from retro.pages.colours import BETTER, gain_legend
from retro.pages.shell import Made, page, why
from retro.pages.sources import NOWHERE, SourceFiles, sources_html
from retro.retrieval.shared_runs import ColouredNeighbour
from retro.scoring.inspection import InspectedChunk, InspectedDocument

LIMIT = 0.5 / log(2)
"""The gain in bits that gets the strongest colour: half a nat, as in the paper."""
LEVELS = len(BETTER)
DIFFERENCE = "L<sub>OFF</sub> − L<sub>ON</sub>"
NOTHING_BEFORE = "There is no chunk before it, and so no neighbour to share with."
NOTHING_READ = "The chunk before found no neighbour, so there is nothing to share with."
NONE_FOLLOWS = "No chunk follows that could read neighbours, so none are shown."
NONE_FOUND = "No neighbour was saved for this chunk: it has no text, or its neighbours were deleted."
EXPLANATION = """\
Each chunk C is shown twice: by what every token gained, and by how much of it occurs in the neighbours
of the chunk before, the only ones it could see. Beside it are its own neighbours ┃ and their
continuations, by what they share with the next chunk. A coloured run leads to the other place where it
stands, a neighbour's title to the list of sources at the end."""
STYLE = """\
.totals { display: flex; flex-wrap: wrap; gap: .4em 2.6em; margin: 1em 0; padding: 0; }
.totals div { display: flex; flex-direction: column-reverse; }
.totals dt { font-size: 12px; color: var(--quiet); }
.totals dd { margin: 0; font-size: 1.35em; font-variant-numeric: tabular-nums; }
/* Not narrower than its text can be read: a telephone scrolls. */
.map { width: 100%; min-width: 960px; display: block; }
.map text { font: 11px system-ui, sans-serif; fill: var(--quiet); }
.map line { stroke: var(--line); }
.map .zero { stroke: var(--quiet); }
.map a:hover rect, .map a:focus rect { opacity: .6; }
.map .gain { fill: var(--good); }
.map .loss { fill: var(--bad); }
section { border-top: 1px solid var(--line); padding: .5em 0 1.1em; }
section h2 { margin: .1em 0 .6em; font-size: 14px; font-weight: 600; font-variant-numeric: tabular-nums; }
section h2 span { font-weight: 400; color: var(--quiet); margin-left: 1em; }
sub { line-height: 0; font-size: .75em; }
.row { display: grid; gap: .9em 1.6em;
       grid-template-columns: repeat(auto-fit, minmax(min(290px, 100%), 1fr)); }
.row h3 { margin: 0 0 .4em; font-size: 12px; font-weight: 500; color: var(--quiet); }
.row p { margin: 0; font: 12.5px/1.6 ui-monospace, monospace;
         white-space: pre-wrap; overflow-wrap: anywhere; }
"""


def inspection_page(
    document: InspectedDocument, note: str = "", made: Made | None = None, files: SourceFiles = NOWHERE
) -> str:
    """The page. `note` says where the numbers come from."""
    sections = "".join(_section(document, number, files) for number in range(1, len(document.chunks) + 1))
    body = f"""<p class="note">{_origin(document, note, files)}</p>
{_totals(document)}
<h2>Bits saved in each chunk</h2>
{chunk_map([chunk.saved for chunk in document.chunks])}
<p class="note">{EXPLANATION}</p>
{gain_legend([level / LEVELS * LIMIT for level in range(1, LEVELS + 1)])}
{legend_html()}
{sections}
{sources_html(_shown(document), files)}"""
    return page(document.title or document.id, body, STYLE, wide=True, made=made)


def _origin(document: InspectedDocument, note: str, files: SourceFiles) -> str:
    """The document's source and id, with a link to its file where that is here."""
    file = files.find(document.source, document.id)
    name = escape(document.id)
    if file is not None:
        name = f'<a href="{escape(file.as_uri())}">{name}</a>'
    return " · ".join(filter(None, [escape(document.source), name, escape(note)]))


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


def _shown(document: InspectedDocument) -> Iterator[tuple[str, str, ColouredNeighbour]]:
    for number, chunk in enumerate(document.chunks, start=1):
        for rank, neighbour in enumerate(chunk.coloured.neighbours, start=1):
            yield _neighbour_id(number, rank), f"C{number}, neighbour {rank}", neighbour


def _neighbour_id(number: int, rank: int) -> str:
    return f"n{number}-{rank}"


def _section(document: InspectedDocument, number: int, files: SourceFiles) -> str:
    """A chunk by its gains and by what it shares with the neighbours of the chunk before, and
    its own neighbours."""
    chunk = document.chunks[number - 1]
    cells = [("", f"C{number} by {DIFFERENCE}", _gains(chunk)), ("", *_shared(document, number))]
    following = f"c{number + 1}" if number < len(document.chunks) else ""
    for rank, neighbour in enumerate(chunk.coloured.neighbours, start=1):
        heading = f"neighbour {rank} ┃ its continuation, by what it shares with C{number + 1}"
        text = neighbour_html(neighbour, following, files, listed=True)
        cells.append((_neighbour_id(number, rank), heading, text))
    if not chunk.coloured.neighbours:
        cells.append(("", "its own neighbours", why(NONE_FOUND if following else NONE_FOLLOWS)))
    verdict = "sees no neighbour"
    if number > 1:
        verdict = f"{'saves' if chunk.saved >= 0 else 'costs'} {abs(chunk.saved):.1f}"
    bits = f"{sum(chunk.off):.1f} → {sum(chunk.on):.1f} bits"
    head = f"C{number}<span>{bits}</span><span>{verdict}</span>"
    row = "".join(
        f"<div{place and f' id={place}'}><h3>{heading}</h3><p>{text}</p></div>"
        for place, heading, text in cells
    )
    return f'<section id="c{number}"><h2>{head}</h2><div class="row">{row}</div></section>\n'


def _shared(document: InspectedDocument, number: int) -> tuple[str, str]:
    """A chunk by what it shares with what it could read, under a heading; or why there is nothing."""
    if number == 1:
        return "what it shares", why(NOTHING_BEFORE)
    heading = f"C{number} by what it shares with the neighbours of C{number - 1}"
    read = document.chunks[number - 2].coloured.neighbours
    before = [_neighbour_id(number - 1, rank + 1) for rank in range(len(read))]
    text = chunk_html(document.chunks[number - 1].coloured, before)
    return heading, text if read else f"{text}\n\n{why(NOTHING_READ)}"


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
