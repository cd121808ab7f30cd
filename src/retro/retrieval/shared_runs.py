"""Chunks beside their neighbours, each token with the run that it shares: the paper's coloured tables."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from retro.corpus.tokenizers.tokenizer import Tokenizer
from retro.retrieval.datastore import Neighbour
from retro.retrieval.overlap import longest_common_prefix
from retro.retrieval.search import Place

SHORTEST = 2
"""The shortest run that is shown in colour: any text shares single tokens with any other."""
LONGEST = 5
"""Runs of this length and longer look the same."""


@dataclass(frozen=True)
class Span:
    """A token's text, and what it shares."""

    text: str
    overlap: int | None
    """The longest shared run that ends at this token (LCP in the paper); none if nothing was compared."""
    run: int | None = None
    """The length of the shared run that the token lies in, which may go on behind it; none if that is not
    known."""
    rank: int | None = None
    """Of a chunk's token, the neighbour that the run stands in, from 0."""

    @property
    def level(self) -> int | None:
        """Its place among the colours: the length of its run, up to the longest that has a colour."""
        length = self.overlap if self.run is None else self.run
        return None if length is None else min(length, LONGEST)


@dataclass(frozen=True)
class ColouredNeighbour:
    """[N, F] coloured by what it shares with the chunk that follows the retrieving one."""

    document: str
    title: str
    source: str
    distance: float
    neighbour: list[Span]
    continuation: list[Span]
    place: Place | None = None
    """Where in its document N lies."""


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
        spans = [Span(next(texts), None) for _ in chunk]
        if before:
            shared = _shared_with(before, chunks[u - 1], chunk, tokenizer.pad_id)
            spans = _coloured(spans, shared.max(axis=0), shared.argmax(axis=0))
        following = chunks[u + 1] if u + 1 < len(chunks) else ()
        own = found[u] if u < len(found) else ()
        neighbours = [colour_neighbour(neighbour, following, tokenizer) for neighbour in own]
        result.append(ColouredChunk(spans, neighbours))
    return result


def _shared_with(
    neighbours: Sequence[Neighbour], before: Sequence[int], chunk: Sequence[int], pad_id: int
) -> np.ndarray:
    """Runs (neighbour, token) that end at each of a chunk's tokens; one may begin in the chunk before."""
    tokens = np.array([*before, *chunk])
    runs = [longest_common_prefix(tokens, neighbour.tokens[None], pad_id) for neighbour in neighbours]
    return np.stack(runs)[:, len(before) :]


def _coloured(spans: Sequence[Span], overlaps: np.ndarray, ranks: np.ndarray | None = None) -> list[Span]:
    """The spans with the runs that end at them, and the whole runs they lie in."""
    result: list[Span] = []
    following: Span | None = None
    # From last to first, because a run's length is known at its last token.
    for number in range(len(spans) - 1, -1, -1):
        overlap = int(overlaps[number])
        if following is not None and overlap and following.overlap == overlap + 1:
            # The run goes on, so this token belongs to the next one's run, in the same neighbour.
            run, rank = following.run, following.rank
        else:
            run, rank = overlap, None if ranks is None or not overlap else int(ranks[number])
        following = replace(spans[number], overlap=overlap, run=run, rank=rank)
        result.append(following)
    return result[::-1]


def colour_neighbour(
    neighbour: Neighbour, following: Sequence[int], tokenizer: Tokenizer
) -> ColouredNeighbour:
    """A neighbour beside the chunk that follows the one which retrieved it; not coloured if none follows."""
    tokens = neighbour.tokens
    spans = [Span(text, None) for text in tokenizer.pieces(tokens.tolist())]
    if len(following):
        shared = longest_common_prefix(tokens, np.array(following)[None, :], tokenizer.pad_id)
        spans = _coloured(spans, shared)
    hidden = (tokenizer.pad_id, tokenizer.end_id)
    shown = [token not in hidden for token in tokens.tolist()]
    # N is the first half of [N, F] and F the second, before hidden tokens are left out.
    middle = len(spans) // 2
    return ColouredNeighbour(
        document=neighbour.document,
        title=neighbour.title,
        source=neighbour.source,
        distance=neighbour.distance,
        neighbour=_kept(spans[:middle], shown[:middle]),
        continuation=_kept(spans[middle:], shown[middle:]),
        place=neighbour.place,
    )


def _kept(spans: Sequence[Span], shown: Sequence[bool]) -> list[Span]:
    return [span for span, keep in zip(spans, shown, strict=True) if keep]
