"""What is answered about the server, its datastore and its tokenizer, and errors."""

from typing import Literal

from retro.serving.schema.cited import Answer, CitedNeighbour


class ErrorBody(Answer):
    message: str
    type: str
    param: str | None
    code: str | None


class Error(Answer):
    """OpenAI's shape of an error."""

    error: ErrorBody


class Model(Answer):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str


class Models(Answer):
    object: Literal["list"] = "list"
    data: list[Model]


class Health(Answer):
    status: Literal["ok", "stopping"]
    running: int
    """Sequences in the batch."""
    waiting: int
    """Requests in the queue."""


class SourceCount(Answer):
    source: str
    documents: int
    tokens: int
    bytes: int
    licence: str


class Limits(Answer):
    """What a request may ask for at most."""

    prompt_tokens: int
    max_tokens: int
    n: int
    stop: int
    batch: int
    queue: int
    body_bytes: int
    seconds: float
    document_bytes: int


class Info(Answer):
    """What is served, for the page."""

    model: str
    version: str
    """Of retro."""
    retrieves: bool
    has_datastore: bool
    chat: bool
    chunk_len: int
    num_neighbours: int
    datastore_version: int | None
    sources: list[SourceCount]
    writes: bool
    """Whether documents can be added and deleted, with a key."""
    copied_tokens: int
    """A run of more tokens than this gets a warning."""
    limits: Limits


class DocumentRow(Answer):
    document: str
    """The content hash: its name in `/sources/…`."""
    id: str
    source: str
    title: str
    language: str
    tokens: int
    bytes: int
    chunks: int
    licence: str
    url: str


class Documents(Answer):
    version: int
    total: int
    data: list[DocumentRow]
    next: str | None
    """What to give as `after` for the next page; null at the end."""


class DocumentText(DocumentRow):
    """A document, or the part of it around a place."""

    version: int
    start: int
    """The first token of `text`."""
    end: int
    text: str
    marked_start: int
    """Where the chunk that was asked for begins in `text`, in characters; equal to its end without one."""
    marked_end: int
    previous: str | None
    """The part before this one, as an address; null at the beginning."""
    following: str | None


class Found(Answer):
    query: str
    version: int
    results: list[CitedNeighbour]


class Added(Answer):
    document: str
    id: str
    source: str
    url: str
    version: int


class Deleted(Answer):
    deleted: int
    """How many documents: all that have this text, or this id."""
    version: int


class TokenizerInfo(Answer):
    """What lm-evaluation-harness asks of a tokenizer that is elsewhere."""

    tokenizer_class: str
    eos_token: str
    bos_token: str | None
    pad_token: str | None
    chat_template: str | None


class Tokenized(Answer):
    tokens: list[int]
    count: int
    max_model_len: int | None


class Detokenized(Answer):
    prompt: str
