"""Samples beside the neighbours they read, like the paper's tables, as HTML and plain JSON."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any

from retro.corpus.tokenizers.tokenizer import Tokenizer
from retro.generation.sequence import Sample
from retro.pages.coloured_text import chunk_record, legend_html, neighbour_html, spans_html
from retro.pages.shell import page
from retro.retrieval.shared_runs import ColouredChunk, colour_chunks


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


def samples_page(title: str, note: str, pairs: Sequence[Pair]) -> str:
    """A page of pairs of samples, one below the other."""
    parts = [f'<p class="note">{escape(note)}</p>']
    for pair in pairs:
        parts.append(f'<h2>{escape(pair.heading)}</h2><p class="note">{escape(pair.note)}</p>')
        parts.append(samples_table(pair.off, pair.on, pair.num_neighbours))
    return page(title, "\n".join(parts), wide=True)


def samples_table(off: list[ColouredChunk], on: list[ColouredChunk], num_neighbours: int = 2) -> str:
    """A row for each chunk: retrieval off, retrieval on, and the chunk's neighbours.

    An empty sample has no column.
    """
    columns: list[tuple[str, list[str]]] = []
    if off:
        columns.append(("retrieval off", [_chunk(chunk) for chunk in off]))
    if on:
        heading = "retrieval on, coloured by the neighbours of the row above"
        columns.append((heading, [_chunk(chunk) for chunk in on]))
        # One column a rank, so that neighbours can be read down the page.
        for rank in range(num_neighbours):
            columns.append((f"neighbour {rank + 1} ┃ its continuation", _neighbours(on, rank)))
    num_rows = max(len(off), len(on))
    head = "".join(f"<th>{escape(heading)}</th>" for heading, _ in columns)
    # Shorter columns are filled with empty cells; `zip` then turns columns into rows.
    filled = [cells + [""] * (num_rows - len(cells)) for _, cells in columns]
    rows = ["".join(f"<td>{cell}</td>" for cell in row) for row in zip(*filled, strict=True)]
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f'{legend_html()}<table class="sample"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _chunk(chunk: ColouredChunk) -> str:
    prompt = spans_html(chunk.spans[: chunk.prompt_len])
    head = f'<span class="prompt">{prompt}</span>' if chunk.prompt_len else ""
    return head + spans_html(chunk.spans[chunk.prompt_len :])


def _neighbours(chunks: Sequence[ColouredChunk], rank: int) -> list[str]:
    """Each chunk's neighbour of this rank; empty if it has fewer."""
    return [
        neighbour_html(chunk.neighbours[rank]) if rank < len(chunk.neighbours) else "" for chunk in chunks
    ]
