"""Samples beside the neighbours they read, like the paper's tables, as HTML and plain JSON."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any

from retro.corpus.tokenizers.tokenizer import Tokenizer
from retro.generation.sequence import Sample
from retro.pages.coloured_text import chunk_html, chunk_record, legend_html, neighbour_html
from retro.pages.shell import Made, page, why
from retro.pages.sources import NOWHERE, SourceFiles, sources_html
from retro.retrieval.shared_runs import ColouredChunk, ColouredNeighbour, colour_chunks

FIRST = "Not coloured: the first chunk has none before it whose neighbours it could read."
NOTHING_READ = "Not coloured: the chunk above has no neighbours to read."
NONE_FOLLOWS = "No chunk follows that could read neighbours, so none were retrieved."
NOT_RETRIEVED = (
    "Nothing was retrieved for this chunk: it has no text, was not asked for, or nothing was allowed."
)
ENDED = "The sample ended above."


@dataclass(frozen=True)
class Pair:
    """Samples of one prompt and seed without and with retrieval; either may be missing."""

    heading: str
    off: list[ColouredChunk]
    on: list[ColouredChunk]
    note: str = ""

    @property
    def num_neighbours(self) -> int:
        """The most neighbours that any chunk has."""
        return max((len(chunk.neighbours) for chunk in self.on), default=0)


def colour_sample(sample: Sample, tokenizer: Tokenizer) -> list[ColouredChunk]:
    """The sample chunk by chunk, with how much of each belongs to the prompt."""
    coloured = []
    for number, chunk in enumerate(colour_chunks(sample.chunks(), sample.neighbours, tokenizer)):
        # How much of the prompt is left where this chunk begins: perhaps more than the chunk
        # holds, or less than nothing.
        left = sample.prompt_len - number * sample.chunk_len
        coloured.append(replace(chunk, prompt_len=max(0, min(len(chunk.spans), left))))
    return coloured


def sample_record(sample: Sample, tokenizer: Tokenizer) -> dict[str, Any]:
    """Everything the page shows of a sample, and its log-probabilities, if any."""
    chunks = zip(sample.chunks(), colour_sample(sample, tokenizer), strict=True)
    return {
        "prompt": sample.prompt,
        "text": sample.text,
        "finish": sample.finish,
        "retrieval": sample.retrieval,
        "log_probs": sample.log_probs,
        "chunks": [
            {**chunk_record(chunk), "tokens": tokens, "prompt_tokens": chunk.prompt_len}
            for tokens, chunk in chunks
        ],
    }


def samples_page(
    title: str, note: str, pairs: Sequence[Pair], made: Made | None = None, files: SourceFiles = NOWHERE
) -> str:
    """A page of pairs of samples, one below the other, with one legend and one list of sources."""
    parts = [f'<p class="note">{escape(note)}</p>']
    if any(pair.on for pair in pairs):
        parts.append(legend_html())
    shown: list[tuple[str, str, ColouredNeighbour]] = []
    for number, pair in enumerate(pairs, start=1):
        # Ids of one page must differ.
        prefix = f"s{number}-"
        parts.append(f'<h2>{escape(pair.heading)}</h2><p class="note">{escape(pair.note)}</p>')
        parts.append(samples_table(pair.off, pair.on, pair.num_neighbours, prefix, files))
        names = f"sample {number}, " if len(pairs) > 1 else ""
        shown += shown_neighbours(pair.on, prefix, names)
    parts.append(sources_html(shown, files))
    return page(title, "\n".join(parts), wide=True, made=made)


def shown_neighbours(
    chunks: Sequence[ColouredChunk], prefix: str = "", names: str = ""
) -> Iterator[tuple[str, str, ColouredNeighbour]]:
    """The neighbours of a table, each with its id there and what to call that place."""
    for number, chunk in enumerate(chunks, start=1):
        for rank, neighbour in enumerate(chunk.neighbours, start=1):
            yield _neighbour_id(prefix, number, rank), f"{names}chunk {number}, neighbour {rank}", neighbour


def _chunk_id(prefix: str, number: int) -> str:
    return f"{prefix}c{number}"


def _neighbour_id(prefix: str, number: int, rank: int) -> str:
    return f"{_chunk_id(prefix, number)}-n{rank}"


@dataclass(frozen=True)
class Cell:
    """A cell of the table: its HTML and the id that links lead to, if any."""

    text: str
    id: str = ""

    def html(self, column: str) -> str:
        name = f' id="{self.id}"' if self.id else ""
        # A telephone shows the cells one below the other, each under the name of its column.
        return f'<td{name} data-column="{escape(column)}">{self.text}</td>'


def samples_table(
    off: list[ColouredChunk],
    on: list[ColouredChunk],
    num_neighbours: int = 2,
    prefix: str = "",
    files: SourceFiles = NOWHERE,
) -> str:
    """A row for each chunk: retrieval off, retrieval on, and the chunk's neighbours.

    An empty sample has no column. Ids in the page begin with `prefix`.
    """
    columns: list[tuple[str, list[Cell]]] = []
    if off:
        columns.append(("retrieval off", [Cell(chunk_html(chunk)) for chunk in off]))
    if on:
        heading = "retrieval on, coloured by the neighbours of the row above"
        columns.append((heading, [_text_cell(on, number, prefix) for number in range(len(on))]))
        # One column a rank, so that neighbours can be read down the page.
        for rank in range(num_neighbours):
            cells = [_neighbour_cell(on, number, rank, prefix, files) for number in range(len(on))]
            columns.append((f"neighbour {rank + 1} ┃ its continuation", cells))
    num_rows = max(len(off), len(on))
    head = "".join(f"<th>{escape(heading)}</th>" for heading, _ in columns)
    rows = []
    for row in range(num_rows):
        # Of two samples one may be shorter.
        filled = [(name, cells[row] if row < len(cells) else Cell(why(ENDED))) for name, cells in columns]
        rows.append(f"<tr>{''.join(cell.html(name) for name, cell in filled)}</tr>")
    return f'<table class="sample"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'


def neighbour_ids(chunks: Sequence[ColouredChunk], number: int, prefix: str) -> list[str]:
    """The ids of the neighbours that a chunk reads: those of the chunk before."""
    read = chunks[number - 1].neighbours if number else []
    return [_neighbour_id(prefix, number, rank + 1) for rank in range(len(read))]


def _text_cell(chunks: Sequence[ColouredChunk], number: int, prefix: str) -> Cell:
    """A chunk's text, with links to the neighbours of the chunk before; or why it has no colours."""
    before = neighbour_ids(chunks, number, prefix)
    reason = "" if before else why(NOTHING_READ if number else FIRST)
    text = chunk_html(chunks[number], before)
    return Cell(f"{text}\n\n{reason}" if reason else text, _chunk_id(prefix, number + 1))


def _neighbour_cell(
    chunks: Sequence[ColouredChunk], number: int, rank: int, prefix: str, files: SourceFiles
) -> Cell:
    """A chunk's neighbour of this rank; the reason if it has fewer."""
    neighbours = chunks[number].neighbours
    is_last = number == len(chunks) - 1
    if rank < len(neighbours):
        following = "" if is_last else _chunk_id(prefix, number + 2)
        text = neighbour_html(neighbours[rank], following, files, listed=True)
        return Cell(text, _neighbour_id(prefix, number + 1, rank + 1))
    if neighbours:
        return Cell(why(f"Only {len(neighbours)} found for this chunk."))
    return Cell(why(NONE_FOLLOWS if is_last else NOT_RETRIEVED))
