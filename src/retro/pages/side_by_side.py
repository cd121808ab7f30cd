"""Samples of one prompt side by side, with links to what each has read, and what is new in the last."""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from html import escape

from retro.pages.coloured_text import chunk_html
from retro.pages.samples import ENDED, Cell, neighbour_ids
from retro.pages.shell import why
from retro.retrieval.shared_runs import ColouredChunk

STYLE = """\
ins { text-decoration: underline dotted var(--quiet) 2px; text-underline-offset: .25em; }
@media (min-width: 761px) {
  table.side td { font: 14px/1.6 system-ui, sans-serif; padding: .8em 1.2em; }
  table.side { max-width: 1500px; }
}
"""


SAME_RUN = 4


@dataclass(frozen=True)
class Column:
    """A sample, with what its ids in the page begin with."""

    heading: str
    chunks: Sequence[ColouredChunk]
    prefix: str
    is_new: Sequence[bool] = ()
    """Which tokens another sample does not have at their place; none if it is compared with nothing."""


def new_tokens(before: Sequence[int], after: Sequence[int]) -> list[bool]:
    """Which tokens of a text are not those of another, read side by side.

    Runs that both have count as the same only from some length on: single words are in any two texts.
    """
    # Without its guess at what is junk, which leaves frequent tokens out of long texts.
    matcher = SequenceMatcher(None, before, after, autojunk=False)
    is_new = [True] * len(after)
    for block in matcher.get_matching_blocks():
        if block.size >= min(SAME_RUN, len(after)):
            is_new[block.b : block.b + block.size] = [False] * block.size
    return is_new


def side_by_side(columns: Sequence[Column]) -> str:
    """A row for each chunk, a column for each sample; chunks of the prompt stand there once."""
    head = "".join(f"<th>{escape(column.heading)}</th>" for column in columns)
    rows = []
    for number in range(max(len(column.chunks) for column in columns)):
        shared = _shared_prompt(columns, number)
        if shared:
            rows.append(f'<tr><td colspan="{len(columns)}" data-column="the prompt">{shared}</td></tr>')
            continue
        cells = "".join(_cell(column, number).html(column.heading) for column in columns)
        rows.append(f"<tr>{cells}</tr>")
    table = f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody>"
    return f'<table class="sample side">{table}</table>'


def _shared_prompt(columns: Sequence[Column], number: int) -> str:
    """The chunk of this number, if it is all prompt and reads nothing, so the same in all columns."""
    longer = [column for column in columns if number < len(column.chunks)]
    chunks = [column.chunks[number] for column in longer]
    is_prompt = all(chunk.prompt_len == len(chunk.spans) for chunk in chunks)
    if not is_prompt or any(neighbour_ids(column.chunks, number, "") for column in longer):
        return ""
    return chunk_html(ColouredChunk(chunks[0].spans, [], chunks[0].prompt_len))


def _cell(column: Column, number: int) -> Cell:
    if number >= len(column.chunks):
        return Cell(why(ENDED))
    before = neighbour_ids(column.chunks, number, column.prefix)
    first = sum(len(chunk.spans) for chunk in column.chunks[:number])
    chunk = column.chunks[number]
    return Cell(chunk_html(chunk, before, column.is_new[first : first + len(chunk.spans)]))
