"""The engine: one thread that owns the model, and one running batch that requests join and leave.

Every turn takes in what waits and fits, draws a token of every sequence, hands the tokens out, and reads
them. Between two tokens there is room for one pass of scoring, and no more of its time than of writing's, so
that saying what neighbours were worth slows nobody down by more than half.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from retro.errors import ConfigError, RetroError
from retro.generation.batch import RunningBatch
from retro.generation.sequence import Growing, Token
from retro.model.protocol import LanguageModel
from retro.serving.jobs import (
    Began,
    BusyError,
    Drew,
    Ended,
    Event,
    Job,
    Scored,
    Scoring,
    StoppingError,
    TimeOutError,
    Told,
    tell_each,
)

LOG = logging.getLogger("retro.serving")
PROMPT_TOKENS_AT_ONCE = 1 << 12
"""Tokens of prompts, padding included, that are read in one turn while others wait for their next token."""
SMOOTHING = 0.9
"""How slowly the mean duration of a request follows the newest."""
HOLD, HOLD_EACH, LONGEST_HOLD = 0.02, 0.003, 0.1
"""Seconds for which tokens are gathered before they are handed out together: at least, for each reader, and
at most. Every line that is sent costs this thread a wait for Python's lock."""
COMPANY = 0.05
"""Seconds that a request waits at most for others that are being understood. Prompts that are read together
cost less, and sequences that begin together complete their chunks together: one search, one pass."""
LONGEST_WAIT = 60
"""Seconds that a client is told to wait at most."""


@dataclass
class Counts:
    """What the engine has done so far, for the metrics."""

    requests: int = 0
    refused: int = 0
    cancelled: int = 0
    failed: int = 0
    tokens: int = 0
    prompt_tokens: int = 0
    turns: int = 0
    passes: int = 0
    """Pieces of scoring."""


