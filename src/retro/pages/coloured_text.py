"""Text coloured by the runs of tokens it shares with neighbours, as HTML and as plain JSON.

Colours are CSS classes, and adjacent tokens of one colour share an element, so that even a
long document makes a small page. A coloured run is a link to the other place where it stands.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from html import escape
from itertools import groupby
from typing import Any

from retro.pages.colours import SHARED_WORDS, legend, shared_labels
from retro.pages.sources import NOWHERE, SourceFiles, origin_html
from retro.retrieval.shared_runs import LONGEST, SHORTEST, ColouredChunk, ColouredNeighbour, Span

Target = Callable[[Span], str]
"""From a coloured token to the id of the place that its run leads to; empty if there is none."""


def spans_html(spans: Sequence[Span], target: Target | None = None, is_new: Sequence[bool] = ()) -> str:
    """Tokens with their colours; in the last colour, a title says how long the common run is.

    `is_new` says of each token whether it is marked as new beside another text.
    """
    parts = []
    pairs = list(zip(spans, is_new or [False] * len(spans), strict=True))
    # Adjacent tokens of one colour that lead to one place become one mark.
    for (level, place), group in groupby(pairs, lambda pair: (pair[0].level, _place(pair[0], target))):
        members = list(group)
        run = [span for span, _ in members]
        text = _marked(members)
        # Text that was compared with nothing stays plain.
        if level is None or not text or _is_blank(run, level):
            parts.append(text)
            continue
        # Only the last colour stands for runs of several lengths.
        longest = max(max(span.overlap or 0, span.run or 0) for span in run)
        title = f' title="{longest} in common"' if level == LONGEST else ""
        mark = f"<mark class=o{level}{title}>{text}</mark>"
        parts.append(f'<a href="#{place}">{mark}</a>' if place else mark)
    return "".join(parts)


def _marked(members: Sequence[tuple[Span, bool]]) -> str:
    """The text of tokens, with an element around those that are new."""
    parts = []
    for is_new, group in groupby(members, lambda pair: pair[1]):
        text = escape("".join(span.text for span, _ in group), quote=False)
        parts.append(f"<ins>{text}</ins>" if is_new and text else text)
    return "".join(parts)


def _is_blank(run: Sequence[Span], level: int) -> bool:
    """Whether a run is a single token but for the blank space around it, which any two texts share."""
    return SHORTEST <= level < LONGEST and sum(bool(span.text.strip()) for span in run) < SHORTEST


def _place(span: Span, target: Target | None) -> str:
    # What has no colour leads nowhere.
    return target(span) if target and (span.level or 0) >= SHORTEST else ""


def chunk_html(chunk: ColouredChunk, before: Sequence[str] = (), is_new: Sequence[bool] = ()) -> str:
    """A chunk's text with the prompt's part apart.

    `before` are the ids of the neighbours that the chunk reads, in their order: those of the chunk before.
    """
    given = chunk.prompt_len

    def target(span: Span) -> str:
        return before[span.rank] if span.rank is not None and span.rank < len(before) else ""

    prompt = spans_html(chunk.spans[:given], target, is_new[:given])
    head = f'<span class="prompt">{prompt}</span>' if given else ""
    return head + spans_html(chunk.spans[given:], target, is_new[given:])


def neighbour_html(
    neighbour: ColouredNeighbour, following: str = "", files: SourceFiles = NOWHERE, listed: bool = False
) -> str:
    """Where a neighbour comes from, its text and its continuation.

    Its runs lead to the chunk with the id `following`, and its title to the list of sources, if the page has
    one.
    """

    def target(_: Span) -> str:
        return following

    text = origin_html(neighbour, files, listed) + spans_html(neighbour.neighbour, target)
    if neighbour.continuation:
        continuation = spans_html(neighbour.continuation, target)
        text += f'<span class="divider" title="here the continuation begins"> ┃ </span>{continuation}'
    return text


def legend_html(words: str = SHARED_WORDS) -> str:
    """What the colours mean."""
    boxes = [(f"o{level}", label) for level, label in enumerate(shared_labels())]
    return legend(words, boxes, "One alone is chance and has no colour.")


def chunk_record(chunk: ColouredChunk) -> dict[str, Any]:
    """A chunk and its neighbours.

    `overlap` is the longest common prefix at each token, null where nothing was compared; `shared_with` the
    neighbour of the chunk before that the token's run stands in, from 0.
    """
    return {
        **_text(chunk.spans),
        "shared_with": [span.rank for span in chunk.spans],
        "neighbours": [_neighbour(neighbour) for neighbour in chunk.neighbours],
    }


def _neighbour(neighbour: ColouredNeighbour) -> dict[str, Any]:
    place = neighbour.place
    return {
        "document": neighbour.document,
        "title": neighbour.title,
        "source": neighbour.source,
        "distance": neighbour.distance,
        "place": None if place is None else asdict(place),
        "neighbour": _text(neighbour.neighbour),
        "continuation": _text(neighbour.continuation),
    }


def _text(spans: Sequence[Span]) -> dict[str, Any]:
    return {"text": "".join(span.text for span in spans), "overlap": [span.overlap for span in spans]}
