"""Samples beside their neighbours, each token coloured by how long a run it shares, as in the paper's tables."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from retro.corpus.tokenizer import Tokenizer
from retro.retrieval.datastore import Neighbour
from retro.retrieval.overlap import longest_common_prefix
from retro.sampling.sample import Sample
from retro.sampling.text import pieces

PALETTE = ("#b3a8c9", "#aab7d1", "#a0cfcd", "#a6dbb5", "#cfe59b", "#fdf19b")
"""Light viridis for longest common prefixes of 0, 1, 2, 3, 4 and 5 or more tokens."""


@dataclass(frozen=True)
class Span:
    """A token's text and the length of its longest common prefix; none where nothing was compared."""

    text: str
    overlap: int | None

    @property
    def colour(self) -> str | None:
        return None if self.overlap is None else PALETTE[min(self.overlap, len(PALETTE) - 1)]


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
    prompt_len: int
    """How many of the chunk's tokens belong to the prompt."""
    neighbours: list[ColouredNeighbour]


def colour_sample(sample: Sample, tokenizer: Tokenizer) -> list[ColouredChunk]:
    """The sample chunk by chunk. The first chunk has no neighbours before it and is not coloured."""
    chunks, texts, m = sample.chunks(), pieces(tokenizer, sample.tokens), sample.chunk_len
    found = [sample.neighbours[u] if u < len(sample.neighbours) else [] for u in range(len(chunks))]
    result = []
    for u, chunk in enumerate(chunks):
        overlaps: list[int | None] = [None] * len(chunk)
        if u and found[u - 1]:
            # A run may begin in the chunk before.
            context = np.array(chunks[u - 1] + chunk)
            overlaps = longest_common_prefix(context, np.stack([n.tokens for n in found[u - 1]]), tokenizer.pad_id)[m:].tolist()
        spans = [Span(*pair) for pair in zip(texts[u * m : (u + 1) * m], overlaps, strict=True)]
        following = chunks[u + 1] if u + 1 < len(chunks) else []
        neighbours = [colour_neighbour(neighbour, following, m, tokenizer) for neighbour in found[u]]
        result.append(ColouredChunk(spans, max(0, min(len(chunk), sample.prompt_len - u * m)), neighbours))
    return result


def colour_neighbour(neighbour: Neighbour, following: Sequence[int], chunk_len: int, tokenizer: Tokenizer) -> ColouredNeighbour:
    """A neighbour beside the chunk that follows the one which retrieved it; not coloured if none follows."""
    tokens = neighbour.tokens
    shared: list[int | None] = [None] * len(tokens)
    if len(following):
        shared = longest_common_prefix(tokens, np.array(following)[None, :], tokenizer.pad_id).tolist()
    texts = pieces(tokenizer, tokens.tolist())
    hidden = (tokenizer.pad_id, tokenizer.end_id)
    rows = list(zip(tokens.tolist(), texts, shared, strict=True))
    halves = (
        [Span(text, overlap) for token, text, overlap in half if token not in hidden] for half in (rows[:chunk_len], rows[chunk_len:])
    )
    return ColouredNeighbour(neighbour.document, neighbour.title, neighbour.source, neighbour.distance, *halves)
