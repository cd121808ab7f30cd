"""Requests on their way through the engine, and what those who asked are told."""

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

from retro.errors import RetroError
from retro.generation.sequence import Growing, Token

Scoring = Generator[None, None, Any]
"""A computation with the model that pauses after every pass; what it returns is handed out."""


@dataclass(frozen=True)
class Began:
    """The sequence has read its prompt; the neighbours of the prompt's chunks are known."""

    index: int


@dataclass(frozen=True)
class Drew:
    """The sequence has a new token; with its `finish` it is the last."""

    index: int
    token: Token


@dataclass(frozen=True)
class Scored:
    """A piece of scoring is done: `key` is what it was asked for with."""

    key: Any
    result: Any


@dataclass(frozen=True)
class Ended:
    """Nothing more will come; with an error if that is not how it should have been."""

    error: Exception | None = None


Event = Began | Drew | Scored | Ended


class BusyError(RetroError):
    """There is no room for another request now."""

    def __init__(self, seconds: int) -> None:
        super().__init__(f"all places are taken; try again in {seconds} s")
        self.seconds = seconds


class StoppingError(RetroError):
    """The server is on its way out."""

    def __init__(self) -> None:
        super().__init__("the server is stopping; expected it to be started again")


class TimeOutError(RetroError):
    """A request took longer than it may."""


@dataclass(eq=False)
class Job:
    """A request on its way through the engine.

    `groups` are the samples of each prompt; sequence i of them all is the answer with index i. `before` is
    scored while the answer is being written, by its keys, and `after` makes the scoring of a sequence that
    has ended, if there is any.
    """

    groups: Sequence[Sequence[Growing]]
    tell: Callable[[list[Event]], None]
    """Takes what happened, in order, and must not wait."""
    is_followed: bool = True
    """Whether somebody reads along; otherwise everything is told at the end."""
    before: dict[Any, Callable[[], Scoring]] = field(default_factory=dict)
    after: Callable[[Growing], Scoring | None] | None = None
    seconds: float = 600.0
    """How long it may take from the moment that it is asked for."""
    cancelled: bool = False
    """Set by whoever asked and no longer wants it."""
    asked_at: float = field(default_factory=time.monotonic)
    began_at: float = 0.0
    written_in: dict[int, float] = field(default_factory=dict)
    """Seconds from the beginning to the end of each answer, by its index."""
    open: int = 0
    """Sequences and pieces of scoring that are not done yet."""

    def __post_init__(self) -> None:
        self.sequences = [sequence for group in self.groups for sequence in group]
        self.index = {id(sequence): number for number, sequence in enumerate(self.sequences)}

    @property
    def is_late(self) -> bool:
        return time.monotonic() - self.asked_at > self.seconds

    @property
    def prompt_len(self) -> int:
        return max((group[0].sample.prompt_len for group in self.groups), default=0)


Told = list[tuple[Job, list[Event]]]


def tell_each(told: Told) -> None:
    """Tell everyone, in the engine's own thread."""
    for job, events in told:
        job.tell(events)
