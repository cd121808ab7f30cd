"""What is answered: text."""

from typing import Literal

from retro.serving.schema.cited import Annotation, Answer, Retrieved, Source


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
    annotations: list[Annotation]
    retro: Retrieved | None = None


class Completion(Answer):
    """An answer to `/v1/completions`."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None
    sources: list[Source]


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
    annotations: list[Annotation]


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
    sources: list[Source]
