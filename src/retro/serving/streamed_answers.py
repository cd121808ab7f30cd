"""Answers that are told while they are written: the lines of a stream of events."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Any

from retro.generation.sequence import Token
from retro.retrieval.search import Neighbour
from retro.serving import schema
from retro.serving.answering import Answering, Written
from retro.serving.citations import annotations, sources
from retro.serving.explaining import PromptScores
from retro.serving.jobs import Began, Drew, Event, Scored
from retro.serving.log_probs import LogProbRow, chat_log_probs, completion_log_probs, prompt_rows

Record = dict[str, Any]
TEXT = "…"
"""Stands for the text of a token where a line is made ready for it."""
# One for all: `json.dumps` would make another for every line.
in_json = json.JSONEncoder(ensure_ascii=False).encode


def line_of(record: Record) -> str:
    """A record as an event of a stream."""
    return f"data: {in_json(record)}\n\n"


class StreamedAnswer:
    """The lines of a stream, of a completion or a conversation."""

    def __init__(self, answering: Answering) -> None:
        self._answering = answering
        self._asked = answering.asked
        self._tokenizer = answering.served.tokenizer
        self._around = [self._around_text(answer) for answer in answering.answers]
        """What stands before and behind the text in the line of a token, by the index of its answer."""

    async def lines(self) -> AsyncIterator[bytes]:
        """The lines of a stream, in order, as they come."""
        held: dict[int, list[str]] = {}
        if self._asked.chat:
            begun = [
                self._delta(answer, {"role": "assistant", "content": ""})
                for answer in self._answering.answers
            ]
            yield _joined(map(line_of, begun))
        async for batch in self._answering.events():
            ready = [line for event in batch for line in self._ready(event, held)]
            if ready:
                yield _joined(ready)
        # Numbers and sources of all answers, when there is nothing more to come.
        yield await asyncio.to_thread(self._end)

    def _ready(self, event: Event, held: dict[int, list[str]]) -> Iterator[str]:
        """What can be told now. With its log-probabilities, a prompt comes when it is scored; until then
        what was written is held back."""
        self._answering.take(event)
        for index, line in self._told(event):
            if self._asked.scores_prompt and self._answering.answers[index].prompt_scores is None:
                held.setdefault(index, []).append(line)
            else:
                yield line
        if isinstance(event, Scored) and isinstance(event.result, PromptScores):
            for answer in self._answering.of_prompt(event.key[1]):
                yield line_of(self._prompt_record(answer))
                yield from held.pop(answer.index, ())

    def _end(self) -> bytes:
        found = [self._answering.retrieved(answer) for answer in self._answering.answers]
        cited = sources([retrieved.chunks for retrieved in found])
        pairs = zip(self._answering.answers, found, strict=True)
        records = [self._last(answer, retrieved, cited) for answer, retrieved in pairs]
        if self._asked.usage:
            records.append({**self._head(), "choices": [], "usage": self._answering.usage().model_dump()})
        return _joined(map(line_of, records))

    def _told(self, event: Event) -> Iterator[tuple[int, str]]:
        """What a stream says about an event."""
        if isinstance(event, Drew):
            yield event.index, self._token_line(self._answering.answers[event.index], event.token)
        elif isinstance(event, Began):
            answer = self._answering.answers[event.index]
            if self._asked.echo and not self._asked.scores_prompt:
                yield event.index, line_of(self._prompt_record(answer))
            sample = answer.sequence.sample
            number = sample.prompt_len // sample.chunk_len - 1
            if 0 <= number < len(sample.neighbours) and sample.neighbours[number]:
                yield event.index, line_of(self._citation(answer, number, sample.neighbours[number]))

    def _head(self) -> Record:
        answering = self._answering
        return {
            "id": answering.id,
            "object": "chat.completion.chunk" if self._asked.chat else "text_completion",
            "created": answering.created,
            "model": answering.served.name,
        }

    def _event(self, answer: Written, text: str, finish: str | None = None, **more: Any) -> Record:
        choice: Record = {"index": answer.index, "text": text, "finish_reason": finish, "logprobs": None}
        if self._asked.chat:
            delta: Record = {"content": text} if text else {}
            if "annotations" in more:
                delta["annotations"] = more.pop("annotations")
            choice = {"index": answer.index, "delta": delta, "finish_reason": finish, "logprobs": None}
        return {**self._head(), "choices": [{**choice, **more}]}

    def _delta(self, answer: Written, delta: Record) -> Record:
        choice = {"index": answer.index, "delta": delta, "finish_reason": None, "logprobs": None}
        return {**self._head(), "choices": [choice]}

    def _prompt_record(self, answer: Written) -> Record:
        more: Record = {}
        if self._asked.scores_prompt:
            assert answer.prompt_scores is not None
            rows = prompt_rows(answer.sequence.sample, answer.prompt_scores)
            more["logprobs"] = self._log_probs(rows, 0)
        return self._event(answer, answer.sequence.sample.prompt, **more)

    def _log_probs(self, rows: list[LogProbRow], start: int) -> Record:
        top = bool(self._asked.log_probs)
        return completion_log_probs(self._tokenizer, rows, start, top).model_dump()

    def _citation(
        self, answer: Written, number: int, found: Sequence[Neighbour], text: str = "", **more: Any
    ) -> Record:
        """The neighbours that the text reads from here on."""
        shown, _ = self._answering.shown([found])
        chunk = self._answering.citer.begun(answer.sequence.sample, number, found, answer.length, shown)
        cited = [annotation.model_dump() for annotation in annotations([chunk])]
        return self._event(answer, text, **more, annotations=cited, retro_chunk=chunk.model_dump())

    def _around_text(self, answer: Written) -> tuple[str, str]:
        before, _, behind = line_of(self._event(answer, TEXT)).rpartition(in_json(TEXT))
        return before, behind

    def _token_line(self, answer: Written, token: Token) -> str:
        is_plain = token.text and not token.neighbours and token.finish is None
        if not is_plain or self._asked.log_probs is not None:
            return line_of(self._token(answer, token))
        # Nearly all lines differ in nothing but their text, and there are thousands a second.
        answer.length += len(token.text)
        before, behind = self._around[answer.index]
        return f"{before}{in_json(token.text)}{behind}"

    def _token(self, answer: Written, token: Token) -> Record:
        more: Record = {}
        sample = answer.sequence.sample
        if self._asked.log_probs is not None:
            if self._asked.chat:
                more["logprobs"] = chat_log_probs(self._tokenizer, [token]).model_dump()
            else:
                start = answer.length + len(sample.prompt)
                more["logprobs"] = self._log_probs([LogProbRow.of(token)], start)
        answer.length += len(token.text)
        finish = answer.finish if token.finish is not None else None
        if token.neighbours and finish is None:
            # By what was told so far: the engine may be further on.
            number = (sample.prompt_len + len(answer.drawn)) // sample.chunk_len - 1
            return self._citation(answer, number, token.neighbours, token.text, **more)
        return self._event(answer, token.text, finish, **more)

    def _last(self, answer: Written, retrieved: schema.Retrieved, cited: list[schema.Source]) -> Record:
        prompt = answer.sequence.sample.prompt if self._asked.echo else ""
        found = [annotation.model_dump() for annotation in annotations(retrieved.chunks, len(prompt))]
        record = self._event(answer, "", answer.finish, annotations=found, retro=retrieved.model_dump())
        return {**record, "sources": [source.model_dump() for source in cited]}


def _joined(lines: Iterable[str]) -> bytes:
    return "".join(lines).encode(errors="replace")
