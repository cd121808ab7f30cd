"""Coloured samples for the terminal."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from retro.pages.colours import SHARED_WORDS, shared_labels, shared_shade
from retro.retrieval.shared_runs import ColouredChunk, ColouredNeighbour, Span


def render_sample(chunks: Sequence[ColouredChunk], title: str) -> RenderableType:
    """A row for each chunk: its text on the left, its neighbours on the right."""
    # Without retrieval there is neither an empty column nor a legend.
    has_neighbours = any(chunk.neighbours for chunk in chunks)
    table = Table(title=title, show_lines=True, expand=True)
    table.add_column("prompt (dim) and sample", ratio=1)
    if has_neighbours:
        table.add_column("neighbours and their continuations", ratio=2)
    for chunk in chunks:
        cells: list[RenderableType] = [spans_text(chunk.spans, chunk.prompt_len)]
        if has_neighbours:
            ranked = enumerate(chunk.neighbours, start=1)
            cells.append(Group(*(_neighbour_text(rank, neighbour) for rank, neighbour in ranked)))
        table.add_row(*cells)
    return Group(table, legend()) if has_neighbours else table


def spans_text(spans: Sequence[Span], num_dim: int = 0) -> Text:
    """Tokens on their colours; of those without a colour, the first `num_dim` are dim."""
    text = Text()
    for number, span in enumerate(spans):
        style = "dim" if number < num_dim else ""
        if shade := shared_shade(span.level):
            # The colours for light paper on any terminal, so the letters on them are black.
            style = f"black on {shade.light}"
        text.append(span.text, style)
    return text


def legend() -> Text:
    """What the colours mean."""
    text = Text(f"{SHARED_WORDS}: ")
    for level, label in enumerate(shared_labels()):
        shade = shared_shade(level)
        text.append(f" {label} ", f"black on {shade.light}" if shade else "")
    return text


def _neighbour_text(rank: int, neighbour: ColouredNeighbour) -> Text:
    text = Text("\n" if rank > 1 else "")
    origin = f"{neighbour.title} ({neighbour.source}, distance {neighbour.distance:.2f})"
    text.append(f"{rank}. {origin}\n", "bold")
    text.append_text(spans_text(neighbour.neighbour))
    text.append(" | ", "bold")
    text.append_text(spans_text(neighbour.continuation))
    return text
