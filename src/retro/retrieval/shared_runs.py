"""Chunks beside their neighbours, each token with the run that it shares: the paper's coloured tables."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from retro.corpus.tokenizers.tokenizer import Tokenizer
from retro.retrieval.datastore import Neighbour
from retro.retrieval.overlap import longest_common_prefix

PALETTE = ("#e7e3ee", "#c3cee3", "#a0cfcd", "#a6dbb5", "#cfe59b", "#fdf19b")
"""Light viridis for shared runs of 0, 1, 2, 3, 4 and 5 or more tokens; palest where nothing is shared."""


@dataclass(frozen=True)
class Span:
    """A token's text, and what it shares."""

    text: str
    overlap: int | None
    """The longest shared run that ends at this token (LCP in the paper); none if nothing was compared."""

    @property
    def level(self) -> int | None:
        """Its place in the palette."""
        if self.overlap is None:
            return None
        return min(self.overlap, len(PALETTE) - 1)

    @property
    def colour(self) -> str | None:
        return None if self.level is None else PALETTE[self.level]


@dataclass(frozen=True)
class ColouredNeighbour:
    """[N, F] coloured by what it shares with the chunk that follows the retrieving one."""

    document: str
    title: str
    source: str
    distance: float
    neighbour: list[Span]
    continuation: list[Span]


@dataclass(frozen=True)
class ColouredChunk:
    """A chunk coloured by what it shares with the neighbours of the chunk before, and its own neighbours."""

    spans: list[Span]
    neighbours: list[ColouredNeighbour]
    prompt_len: int = 0
    """How many of the chunk's tokens belong to a prompt."""


def colour_chunks(
    chunks: Sequence[Sequence[int]], found: Sequence[Sequence[Neighbour]], tokenizer: Tokenizer
) -> list[ColouredChunk]:
    """The chunks of one text with the neighbours that each found; `found` may be shorter than the text.

    A chunk reads the neighbours of the one before it, so it is coloured by what it shares with those. A
    chunk whose predecessor found nothing is not coloured, and the first one never is.
    """
    # All tokens at once, since a character may be spread over tokens of two chunks.
    texts = iter(tokenizer.pieces(token for chunk in chunks for token in chunk))
    result = []
    for u, chunk in enumerate(chunks):
        before = found[u - 1] if 0 < u <= len(found) else ()
        overlaps: Sequence[int | None] = [None] * len(chunk)
        if before:
            overlaps = _shared_with(before, chunks[u - 1], chunk, tokenizer.pad_id)
        spans = [Span(next(texts), overlap) for overlap in overlaps]
        following = chunks[u + 1] if u + 1 < len(chunks) else ()
        own = found[u] if u < len(found) else ()
        neighbours = [colour_neighbour(neighbour, following, tokenizer) for neighbour in own]
        result.append(ColouredChunk(spans, neighbours))
    return result


def _shared_with(
    neighbours: Sequence[Neighbour], before: Sequence[int], chunk: Sequence[int], pad_id: int
) -> Sequence[int | None]:
    """The shared run that ends at each of a chunk's tokens; a run may begin in the chunk before."""
    others = np.stack([neighbour.tokens for neighbour in neighbours])
    runs = longest_common_prefix(np.array([*before, *chunk]), others, pad_id)
    shared: list[int | None] = runs[len(before) :].tolist()
    return shared


def colour_neighbour(
    neighbour: Neighbour, following: Sequence[int], tokenizer: Tokenizer
) -> ColouredNeighbour:
    """A neighbour beside the chunk that follows the one which retrieved it; not coloured if none follows."""
    tokens = neighbour.tokens
    shared: list[int | None] = [None] * len(tokens)
    if len(following):
        shared = longest_common_prefix(tokens, np.array(following)[None, :], tokenizer.pad_id).tolist()
    pieces = tokenizer.pieces(tokens.tolist())
    hidden = (tokenizer.pad_id, tokenizer.end_id)
    spans = [
        None if token in hidden else Span(text, overlap)
        for token, text, overlap in zip(tokens.tolist(), pieces, shared, strict=True)
    ]
    # N is the first half of [N, F] and F the second, before hidden tokens are left out.
    middle = len(spans) // 2
    return ColouredNeighbour(
        document=neighbour.document,
        title=neighbour.title,
        source=neighbour.source,
        distance=neighbour.distance,
        neighbour=[span for span in spans[:middle] if span is not None],
        continuation=[span for span in spans[middle:] if span is not None],
    )
