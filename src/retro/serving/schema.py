"""Requests and answers as JSON: the only place where pydantic is used, and what the OpenAPI document shows.

Names that OpenAI has are OpenAI's. What is ours is in a field called `retro`, which plain clients leave out
of a request and overlook in an answer.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

MOST_TOKENS_IN_PROMPTS = 1 << 17
"""The server's own limits are lower; these keep a request from being read at all."""
Finite = Annotated[float, Field(allow_inf_nan=False)]
Token = Annotated[int, Field(strict=True, ge=0, le=1 << 31)]
Tokens = Annotated[list[Token], Field(max_length=MOST_TOKENS_IN_PROMPTS)]


class Strict(BaseModel):
    """What clients send: an unknown field is an error, so that no option is overlooked unsaid."""

    model_config = ConfigDict(extra="forbid", strict=False)


class Answer(BaseModel):
    """What the server sends."""

    model_config = ConfigDict(extra="forbid")


# What is asked


class RetroOptions(Strict):
    """How an answer retrieves, and what is told about it."""

    retrieval: bool = True
    """False: RETRO[OFF], or the base as it is."""
    num_neighbours: int | None = Field(None, ge=1, le=64)
    """Neighbours of each chunk, k."""
    sources: list[str] = Field(default_factory=list, max_length=64)
    """Retrieve documents of these sources only."""
    exclude: list[str] = Field(default_factory=list, max_length=256)
    """Documents that must not be retrieved, by id or content hash."""
    passages: list[str] = Field(default_factory=list, max_length=16)
    """Texts that every chunk reads in place of what a search would find."""
    every: int = Field(1, ge=1, le=1 << 20)
    """Retrieve at every n-th chunk only."""
    worth: bool = False
    """Tell for each token of the answer what retrieval saved on it, in bits: two more passes."""
    explain: bool = False
    """Tell for each neighbour what it saved, by leaving it out and scoring again: one more pass each."""

    def chooses(self) -> bool:
        """Whether something is asked for that only makes sense with retrieval."""
        return bool(self.num_neighbours or self.sources or self.exclude or self.passages or self.every > 1)


class StreamOptions(Strict):
    """OpenAI's options of a stream."""

    include_usage: bool = False
    include_obfuscation: bool | None = None
    """Accepted, and without effect: nothing is padded here."""


class Sampling(Strict):
    """What both ways to ask have in common."""

    model: str = Field("", max_length=512)
    """The model's name as `/v1/models` gives it; empty: the one that is served."""
    temperature: Finite | None = Field(None, ge=0, le=2)
    top_p: Finite | None = Field(None, gt=0, le=1)
    n: int | None = Field(None, ge=1, le=128)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: str | list[str] | None = None
    seed: int | None = Field(None, ge=-(1 << 63), lt=1 << 63)
    presence_penalty: Finite | None = Field(None, ge=-2, le=2)
    frequency_penalty: Finite | None = Field(None, ge=-2, le=2)
    logit_bias: dict[str, Any] | None = None
    """Refused unless it is empty."""
    user: str | None = None
    """Accepted, and neither used nor kept."""
    top_k: int | None = Field(None, ge=0, le=1 << 31)
    """Not OpenAI's: draw from this many of the most probable tokens; 0: from all."""
    repetition_penalty: Finite | None = Field(None, gt=0, le=10)
    """Not OpenAI's: above 1, tokens of prompt and answer become less likely."""
    min_tokens: int | None = Field(None, ge=0, le=1 << 20)
    """Not OpenAI's: nothing ends an answer before it has this many tokens."""
    retro: RetroOptions = RetroOptions()


class CompletionRequest(Sampling):
    """A text to continue, or several."""

    prompt: str | Tokens | list[str] | list[Tokens] = Field(
        examples=["The licence permits", [1, 2, 3]], union_mode="left_to_right"
    )
    max_tokens: int | None = Field(None, ge=0, le=1 << 20)
    """16 by default, as OpenAI's; 0 only with `echo`."""
    logprobs: int | None = Field(None, ge=0, le=20)
    """Log-probabilities of the tokens, and of so many of the most probable ones."""
    echo: bool | None = None
    """Give the prompt back, too; with `logprobs`, its true log-probabilities."""
    best_of: int | None = Field(None, ge=1, le=128)
    """Refused unless it is n."""
    suffix: str | None = None
    """Refused."""


class ContentPart(Strict):
    """A part of a message; only text is understood."""

    type: Literal["text"]
    text: str


class Message(Strict):
    """A turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[ContentPart]
    name: str | None = None


class ChatRequest(Sampling):
    """A conversation to go on with."""

    messages: list[Message] = Field(min_length=1, max_length=256)
    max_tokens: int | None = Field(None, ge=1, le=1 << 20)
    max_completion_tokens: int | None = Field(None, ge=1, le=1 << 20)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)


class NewDocument(Strict):
    """A document for the datastore."""

    text: str = Field(min_length=1)
    title: str = Field("", max_length=1024)
    id: str = Field("", max_length=1024)
    """Unique in its source; the content hash if it is not given."""
    source: str = Field("added", min_length=1, max_length=256)


class TokenizeRequest(Strict):
    """A text to cut into tokens."""

    prompt: str
    model: str = ""
    add_special_tokens: bool = False
    """Accepted for clients that send it: no special tokens are ever added."""


class DetokenizeRequest(Strict):
    """Tokens to turn into text."""

    tokens: Tokens
    model: str = ""


# What is answered: retrieval


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


# What is answered: text


class Usage(Answer):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class LogProbs(Answer):
    """OpenAI's log-probabilities of a completion, in nats, before temperature, cut-offs and penalties."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class CompletionChoice(Answer):
    index: int
    text: str
    finish_reason: Literal["stop", "length"] | None
    logprobs: LogProbs | None = None
    annotations: list[Annotation] = []
    retro: Retrieved | None = None


class Completion(Answer):
    """An answer to `/v1/completions`."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None
    sources: list[Source] = []


class TopLogProb(Answer):
    token: str
    logprob: float
    bytes: list[int]


class ChatLogProb(TopLogProb):
    top_logprobs: list[TopLogProb]


class ChatLogProbs(Answer):
    content: list[ChatLogProb]
    refusal: None = None


class ChatMessage(Answer):
    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None
    annotations: list[Annotation] = []


class ChatChoice(Answer):
    index: int
    message: ChatMessage
    finish_reason: Literal["stop", "length"]
    logprobs: ChatLogProbs | None = None
    retro: Retrieved | None = None


class ChatCompletion(Answer):
    """An answer to `/v1/chat/completions`."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage | None = None
    sources: list[Source] = []


# What is answered: everything else


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
