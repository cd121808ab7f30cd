"""Log-probabilities as OpenAI gives them: of completions, and of conversations."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from retro.corpus.tokenizers.tokenizer import Tokenizer
from retro.generation.sequence import Sample, Token
from retro.serving import schema
from retro.serving.explaining import PromptScores


@dataclass(frozen=True)
class LogProbRow:
    """A token, its log-probability, and the most probable ones at its place; the first of a prompt has
    neither."""

    id: int
    log_prob: float | None
    top: tuple[tuple[int, float], ...] | None

    @staticmethod
    def of(token: Token) -> "LogProbRow":
        return LogProbRow(token.id, token.log_prob, token.top)


def prompt_rows(sample: Sample, scores: PromptScores) -> list[LogProbRow]:
    """The tokens of a prompt that was scored."""
    tokens = sample.tokens[: sample.prompt_len]
    top = scores.top or [()] * len(scores.log_probs)
    # The first token has nothing before it that could predict it.
    given = zip(tokens, [None, *scores.log_probs], [None, *top], strict=True)
    return [LogProbRow(*row) for row in given]


def completion_log_probs(
    tokenizer: Tokenizer, rows: Sequence[LogProbRow], start: int, top: bool
) -> schema.LogProbs:
    """Those of a completion, or a part of it that begins at a character of the whole text."""
    offsets, at = [], start
    for piece in tokenizer.pieces(row.id for row in rows):
        offsets.append(at)
        at += len(piece)
    return schema.LogProbs(
        tokens=[tokenizer.decode([row.id]) for row in rows],
        token_logprobs=[row.log_prob for row in rows],
        top_logprobs=[_top(tokenizer, row) for row in rows] if top else None,
        text_offset=offsets,
    )


def _top(tokenizer: Tokenizer, row: LogProbRow) -> dict[str, float] | None:
    if row.top is None:
        return None
    best: dict[str, float] = {}
    for token, log_prob in row.top:
        # Two tokens may have the same text; the more probable one comes first, and stays.
        best.setdefault(tokenizer.decode([token]), log_prob)
    return best


def chat_log_probs(tokenizer: Tokenizer, tokens: Sequence[Token]) -> schema.ChatLogProbs:
    return schema.ChatLogProbs(content=[_chat_log_prob(tokenizer, token) for token in tokens])


def _chat_log_prob(tokenizer: Tokenizer, token: Token) -> schema.ChatLogProb:
    top = [schema.TopLogProb(**_named(tokenizer, one, log_prob)) for one, log_prob in token.top]
    return schema.ChatLogProb(**_named(tokenizer, token.id, token.log_prob or 0.0), top_logprobs=top)


def _named(tokenizer: Tokenizer, token: int, log_prob: float) -> dict[str, Any]:
    raw = list(tokenizer.decode_bytes([token]))
    return {"token": tokenizer.decode([token]), "logprob": log_prob, "bytes": raw}
