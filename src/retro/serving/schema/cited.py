"""What is answered about retrieval: neighbours, what they were worth, and the sources of an answer."""

from typing import Literal

from pydantic import BaseModel, ConfigDict


class Answer(BaseModel):
    """What the server sends."""

    model_config = ConfigDict(extra="forbid")


class Place(Answer):
    """Where a chunk lies in its document, in tokens."""

    chunk: int
    """Its number in the document, from 0."""
    num_chunks: int
    start: int
    end: int


class SharedRun(Answer):
    """A run of tokens that stands in the answer and in a neighbour, word for word."""

    start: int
    """Where it begins in the answer's text, in characters."""
    end: int
    tokens: int
    text: str
    neighbour_start: int
    """Where it begins in the neighbour's `text`, in characters."""
    neighbour_end: int


class CitedNeighbour(Answer):
    """A neighbour that a part of an answer has read."""

    rank: int
    """From 0, the nearest first."""
    document: str
    """The document's content hash: its name in `/sources/…`, and in `exclude`. Empty for a given passage."""
    id: str
    title: str
    source: str
    url: str
    """The document at this place; empty for a given passage."""
    place: Place | None
    distance: float
    text: str
    """[N, F]: the chunk and its continuation."""
    continuation: int
    """Where the continuation begins in `text`, in characters."""
    licence: str
    """That of its source, where it is known."""
    runs: list[SharedRun]
    bits: float | None
    """What it saved on this part of the answer: bits without it, less bits with it; null unless explained."""
    saved: list[float] | None
    """The same on each token of this part: `bits` is their sum; null unless explained, and of a
    deleted one."""
    attention: float | None
    """The part of the attention that went to it in the layers that read neighbours; null unless explained."""
    deleted: bool
    """It was deleted while the answer was written: nothing of it is shown."""


class CitedChunk(Answer):
    """A part of an answer, and the neighbours that it has read: those of the chunk before it."""

    number: int
    """The chunk that retrieved, counted from the prompt's beginning, from 0."""
    start: int
    """Where the part that reads these neighbours begins in the answer's text, in characters."""
    end: int | None
    """Null while the part is still being written."""
    first_token: int
    """The same in tokens of the answer, from 0."""
    end_token: int | None
    neighbours: list[CitedNeighbour]
    bits: float | None
    """What all neighbours together saved on this part; null unless explained."""


class AnswerToken(Answer):
    """A token of the answer."""

    id: int
    start: int
    """Where its text begins in the answer, in characters. A character of several tokens is the last one's."""
    end: int
    saved: float | None
    """Bits that retrieval saved on it: without any neighbour, less with them; null unless asked for."""


class CopyWarning(Answer):
    """A long run of the answer stands in a source word for word."""

    start: int
    end: int
    tokens: int
    document: str
    title: str
    source: str
    licence: str
    url: str
    message: str


class ExplainCost(Answer):
    """What it took to say what neighbours were worth."""

    passes: int
    """Texts scored."""
    tokens: int
    seconds: float
    times_the_answer: float
    """Its seconds as a multiple of those that the answer took."""


class Retrieved(Answer):
    """Everything about the retrieval of one answer."""

    retrieval: bool
    version: int | None
    """The datastore's version when the answer was finished."""
    prompt_tokens: int
    chunk_len: int
    chunks: list[CitedChunk]
    tokens: list[AnswerToken] | None
    """Null unless `worth` or `explain` was asked for."""
    bits: float | None
    """What retrieval saved on the whole answer."""
    warnings: list[CopyWarning]
    notes: list[str]
    """Why nothing was retrieved, and the like."""
    explained: ExplainCost | None


class UrlCitation(Answer):
    start_index: int
    end_index: int
    title: str
    url: str


class Annotation(Answer):
    """OpenAI's way to cite, which clients show."""

    type: Literal["url_citation"] = "url_citation"
    url_citation: UrlCitation


class SourceName(Answer):
    name: str
    url: str
    id: str


class SourceMetadata(Answer):
    source: str
    name: str
    url: str


class Source(Answer):
    """A document that the answers cite, in the shape that Open WebUI shows."""

    source: SourceName
    document: list[str]
    """The texts that were read of it."""
    metadata: list[SourceMetadata]
    distances: list[float]
