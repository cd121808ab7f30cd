"""Answers that are given when they are whole."""

import asyncio
from typing import Any

from retro.serving import schema
from retro.serving.answering import Answering, Written
from retro.serving.citations import annotations, sources
from retro.serving.log_probs import LogProbRow, chat_log_probs, completion_log_probs, prompt_rows


async def whole_answer(answering: Answering) -> schema.Completion | schema.ChatCompletion:
    """Wait for the end, and tell everything."""
    async for batch in answering.events():
        for event in batch:
            answering.take(event)
    return await asyncio.to_thread(_whole, answering)


def _whole(answering: Answering) -> schema.Completion | schema.ChatCompletion:
    retrieved = [answering.retrieved(answer) for answer in answering.answers]
    common: dict[str, Any] = {
        "id": answering.id,
        "created": answering.created,
        "model": answering.served.name,
        "usage": answering.usage(),
        "sources": sources([found.chunks for found in retrieved]),
    }
    pairs = list(zip(answering.answers, retrieved, strict=True))
    if answering.asked.chat:
        return schema.ChatCompletion(
            choices=[_chat_choice(answering, answer, found) for answer, found in pairs], **common
        )
    return schema.Completion(choices=[_choice(answering, answer, found) for answer, found in pairs], **common)


def _choice(answering: Answering, answer: Written, found: schema.Retrieved) -> schema.CompletionChoice:
    sample = answer.sequence.sample
    prompt = sample.prompt if answering.asked.echo else ""
    return schema.CompletionChoice(
        index=answer.index,
        text=prompt + sample.text,
        finish_reason=answer.finish,
        logprobs=_log_probs(answering, answer),
        annotations=annotations(found.chunks, len(prompt)),
        retro=found,
    )


def _log_probs(answering: Answering, answer: Written) -> schema.LogProbs | None:
    """With the prompt before it, if that is given back."""
    asked, sample = answering.asked, answer.sequence.sample
    if asked.log_probs is None:
        return None
    rows = [LogProbRow.of(token) for token in answer.tokens]
    if answer.prompt_scores is not None:
        rows = prompt_rows(sample, answer.prompt_scores) + rows
    start = 0 if asked.echo else len(sample.prompt)
    return completion_log_probs(answering.served.tokenizer, rows, start, bool(asked.log_probs))


def _chat_choice(answering: Answering, answer: Written, found: schema.Retrieved) -> schema.ChatChoice:
    log_probs = None
    if answering.asked.log_probs is not None:
        log_probs = chat_log_probs(answering.served.tokenizer, answer.tokens)
    return schema.ChatChoice(
        index=answer.index,
        message=schema.ChatMessage(
            content=answer.sequence.sample.text, annotations=annotations(found.chunks)
        ),
        finish_reason=answer.finish,
        logprobs=log_probs,
        retro=found,
    )
