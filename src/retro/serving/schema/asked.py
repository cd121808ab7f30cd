"""What clients ask."""

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


class RetroOptions(Strict):
    """How an answer retrieves, and what is told about it."""

    retrieval: bool = True
    """False: RETRO[OFF], or the base as it is."""
    num_neighbours: int | None = Field(default=None, ge=1, le=64)
    """Neighbours of each chunk, k."""
    sources: list[str] = Field(default_factory=list, max_length=64)
    """Retrieve documents of these sources only."""
    exclude: list[str] = Field(default_factory=list, max_length=256)
    """Documents that must not be retrieved, by id or content hash."""
    passages: list[str] = Field(default_factory=list, max_length=16)
    """Texts that every chunk reads in place of what a search would find."""
    every: int = Field(default=1, ge=1, le=1 << 20)
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

    model: str = Field(default="", max_length=512)
    """The model's name as `/v1/models` gives it; empty: the one that is served."""
    temperature: Finite | None = Field(default=None, ge=0, le=2)
    top_p: Finite | None = Field(default=None, gt=0, le=1)
    n: int | None = Field(default=None, ge=1, le=128)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: str | list[str] | None = None
    seed: int | None = Field(default=None, ge=-(1 << 63), lt=1 << 63)
    presence_penalty: Finite | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: Finite | None = Field(default=None, ge=-2, le=2)
    logit_bias: dict[str, Any] | None = None
    """Refused unless it is empty."""
    user: str | None = None
    """Accepted, and neither used nor kept."""
    top_k: int | None = Field(default=None, ge=0, le=1 << 31)
    """Not OpenAI's: draw from this many of the most probable tokens; 0: from all."""
    repetition_penalty: Finite | None = Field(default=None, gt=0, le=10)
    """Not OpenAI's: above 1, tokens of prompt and answer become less likely."""
    min_tokens: int | None = Field(default=None, ge=0, le=1 << 20)
    """Not OpenAI's: nothing ends an answer before it has this many tokens."""
    retro: RetroOptions = RetroOptions()


class CompletionRequest(Sampling):
    """A text to continue, or several."""

    prompt: str | Tokens | list[str] | list[Tokens] = Field(
        examples=["The licence permits", [1, 2, 3]], union_mode="left_to_right"
    )
    max_tokens: int | None = Field(default=None, ge=0, le=1 << 20)
    """16 by default, as OpenAI's; 0 only with `echo`."""
    logprobs: int | None = Field(default=None, ge=0, le=20)
    """Log-probabilities of the tokens, and of so many of the most probable ones."""
    echo: bool | None = None
    """Give the prompt back, too; with `logprobs`, its true log-probabilities."""
    best_of: int | None = Field(default=None, ge=1, le=128)
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
    max_tokens: int | None = Field(default=None, ge=1, le=1 << 20)
    max_completion_tokens: int | None = Field(default=None, ge=1, le=1 << 20)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)


class NewDocument(Strict):
    """A document for the datastore."""

    text: str = Field(min_length=1)
    title: str = Field(default="", max_length=1024)
    id: str = Field(default="", max_length=1024)
    """Unique in its source; the content hash if it is not given."""
    source: str = Field(default="added", min_length=1, max_length=256)


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
