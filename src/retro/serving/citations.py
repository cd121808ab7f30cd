"""What an answer has read: for each part of its text the neighbours, and what they share word for word."""

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

import numpy as np

from retro.corpus.tokenizers.tokenizer import Tokenizer
from retro.generation.sequence import Sample
from retro.retrieval.overlap import longest_common_prefix
from retro.retrieval.search import Neighbour
from retro.retrieval.shared_runs import SHORTEST
from retro.serving import schema
from retro.serving.explaining import Explanation, Part, parts_of
from retro.serving.memory import licence_of


class Offsets:
    """Where the tokens of a text begin and end in it, in characters."""

    def __init__(self, pieces: Sequence[str], length: int | None = None) -> None:
        """`length` is that of the text, which may end before its last token does."""
        ends = np.cumsum([0, *map(len, pieces)])
        self._ends = ends if length is None else np.minimum(ends, length)

    def __call__(self, token: int) -> int:
        """Where a token begins; the text's end for the one after the last."""
        return int(self._ends[min(token, len(self._ends) - 1)])


@dataclass(frozen=True)
class Citer:
    """Makes citations. `base` is where this server is reached, without a slash at its end."""

    tokenizer: Tokenizer
    base: str = ""
    copied_tokens: int = 32

    def neighbour(self, rank: int, found: Neighbour, shown: bool = True) -> schema.CitedNeighbour:
        """A neighbour by itself; only its rank and distance if it must not be shown."""
        if not shown:
            return schema.CitedNeighbour(
                rank=rank,
                document="",
                id="",
                title="",
                source="",
                url="",
                place=None,
                distance=found.distance,
                text="",
                continuation=0,
                licence="",
                runs=[],
                bits=None,
                saved=None,
                attention=None,
                deleted=True,
            )
        place = found.place
        # N is the first half of [N, F].
        first_half = self.tokenizer.decode(found.tokens[: len(found.tokens) // 2].tolist())
        return schema.CitedNeighbour(
            rank=rank,
            document=found.content_hash,
            id="" if place is None else found.document,
            title=found.title,
            source=found.source,
            url=self.url(found.content_hash, place.start) if place is not None else "",
            place=None if place is None else schema.Place(**vars(place)),
            distance=found.distance,
            text=found.text,
            continuation=min(len(first_half), len(found.text)),
            licence=licence_of(found.source),
            runs=[],
            bits=None,
            saved=None,
            attention=None,
            deleted=False,
        )

    def url(self, document: str, at: int | None = None) -> str:
        place = "" if at is None else f"?at={at}"
        return f"{self.base}/sources/{quote(document, safe='')}{place}"

    def begun(
        self, sample: Sample, number: int, found: Sequence[Neighbour], start: int, shown: set[int]
    ) -> schema.CitedChunk:
        """The neighbours that the text reads from here on; `start` is how long it is by now."""
        return schema.CitedChunk(
            number=number,
            start=start,
            end=None,
            first_token=max(0, (number + 1) * sample.chunk_len - sample.prompt_len),
            end_token=None,
            neighbours=[
                self.neighbour(rank, neighbour, _is_shown(neighbour, shown))
                for rank, neighbour in enumerate(found)
            ],
            bits=None,
        )

    def chunks(
        self, sample: Sample, shown: set[int], explanation: Explanation | None = None
    ) -> list[schema.CitedChunk]:
        """All parts of a finished answer."""
        offsets = Offsets(self.tokenizer.pieces(sample.continuation), len(sample.text))
        return [self._chunk(sample, part, offsets, shown, explanation) for part in parts_of(sample)]

    def _chunk(
        self,
        sample: Sample,
        part: Part,
        offsets: Offsets,
        shown: set[int],
        explanation: Explanation | None,
    ) -> schema.CitedChunk:
        own = part.of_answer(sample.prompt_len)
        neighbours = []
        for rank, found in enumerate(sample.neighbours[part.chunk]):
            cited = self.neighbour(rank, found, _is_shown(found, shown))
            if not cited.deleted:
                cited.runs = self._runs(sample, part, found, offsets)
            if explanation is not None:
                cited.bits = explanation.by_neighbour.get((part.chunk, rank))
                cited.attention = explanation.attention.get((part.chunk, rank))
                # Which words a deleted one made likely would tell what stood in it.
                if not cited.deleted:
                    cited.saved = explanation.by_token.get((part.chunk, rank))
            neighbours.append(cited)
        bits = None if explanation is None else sum(explanation.saved[own])
        return schema.CitedChunk(
            number=part.chunk,
            start=offsets(own.start),
            end=offsets(own.stop),
            first_token=own.start,
            end_token=own.stop,
            neighbours=neighbours,
            bits=bits,
        )

    def _runs(self, sample: Sample, part: Part, found: Neighbour, offsets: Offsets) -> list[schema.SharedRun]:
        """The longest runs of a part that stand in a neighbour; one may begin in the chunk before."""
        first = max(sample.prompt_len, part.chunk * sample.chunk_len)
        tokens = np.array(sample.tokens[first : part.stop])
        lengths = longest_common_prefix(tokens, found.tokens[None], self.tokenizer.pad_id).tolist()
        # A run that ended before this part began belongs to the part before.
        ends = [last for last in _run_ends(lengths) if first + last >= part.start]
        if not ends:
            return []
        places = Offsets(self.tokenizer.pieces(found.tokens.tolist()))
        runs = []
        for last in ends:
            length = lengths[last]
            begin = last - length + 1
            at = _find(found.tokens, tokens[begin : last + 1])
            answer = slice(first + begin - sample.prompt_len, first + last + 1 - sample.prompt_len)
            start, end = offsets(answer.start), offsets(answer.stop)
            text = sample.text[start:end]
            if text.strip():
                runs.append(
                    schema.SharedRun(
                        start=start,
                        end=end,
                        tokens=length,
                        text=text,
                        neighbour_start=places(at),
                        neighbour_end=places(at + length),
                    )
                )
        return runs

    def tokens(self, sample: Sample, explanation: Explanation) -> list[schema.AnswerToken]:
        """The tokens of an answer, with what retrieval saved on each."""
        offsets = Offsets(self.tokenizer.pieces(sample.continuation), len(sample.text))
        return [
            schema.AnswerToken(id=token, start=offsets(place), end=offsets(place + 1), saved=saved)
            for place, (token, saved) in enumerate(zip(sample.continuation, explanation.saved, strict=True))
        ]

    def warnings(self, chunks: Sequence[schema.CitedChunk]) -> list[schema.CopyWarning]:
        """Long runs that were copied, each once; of several that lie in one another the longest."""
        long = [
            (run, neighbour)
            for chunk in chunks
            for neighbour in chunk.neighbours
            for run in neighbour.runs
            # What was given with the request is no source.
            if run.tokens > self.copied_tokens and neighbour.document
        ]
        warnings: list[schema.CopyWarning] = []
        for run, neighbour in sorted(long, key=lambda pair: -pair[0].tokens):
            if any(other.start <= run.start and run.end <= other.end for other in warnings):
                continue
            name = neighbour.title or neighbour.id
            where = f"{name!r} ({neighbour.source})"
            terms = f"under {neighbour.licence}" if neighbour.licence else "whose licence is not known"
            warnings.append(
                schema.CopyWarning(
                    start=run.start,
                    end=run.end,
                    tokens=run.tokens,
                    document=neighbour.document,
                    title=neighbour.title,
                    source=neighbour.source,
                    licence=neighbour.licence,
                    url=neighbour.url,
                    message=f"{run.tokens} tokens stand word for word in {where}, {terms}",
                )
            )
        return sorted(warnings, key=lambda warning: warning.start)


def annotations(chunks: Sequence[schema.CitedChunk], before: int = 0) -> list[schema.Annotation]:
    """The same as clients of OpenAI show it; `before` the answer stand so many characters."""
    return [
        schema.Annotation(
            url_citation=schema.UrlCitation(
                start_index=before + chunk.start,
                end_index=before + (chunk.start if chunk.end is None else chunk.end),
                title=neighbour.title or neighbour.id,
                url=neighbour.url,
            )
        )
        for chunk in chunks
        for neighbour in chunk.neighbours
        if neighbour.url
    ]


def sources(answers: Sequence[Sequence[schema.CitedChunk]]) -> list[schema.Source]:
    """Every document that the answers have read, once, with the texts that were read of it."""
    found: dict[str, schema.Source] = {}
    seen: set[tuple[str, int]] = set()
    for chunks in answers:
        for neighbour in (neighbour for chunk in chunks for neighbour in chunk.neighbours):
            place = -1 if neighbour.place is None else neighbour.place.start
            name = neighbour.document or neighbour.title
            if neighbour.deleted or (name, place) in seen:
                continue
            seen.add((name, place))
            title = neighbour.title or neighbour.id
            source = found.setdefault(
                name,
                schema.Source(
                    source=schema.SourceName(name=title, url=neighbour.url, id=neighbour.document),
                    document=[],
                    metadata=[],
                    distances=[],
                ),
            )
            source.document.append(neighbour.text)
            source.metadata.append(
                schema.SourceMetadata(source=neighbour.source, name=title, url=neighbour.url)
            )
            source.distances.append(neighbour.distance)
    return list(found.values())


def chunk_numbers(neighbours: Sequence[Sequence[Neighbour]]) -> list[int]:
    """The datastore's numbers of neighbours; given passages have none."""
    return [found.chunk for part in neighbours for found in part if found.place is not None]


def _is_shown(found: Neighbour, shown: set[int]) -> bool:
    return found.place is None or found.chunk in shown


def _run_ends(lengths: Sequence[int]) -> list[int]:
    """Where runs end that are worth showing, by the length of the longest that ends at each token."""
    following = [*lengths[1:], 0]
    return [
        place
        for place, (length, after) in enumerate(zip(lengths, following, strict=True))
        if length >= SHORTEST and after != length + 1
    ]


def _find(tokens: np.ndarray, wanted: np.ndarray) -> int:
    """Where a run of tokens that stands there begins."""
    windows = np.lib.stride_tricks.sliding_window_view(tokens, len(wanted))
    return int(np.flatnonzero((windows == wanted).all(axis=1))[0])
