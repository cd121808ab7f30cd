"""OpenAI's routes: completions, conversations, models, and what a tokenizer is asked."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from retro.errors import RetroError
from retro.serving import schema
from retro.serving.answering import Answering
from retro.serving.asking import Asked
from retro.serving.memory import UNREADABLE
from retro.serving.problems import ProblemError, problem_of
from retro.serving.server import Server
from retro.serving.streamed_answers import StreamedAnswer, line_of
from retro.serving.streams import EventStream, left
from retro.serving.whole_answers import whole_answer

ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": schema.Error, "description": words}
    for status, words in {
        400: "The request asks for something that is not offered.",
        401: "The key is missing or wrong.",
        403: "The page of another site asks.",
        404: "There is no such thing.",
        408: "The request was not sent in time.",
        413: "The request is too large.",
        415: "The request is no JSON.",
        429: "The queue is full: `Retry-After` says when to come back.",
        503: "The server is stopping, or the datastore is gone.",
        504: "The answer took too long.",
    }.items()
}
EVENT = {"type": "object", "properties": {"data": {"type": "string"}}, "required": ["data"]}
STREAMED = {"text/event-stream": {"schema": EVENT}}
"""With `stream`: events whose `data` is JSON, and at the end `[DONE]`."""


def router(server: Server) -> APIRouter:
    routes = APIRouter(responses=ERRORS)

    @routes.post(
        "/v1/completions",
        response_model=schema.Completion,
        responses={200: {"content": STREAMED}},
        tags=["text"],
    )
    async def complete(body: schema.CompletionRequest, request: Request) -> Response:
        """Continue a text. Every answer says what it has read."""
        return await _answer(server, request, lambda: server.asker.completion(body))

    @routes.post(
        "/v1/chat/completions",
        response_model=schema.ChatCompletion,
        responses={200: {"content": STREAMED}},
        tags=["text"],
    )
    async def chat(body: schema.ChatRequest, request: Request) -> Response:
        """Go on with a conversation, by the template of the base."""
        return await _answer(server, request, lambda: server.asker.chat(body))

    @routes.get("/v1/models", response_model=schema.Models, tags=["text"])
    async def models() -> schema.Models:
        return schema.Models(data=[server.model_card()])

    @routes.get("/v1/models/{name:path}", response_model=schema.Model, tags=["text"])
    async def model(name: str) -> schema.Model:
        if name != server.served.name:
            raise ProblemError(404, f"there is no model {name!r}", "model", "model_not_found")
        return server.model_card()

    @routes.get("/tokenizer_info", response_model=schema.TokenizerInfo, tags=["tokens"])
    async def tokenizer_info() -> schema.TokenizerInfo:
        """What lm-evaluation-harness asks before it counts tokens here."""
        return server.tokenizer_info()

    @routes.post("/tokenize", response_model=schema.Tokenized, tags=["tokens"])
    async def tokenize(body: schema.TokenizeRequest) -> schema.Tokenized:
        tokens = await asyncio.to_thread(server.tokenize, body.prompt)
        facts = server.served.sampler.model.facts
        return schema.Tokenized(tokens=tokens, count=len(tokens), max_model_len=facts.max_context)

    @routes.post("/detokenize", response_model=schema.Detokenized, tags=["tokens"])
    async def detokenize(body: schema.DetokenizeRequest) -> schema.Detokenized:
        return schema.Detokenized(prompt=server.detokenize(body.tokens))

    return routes


async def _answer(server: Server, request: Request, ask: Callable[[], Asked]) -> Response:
    try:
        with server.engine.coming():
            asked = await asyncio.to_thread(ask)
            answering = Answering(
                served=server.served,
                engine=server.engine,
                asked=asked,
                citer=server.citer(str(request.base_url)),
                seconds=server.config.seconds,
            )
            answering.submit()
    except (RetroError, *UNREADABLE) as error:
        raise problem_of(error) from None
    if asked.stream:
        return EventStream(_lines(server, answering), answering.cancel, server.config.idle_seconds)
    gone = asyncio.ensure_future(left(request.receive))
    answer = asyncio.ensure_future(whole_answer(answering))
    try:
        await asyncio.wait({gone, answer}, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise ProblemError(400, "the client has left")
        found = answer.result()
    except Exception as error:
        raise problem_of(error) from error
    finally:
        gone.cancel()
        if not answer.done():
            answer.cancel()
            answering.cancel()
    server.observe(answering)
    return Response(found.model_dump_json(), media_type="application/json")


async def _lines(server: Server, answering: Answering) -> AsyncIterator[bytes]:
    """The lines of a stream of events."""
    try:
        async for lines in StreamedAnswer(answering).lines():
            yield lines
    except Exception as error:  # noqa: BLE001 — the stream has begun: all that can be done is to say so
        problem = problem_of(error)
        server.note(error, problem)
        yield line_of(problem.body().model_dump()).encode(errors="replace")
        return
    server.observe(answering)
    yield b"data: [DONE]\n\n"
