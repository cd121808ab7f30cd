"""Samples beside their neighbours, each token coloured by how long a run it shares, as in the paper's tables."""

from dataclasses import dataclass

import numpy as np

from retro.corpus.tokenizer import Tokenizer
from retro.retrieval.overlap import longest_common_prefix
from retro.sampling.sampler import Sample

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
    chunks = sample.chunks()
    result = []
    for u, chunk in enumerate(chunks):
        before = sample.neighbours[u - 1] if 0 < u <= len(sample.neighbours) else []
        overlaps: list[int | None] = [None] * len(chunk)
        if before:
            # A run may begin in the chunk before.
            context = np.array(chunks[u - 1] + chunk)
            overlaps = longest_common_prefix(context, np.stack([n.tokens for n in before]), tokenizer.pad_id)[len(chunks[u - 1]) :].tolist()
        following = np.array(chunks[u + 1] if u + 1 < len(chunks) else [], dtype=np.int64)
        neighbours = []
        for found in sample.neighbours[u] if u < len(sample.neighbours) else []:
            shared: list[int | None] = [None] * len(found.tokens)
            if len(following):
                shared = longest_common_prefix(found.tokens, following[None, :], tokenizer.pad_id).tolist()
            pairs = list(zip(found.tokens.tolist(), shared, strict=True))
            halves = (pairs[: sample.chunk_len], pairs[sample.chunk_len :])
            texts = [[Span(tokenizer.decode([t]), s) for t, s in half if t not in (tokenizer.pad_id, tokenizer.end_id)] for half in halves]
            neighbours.append(ColouredNeighbour(found.title, found.source, found.distance, *texts))
        spans = [Span(tokenizer.decode([token]), overlap) for token, overlap in zip(chunk, overlaps, strict=True)]
        result.append(ColouredChunk(spans, max(0, min(len(chunk), sample.prompt_len - u * sample.chunk_len)), neighbours))
    return result
