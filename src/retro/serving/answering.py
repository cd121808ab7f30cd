"""One request from its beginning to its end: what the engine does for it, and what is known of its answers.

The engine's thread tells what happened; everything here runs beside the event loop of the server
(`whole_answers.py` and `streamed_answers.py` put it into words). Nothing
waits for a slow reader: what it has not read yet is kept for it, and that is bounded by its own request.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from retro.generation.batch import retrieve
from retro.generation.sequence import Growing, Token
from retro.retrieval.search import Neighbour
from retro.serving import schema
from retro.serving.asking import Asked, Served
from retro.serving.citations import Citer, chunk_numbers
from retro.serving.engine import Engine
from retro.serving.explaining import Explanation, PromptScores, explain, score_prompt
from retro.serving.jobs import Drew, Ended, Event, Job, Scored, Scoring
from retro.serving.memory import UNREADABLE, GoneError
from retro.wording import counted


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

    @property
    def tokens(self) -> list[Token]:
        """What was drawn, without what a stop text has cut off; a token that ended the answer is there."""
        ended_by_token = bool(self.drawn) and self.drawn[-1].id in self.sequence.enders
        return self.drawn[: len(self.sequence.sample.continuation) + ended_by_token]

    def notes(self) -> list[str]:
        """Why an answer with retrieval has read nothing."""
        sample = self.sequence.sample
        if not sample.retrieval or any(sample.neighbours):
            return []
        length, chunk_len = len(sample.tokens), sample.chunk_len
        if length < chunk_len:
            return [
                f"nothing was retrieved: a chunk ends after {counted(chunk_len, 'token')}, and prompt and "
                f"answer have {length}"
            ]
        return [f"nothing was found for {counted(length // chunk_len, 'complete chunk')}"]


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

    async def events(self) -> AsyncIterator[Sequence[Event]]:
        """Everything that happens, up to the end."""
        while True:
            batch = await self._events.get()
            while not self._events.empty():
                batch = batch + self._events.get_nowait()
            end = batch[-1]
            yield batch[:-1] if isinstance(end, Ended) else batch
            if isinstance(end, Ended):
                if end.error is not None:
                    raise end.error
                return

    def take(self, event: Event) -> None:
        if isinstance(event, Drew):
            if self.first_token is None:
                self.first_token = time.monotonic() - self.started
            self.answers[event.index].drawn.append(event.token)
        elif isinstance(event, Scored):
            if isinstance(event.result, Explanation):
                self.answers[event.key].explanation = event.result
            else:
                for answer in self.of_prompt(event.key[1]):
                    answer.prompt_scores = event.result

    def of_prompt(self, number: int) -> list[Written]:
        n = self.asked.request.samples
        return self.answers[number * n : (number + 1) * n]

    # What is said about it

    def usage(self) -> schema.Usage:
        # A prompt is read once for all its samples.
        prompts = sum(group[0].sample.prompt_len for group in self.asked.groups)
        written = sum(len(answer.drawn) for answer in self.answers)
        return schema.Usage(prompt_tokens=prompts, completion_tokens=written, total_tokens=prompts + written)

    def retrieved(self, answer: Written) -> schema.Retrieved:
        """Everything about an answer's retrieval; asks the datastore what may still be shown."""
        sample, explanation = answer.sequence.sample, answer.explanation
        shown, version = self.shown(sample.neighbours)
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
            notes=[*self.asked.notes, *answer.notes()],
            explained=self._cost(answer),
        )

    def shown(self, neighbours: Sequence[Sequence[Neighbour]]) -> tuple[set[int], int | None]:
        """The chunks of the datastore that may be shown, and its version."""
        memory, numbers = self.served.memory, chunk_numbers(neighbours)
        if memory is None:
            return set(numbers), None
        try:
            return (memory.live(numbers) if numbers else set()), memory.version
        except (GoneError, *UNREADABLE):
            # What can no longer be looked up is not shown.
            return set(), None

    def _cost(self, answer: Written) -> schema.ExplainCost | None:
        explanation = answer.explanation
        if explanation is None:
            return None
        written_in = self.job.written_in.get(answer.index, 0.0)
        return schema.ExplainCost(
            passes=explanation.passes,
            tokens=explanation.tokens,
            seconds=explanation.seconds,
            times_the_answer=explanation.seconds / max(written_in, 1e-9),
        )
