"""From the engine's events to an answer, whole or as a stream.

The engine's thread tells what happened; everything here runs beside the event loop of the server. Nothing
waits for a slow reader: what it has not read yet is kept for it, and that is bounded by its own request.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from retro.generation.batch import retrieve
from retro.generation.sequence import Growing, Token
from retro.retrieval.search import Neighbour
from retro.serving import schema
from retro.serving.asking import Asked, Served
from retro.serving.citations import Citer, annotations, chunk_numbers, sources
from retro.serving.engine import Began, Drew, Ended, Engine, Event, Job, Scored, Scoring
from retro.serving.explaining import Explanation, PromptScores, explain, score_prompt
from retro.serving.memory import UNREADABLE, GoneError
from retro.wording import counted

KEEP_ALIVE = 15.0
"""Seconds without anything to say after which a stream says so."""
Record = dict[str, Any]


@dataclass
class Written:
    """One answer in progress."""

    index: int
    sequence: Growing
    drawn: list[Token] = field(default_factory=list)
    length: int = 0
    """Characters that were told so far."""
    explanation: Explanation | None = None
    prompt_scores: PromptScores | None = None

    @property
    def finish(self) -> Literal["stop", "length"]:
        return "length" if self.sequence.sample.finish in ("length", None) else "stop"


class Answering:
    """One request from its beginning to its end."""

    def __init__(self, served: Served, engine: Engine, asked: Asked, citer: Citer, seconds: float) -> None:
        self.served = served
        self.engine = engine
        self.asked = asked
        self.citer = citer
        self.id = ("chatcmpl-" if asked.chat else "cmpl-") + secrets.token_hex(12)
        self.created = int(time.time())
        self.started = time.monotonic()
        self.first_token: float | None = None
        """Seconds from the request to its first token."""
        sequences = [sequence for group in asked.groups for sequence in group]
        self.answers = [Written(index, sequence) for index, sequence in enumerate(sequences)]
        self._events: asyncio.Queue[list[Event]] = asyncio.Queue()
        before: dict[Any, Any] = {}
        if asked.scores_prompt:
            for number in range(len(asked.groups)):
                before["prompt", number] = lambda number=number: self._score_prompt(number)
        self.job = Job(
            groups=asked.groups if asked.writes else [],
            tell=self._events.put_nowait,
            is_followed=asked.stream,
            before=before,
            after=self._explain if asked.worth else None,
            seconds=seconds,
        )

    def submit(self) -> None:
        self.engine.submit(self.job)

    def cancel(self) -> None:
        self.engine.cancel(self.job)

    # What the engine's thread computes

    def _explain(self, sequence: Growing) -> Scoring:
        return explain(self.served.sampler.model, sequence.sample, self.asked.explain)

    def _score_prompt(self, number: int) -> Scoring:
        first = self.asked.groups[number][0]
        neighbours = first.sample.neighbours
        # If nothing is to be written, the prompt has not been searched for.
        if not self.asked.writes and first.search is not None:
            neighbours = retrieve(*first.search, first.unsearched())
        yield
        return score_prompt(self.served.sampler.model, first.sample, neighbours, self.asked.log_probs or 0)

    # Events

    async def events(self) -> AsyncIterator[list[Event]]:
        """Everything that happens, up to the end; nothing where nothing has happened for a while."""
        while True:
            batch: list[Event] = []
            with suppress(TimeoutError):
                async with asyncio.timeout(KEEP_ALIVE):
                    batch = await self._events.get()
            while not self._events.empty():
                batch = batch + self._events.get_nowait()
            end = batch[-1] if batch else None
            happened = [event for event in batch if not isinstance(event, Ended)]
            if happened or end is None:
                yield happened
            if isinstance(end, Ended):
                if end.error is not None:
                    raise end.error
                return

    def _take(self, event: Event) -> None:
        if isinstance(event, Drew):
            if self.first_token is None:
                self.first_token = time.monotonic() - self.started
            self.answers[event.index].drawn.append(event.token)
        elif isinstance(event, Scored):
            if isinstance(event.result, Explanation):
                self.answers[event.key].explanation = event.result
            else:
                for answer in self._of_prompt(event.key[1]):
                    answer.prompt_scores = event.result

    def _of_prompt(self, number: int) -> list[Written]:
        n = self.asked.request.samples
        return self.answers[number * n : (number + 1) * n]

    # A whole answer

    async def answer(self) -> schema.Completion | schema.ChatCompletion:
        async for batch in self.events():
            for event in batch:
                self._take(event)
        return await asyncio.to_thread(self._whole)

    def _whole(self) -> schema.Completion | schema.ChatCompletion:
        retrieved = [self.retrieved(answer) for answer in self.answers]
        common: Record = {
            "id": self.id,
            "created": self.created,
            "model": self.served.name,
            "usage": self.usage(),
            "sources": sources([found.chunks for found in retrieved]),
        }
        pairs = list(zip(self.answers, retrieved, strict=True))
        if self.asked.chat:
            return schema.ChatCompletion(
                choices=[self._chat_choice(answer, found) for answer, found in pairs], **common
            )
        return schema.Completion(choices=[self._choice(answer, found) for answer, found in pairs], **common)

    def _choice(self, answer: Written, found: schema.Retrieved) -> schema.CompletionChoice:
        sample = answer.sequence.sample
        prompt = sample.prompt if self.asked.echo else ""
        return schema.CompletionChoice(
            index=answer.index,
            text=prompt + sample.text,
            finish_reason=answer.finish,
            logprobs=self._log_probs(answer),
            annotations=annotations(found.chunks, len(prompt)),
            retro=found,
        )

    def _chat_choice(self, answer: Written, found: schema.Retrieved) -> schema.ChatChoice:
        log_probs = None
        if self.asked.log_probs is not None:
            log_probs = schema.ChatLogProbs(content=[self._chat_log_prob(token) for token in _kept(answer)])
        return schema.ChatChoice(
            index=answer.index,
            message=schema.ChatMessage(
                content=answer.sequence.sample.text, annotations=annotations(found.chunks)
            ),
            finish_reason=answer.finish,
            logprobs=log_probs,
            retro=found,
        )

    def usage(self) -> schema.Usage:
        # A prompt is read once for all its samples.
        prompts = sum(group[0].sample.prompt_len for group in self.asked.groups)
        written = sum(len(answer.drawn) for answer in self.answers)
        return schema.Usage(prompt_tokens=prompts, completion_tokens=written, total_tokens=prompts + written)

    def retrieved(self, answer: Written) -> schema.Retrieved:
        """Everything about an answer's retrieval; asks the datastore what may still be shown."""
        sample, explanation = answer.sequence.sample, answer.explanation
        shown, version = self._shown(sample.neighbours)
        chunks = self.citer.chunks(sample, shown, explanation)
        tokens = None
        if explanation is not None:
            tokens = self.citer.tokens(sample, explanation)
        return schema.Retrieved(
            retrieval=sample.retrieval,
            version=version,
            prompt_tokens=sample.prompt_len,
            chunk_len=sample.chunk_len,
            chunks=chunks,
            tokens=tokens,
            bits=None if explanation is None else sum(explanation.saved),
            warnings=self.citer.warnings(chunks),
            notes=[*self.asked.notes, *_notes(answer)],
            explained=self._cost(explanation),
        )

    def _shown(self, neighbours: Sequence[Sequence[Neighbour]]) -> tuple[set[int], int | None]:
        """The chunks of the datastore that may be shown, and its version."""
        memory, numbers = self.served.memory, chunk_numbers(neighbours)
        if memory is None:
            return set(numbers), None
        try:
            return (memory.live(numbers) if numbers else set()), memory.version
        except (GoneError, *UNREADABLE):
            # What can no longer be looked up is not shown.
            return set(), None

    def _cost(self, explanation: Explanation | None) -> schema.ExplainCost | None:
        if explanation is None:
            return None
        took = time.monotonic() - self.started - explanation.seconds
        return schema.ExplainCost(
            passes=explanation.passes,
            tokens=explanation.tokens,
            seconds=explanation.seconds,
            times_the_answer=explanation.seconds / max(took, 1e-9),
        )

    # Log-probabilities

    def _log_probs(self, answer: Written) -> schema.LogProbs | None:
        """Of a whole completion, with the prompt before it if that is given back."""
        if self.asked.log_probs is None:
            return None
        sample = answer.sequence.sample
        rows = self._prompt_rows(answer) if self.asked.echo else []
        rows += [self._row(token) for token in _kept(answer)]
        start = 0 if self.asked.echo else len(sample.prompt)
        return self._as_log_probs(rows, start)

    def _prompt_rows(self, answer: Written) -> list["LogProbRow"]:
        sample, scores = answer.sequence.sample, answer.prompt_scores
        assert scores is not None
        tokens = sample.tokens[: sample.prompt_len]
        top = scores.top or [()] * len(scores.log_probs)
        # The first token has nothing before it that could predict it.
        given = zip(tokens, [None, *scores.log_probs], [None, *top], strict=True)
        return [LogProbRow(*row) for row in given]

    def _row(self, token: Token) -> "LogProbRow":
        return LogProbRow(token.id, token.log_prob, token.top)

    def _as_log_probs(self, rows: list["LogProbRow"], start: int) -> schema.LogProbs:
        tokenizer = self.served.tokenizer
        offsets, at = [], start
        for piece in tokenizer.pieces(row.id for row in rows):
            offsets.append(at)
            at += len(piece)
        return schema.LogProbs(
            tokens=[tokenizer.decode([row.id]) for row in rows],
            token_logprobs=[row.log_prob for row in rows],
            top_logprobs=[self._top(row) for row in rows] if self.asked.log_probs else None,
            text_offset=offsets,
        )

    def _top(self, row: "LogProbRow") -> dict[str, float] | None:
        if row.top is None:
            return None
        best: dict[str, float] = {}
        for token, log_prob in row.top:
            # Two tokens may have the same text; the more probable one comes first, and stays.
            best.setdefault(self.served.tokenizer.decode([token]), log_prob)
        return best

    def _chat_log_prob(self, token: Token) -> schema.ChatLogProb:
        top = [schema.TopLogProb(**self._named(one, log_prob)) for one, log_prob in token.top]
        return schema.ChatLogProb(**self._named(token.id, token.log_prob or 0.0), top_logprobs=top)

    def _named(self, token: int, log_prob: float) -> Record:
        tokenizer = self.served.tokenizer
        raw = list(tokenizer.decode_bytes([token]))
        return {"token": tokenizer.decode([token]), "logprob": log_prob, "bytes": raw}

    # A stream

    async def stream(self) -> AsyncIterator[list[Record]]:
        """The records of a stream, in order, as they come; none where nothing has happened for a while."""
        held: dict[int, list[Record]] = {}
        if self.asked.chat:
            yield [self._delta(answer, {"role": "assistant", "content": ""}) for answer in self.answers]
        async for batch in self.events():
            records = [record for event in batch for record in self._ready(event, held)]
            if records or not batch:
                yield records
        # Numbers and sources of all answers, when there is nothing more to come.
        yield await asyncio.to_thread(self._end)

    def _ready(self, event: Event, held: dict[int, list[Record]]) -> Iterator[Record]:
        """What can be told now. With its log-probabilities, a prompt comes when it is scored; until then
        what was written is held back."""
        self._take(event)
        for index, record in self._told(event):
            if self.asked.scores_prompt and self.answers[index].prompt_scores is None:
                held.setdefault(index, []).append(record)
            else:
                yield record
        if isinstance(event, Scored) and isinstance(event.result, PromptScores):
            for answer in self._of_prompt(event.key[1]):
                yield self._prompt_record(answer)
                yield from held.pop(answer.index, ())

    def _end(self) -> list[Record]:
        found = [self.retrieved(answer) for answer in self.answers]
        cited = sources([retrieved.chunks for retrieved in found])
        pairs = zip(self.answers, found, strict=True)
        records = [self._last(answer, retrieved, cited) for answer, retrieved in pairs]
        if self.asked.usage:
            records.append({**self._head(), "choices": [], "usage": self.usage().model_dump()})
        return records

    def _told(self, event: Event) -> Iterator[tuple[int, Record]]:
        """What a stream says about an event."""
        if isinstance(event, Began):
            answer = self.answers[event.index]
            if self.asked.echo and not self.asked.scores_prompt:
                yield event.index, self._prompt_record(answer)
            sample = answer.sequence.sample
            number = sample.prompt_len // sample.chunk_len - 1
            if 0 <= number < len(sample.neighbours) and sample.neighbours[number]:
                yield event.index, self._citation(answer, number, sample.neighbours[number])
        elif isinstance(event, Drew):
            yield event.index, self._token(self.answers[event.index], event.token)

    def _head(self) -> Record:
        kind = "chat.completion.chunk" if self.asked.chat else "text_completion"
        return {"id": self.id, "object": kind, "created": self.created, "model": self.served.name}

    def _event(self, answer: Written, text: str, finish: str | None = None, **more: Any) -> Record:
        choice: Record = {"index": answer.index, "text": text, "finish_reason": finish, "logprobs": None}
        if self.asked.chat:
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
        if self.asked.scores_prompt:
            more["logprobs"] = self._as_log_probs(self._prompt_rows(answer), 0).model_dump()
        return self._event(answer, answer.sequence.sample.prompt, **more)

    def _citation(
        self, answer: Written, number: int, found: Sequence[Neighbour], text: str = "", **more: Any
    ) -> Record:
        """The neighbours that the text reads from here on."""
        shown, _ = self._shown([found])
        chunk = self.citer.begun(answer.sequence.sample, number, found, answer.length, shown)
        cited = [annotation.model_dump() for annotation in annotations([chunk])]
        return self._event(answer, text, **more, annotations=cited, retro_chunk=chunk.model_dump())

    def _token(self, answer: Written, token: Token) -> Record:
        more: Record = {}
        sample = answer.sequence.sample
        if self.asked.log_probs is not None:
            if self.asked.chat:
                content = [self._chat_log_prob(token)]
                more["logprobs"] = schema.ChatLogProbs(content=content).model_dump()
            else:
                start = answer.length + len(sample.prompt)
                more["logprobs"] = self._as_log_probs([self._row(token)], start).model_dump()
        answer.length += len(token.text)
        finish = answer.finish if token.finish is not None else None
        if token.neighbours and finish is None:
            # By what was told so far: the engine may be further on.
            number = (sample.prompt_len + len(answer.drawn)) // sample.chunk_len - 1
            return self._citation(answer, number, token.neighbours, token.text, **more)
        return self._event(answer, token.text, finish, **more)

    def _last(self, answer: Written, retrieved: schema.Retrieved, cited: list[schema.Source]) -> Record:
        prompt = answer.sequence.sample.prompt if self.asked.echo else ""
        found = [annotation.model_dump() for annotation in annotations(retrieved.chunks, len(prompt))]
        record = self._event(answer, "", answer.finish, annotations=found, retro=retrieved.model_dump())
        return {**record, "sources": [source.model_dump() for source in cited]}


@dataclass(frozen=True)
class LogProbRow:
    """A token, its log-probability, and the most probable ones at its place."""

    id: int
    log_prob: float | None
    top: tuple[tuple[int, float], ...] | None


def _kept(answer: Written) -> list[Token]:
    """The tokens that were drawn, without those that a stop text has cut off."""
    sample = answer.sequence.sample
    ended_by_token = bool(answer.drawn) and answer.drawn[-1].id in answer.sequence.enders
    return answer.drawn[: len(sample.continuation) + ended_by_token]


def _notes(answer: Written) -> list[str]:
    """Why an answer with retrieval has read nothing."""
    sample = answer.sequence.sample
    if not sample.retrieval or any(sample.neighbours):
        return []
    length, chunk_len = len(sample.tokens), sample.chunk_len
    if length < chunk_len:
        return [
            f"nothing was retrieved: a chunk ends after {counted(chunk_len, 'token')}, and prompt and answer "
            f"have {length}"
        ]
    return [f"nothing was found for {counted(length // chunk_len, 'complete chunk')}"]
