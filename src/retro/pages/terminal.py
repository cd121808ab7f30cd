"""Coloured samples for the terminal."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from retro.retrieval.shared_runs import PALETTE, ColouredChunk, Span


def spans_text(spans: list[Span], dim_first: int = 0) -> Text:
    text = Text()
    for number, span in enumerate(spans):
        style = f"black on {span.colour}" if span.colour else ("dim" if number < dim_first else "")
        text.append(span.text, style)
    return text


def legend() -> Text:
    text = Text("longest common run in tokens: ")
    for length, colour in enumerate(PALETTE):
        text.append(f" {length}{'+' if length == len(PALETTE) - 1 else ''} ", f"black on {colour}")
    return text


def render_sample(chunks: list[ColouredChunk], title: str) -> RenderableType:
    """One row a chunk: the text on the left, the neighbours that it retrieved on the right."""
    has_neighbours = any(chunk.neighbours for chunk in chunks)
    table = Table(title=title, show_lines=True, expand=True)
    table.add_column("prompt (dim) and sample", ratio=1)
    if has_neighbours:
        table.add_column("neighbours and their continuations", ratio=2)
    for chunk in chunks:
        cells: list[RenderableType] = [spans_text(chunk.spans, chunk.prompt_len)]
        if has_neighbours:
            cells.append(Group(*(_neighbour_text(chunk))))
        table.add_row(*cells)
    return Group(table, legend()) if has_neighbours else table


def _neighbour_text(chunk: ColouredChunk) -> list[Text]:
    texts = []
    for rank, neighbour in enumerate(chunk.neighbours, start=1):
        text = Text("\n" if rank > 1 else "")
        text.append(
            f"{rank}. {neighbour.title} ({neighbour.source}, distance {neighbour.distance:.2f})\n", "bold"
        )
        for part in (
            spans_text(neighbour.neighbour),
            Text(" | ", "bold"),
            spans_text(neighbour.continuation),
        ):
            text.append_text(part)
        texts.append(text)
    return texts