class Engine:
    """Runs jobs. All methods may be called from any thread."""

    def __init__(
        self, model: LanguageModel, window: int = 0, max_sequences: int = 32, max_waiting: int = 64
    ) -> None:
        self.model = model
        self.window = window
        self.max_sequences = max_sequences
        self.max_waiting = max_waiting
        self.counts = Counts()
        self.deliver: Callable[[Told], None] = tell_each
        """How what happened gets from the engine's thread to those who asked; must not wait."""
        self._batch = RunningBatch(model, window, isolate=True)
        self._jobs: dict[int, Job] = {}
        """Those that are under way, by the ids of their sequences."""
        self._waiting: deque[Job] = deque()
        self._coming = 0
        """Requests that are being understood, and may soon wait."""
        self._scoring: deque[tuple[Job, Any, Scoring]] = deque()
        self._told: dict[int, tuple[Job, list[Event]]] = {}
        self._is_urgent = False
        """Whether something was told that cannot wait: a beginning or an end."""
        self._handed_out = 0.0
        self._owed = 0.0
        """Seconds that scoring has taken and writing has not had yet."""
        self._mean_seconds = 1.0
        self._alone = False
        """Whether the model bears no sequences of other lengths beside its own, found out by trying."""
        self._changed = threading.Condition()
        self._stopping = False
        self._deadline = float("inf")
        self._thread = threading.Thread(target=self._run, name="retro-engine", daemon=True)

    def start(self) -> "Engine":
        self._thread.start()
        return self

    @property
    def running(self) -> int:
        """Sequences in the batch."""
        return len(self._batch.sequences)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def is_stopping(self) -> bool:
        return self._stopping

    @contextmanager
    def coming(self) -> Iterator[None]:
        """While a request is being understood and submitted; those that wait may wait for it."""
        with self._changed:
            self._coming += 1
        try:
            yield
        finally:
            with self._changed:
                self._coming -= 1
                self._changed.notify()

    def submit(self, job: Job) -> None:
        """Put a request into the queue; an error if there is no room, or no time any more."""
        with self._changed:
            if self._stopping:
                raise StoppingError
            if len(self._waiting) >= self.max_waiting:
                self.counts.refused += 1
                raise BusyError(self.wait_seconds())
            self.counts.requests += 1
            self._waiting.append(job)
            self._changed.notify()

    def cancel(self, job: Job) -> None:
        """Forget a request; the batch goes on without it from the next token on."""
        with self._changed:
            job.cancelled = True
            self._changed.notify()

    def wait_seconds(self) -> int:
        """After how many seconds there should be room again."""
        expected = self._mean_seconds * (1 + len(self._waiting)) / max(1, self.max_sequences)
        return int(min(LONGEST_WAIT, max(1.0, expected)))

    def stop(self, grace: float = 0.0) -> None:
        """Take nothing new, finish what is under way within so many seconds, and end."""
        with self._changed:
            self._stopping = True
            self._deadline = time.monotonic() + grace
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(grace + 30)

    # The thread

    def _run(self) -> None:
        while self._wait():
            try:
                self._turn()
            except Exception as error:
                # Whatever it was, the server goes on: those that were under way are told, and only they.
                LOG.exception("the engine has met a fault")
                self._fail_all(error)
            self._hand_out()
        self._fail_all(StoppingError())
        self._hand_out()

    def _wait(self) -> bool:
        """Wait for something to do; false if there will be nothing more."""
        with self._changed:
            while True:
                under_way = bool(self._batch.sequences or self._scoring)
                busy = under_way or bool(self._waiting)
                if self._stopping and (not busy or time.monotonic() > self._deadline):
                    return False
                patience = self._patience()
                if under_way or (busy and not patience):
                    return True
                self._changed.wait(patience or None)

    def _patience(self) -> float:
        """Seconds for which those that wait should go on waiting for others that come."""
        if not self._waiting or not self._coming or self._stopping:
            return 0.0
        return max(0.0, self._waiting[0].asked_at + COMPANY - time.monotonic())

    def _turn(self) -> None:
        self._drop()
        self._admit()
        started = time.monotonic()
        writes = bool(self._batch.sequences)
        if writes:
            self.counts.turns += 1
            drawn = self._batch.draw()
            self.counts.tokens += len(drawn)
            for sequence, token in drawn:
                self._route(sequence, token)
            # Handed out before they are read, so that no reader waits for the next token.
            self._hand_out()
            self._batch.feed()
        written = time.monotonic()
        self._owed = max(0.0, self._owed - (written - started))
        if self._scoring and not (writes and self._owed):
            self._score()
            self._owed += time.monotonic() - written

    def _drop(self) -> None:
        """Leave out what is no longer wanted, or takes too long."""
        jobs = (*self._jobs.values(), *self._waiting, *(piece[0] for piece in self._scoring))
        for job in {id(job): job for job in jobs}.values():
            if job.cancelled:
                self.counts.cancelled += 1
                self._forget(job)
            elif job.is_late:
                self._end(job, TimeOutError(f"the answer took longer than {job.seconds:g} s"))

    def _admit(self) -> None:
        """Let requests that wait join the batch, in their order, as many as there is room for."""
        entering: list[Job] = []
        room = self.max_sequences - len(self._batch.sequences)
        with self._changed:
            if self._patience():
                return
            while self._waiting:
                job = self._waiting[0]
                size = len(job.sequences)
                longest = max([job.prompt_len, *(other.prompt_len for other in entering)])
                rows = sum(len(other.groups) for other in entering) + len(job.groups)
                too_many = size > room or (entering and longest * rows > PROMPT_TOKENS_AT_ONCE)
                if too_many or (self._alone and (entering or self._batch.sequences)):
                    break
                entering.append(self._waiting.popleft())
                room -= size
        for job in entering:
            self._begin(job)
        entering = [job for job in entering if job.sequences]
        if entering:
            self._join(entering)

    def _begin(self, job: Job) -> None:
        job.began_at = time.monotonic()
        job.open = len(job.sequences) + len(job.before)
        for sequence in job.sequences:
            self._jobs[id(sequence)] = job
        self._scoring.extend((job, key, make()) for key, make in job.before.items())
        if not job.open:
            self._end(job, None)

    def _join(self, jobs: Sequence[Job]) -> None:
        groups = [group for job in jobs for group in job.groups]
        try:
            self._batch.join(groups)
        except ConfigError as error:
            # A base whose cache bears no padding, or keeps more than keys and values, goes one by one.
            if len(jobs) == 1 and not self._batch.sequences:
                self._end(jobs[0], error)
                return
            self._alone = True
            with self._changed:
                for job in reversed(jobs):
                    self._withdraw(job)
                    self._waiting.appendleft(job)
            return
        for job in jobs:
            self.counts.prompt_tokens += sum(group[0].sample.prompt_len for group in job.groups)
            fault = next((group[0].fault for group in job.groups if group[0].fault), None)
            if fault is not None:
                self._end(job, fault)
                continue
            for number in range(len(job.sequences)):
                self._tell(job, Began(number))

    def _route(self, sequence: Growing, token: Token) -> None:
        """Tell a token to whoever asked for it."""
        job = self._jobs.get(id(sequence))
        if job is None:
            return
        if sequence.fault is not None:
            self._end(job, sequence.fault)
            return
        self._tell(job, Drew(job.index[id(sequence)], token))
        if token.finish is None:
            return
        del self._jobs[id(sequence)]
        job.written_in[job.index[id(sequence)]] = time.monotonic() - job.began_at
        scoring = job.after(sequence) if job.after is not None else None
        if scoring is not None:
            self._scoring.append((job, job.index[id(sequence)], scoring))
        else:
            self._close_one(job)

    def _score(self) -> None:
        """One pass of one piece of scoring; the pieces take turns."""
        job, key, scoring = self._scoring.popleft()
        try:
            self.counts.passes += 1
            next(scoring)
        except StopIteration as done:
            self._tell(job, Scored(key, done.value))
            self._close_one(job)
        except RetroError as error:
            self._end(job, error)
        else:
            self._scoring.append((job, key, scoring))

    def _close_one(self, job: Job) -> None:
        job.open -= 1
        if not job.open:
            self._end(job, None)

    def _end(self, job: Job, error: Exception | None) -> None:
        self._forget(job)
        if error is not None:
            self.counts.failed += 1
        elif job.began_at:
            took = time.monotonic() - job.began_at
            self._mean_seconds = SMOOTHING * self._mean_seconds + (1 - SMOOTHING) * took
        self._tell(job, Ended(error))

    def _forget(self, job: Job) -> None:
        with self._changed:
            if job in self._waiting:
                self._waiting.remove(job)
        self._withdraw(job)
        self._batch.leave(job.sequences)

    def _withdraw(self, job: Job) -> None:
        for sequence in job.sequences:
            self._jobs.pop(id(sequence), None)
        self._scoring = deque(piece for piece in self._scoring if piece[0] is not job)

    def _fail_all(self, error: Exception) -> None:
        """Tell everyone that is under way, and begin with an empty batch."""
        with self._changed:
            jobs = [*self._jobs.values(), *(piece[0] for piece in self._scoring)]
            if isinstance(error, StoppingError):
                jobs += self._waiting
                self._waiting.clear()
            self._jobs.clear()
            self._scoring.clear()
            self._batch = RunningBatch(self.model, self.window, isolate=True)
        for job in {id(job): job for job in jobs}.values():
            self.counts.failed += 1
            self._tell(job, Ended(error))

    def _tell(self, job: Job, event: Event) -> None:
        self._told.setdefault(id(job), (job, []))[1].append(event)
        self._is_urgent |= isinstance(event, Began | Ended)

    def _hand_out(self) -> None:
        """Tell what happened, unless it was told just now and nobody waits for it."""
        now = time.monotonic()
        hold = min(LONGEST_HOLD, max(HOLD, HOLD_EACH * len(self._told)))
        recent = now - self._handed_out < hold
        if recent and not self._is_urgent:
            return
        self._is_urgent = False
        due, kept = [], {}
        for number, (job, events) in self._told.items():
            if job.cancelled:
                continue
            # The first token and the end are told at once.
            begins = any(isinstance(event, Began) for event in events)
            if isinstance(events[-1], Ended) or (job.is_followed and (begins or not recent)):
                due.append((job, events))
            else:
                kept[number] = (job, events)
        self._told = kept
        if due:
            self._handed_out = now
            self.deliver(due)
