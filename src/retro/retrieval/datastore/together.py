"""Short calls of several threads as one: those that come while one is under way are made as the next.

A search in a small datastore takes less than a millisecond, most of it Python, of which one thread runs at a
time: eight threads that ask at once would take longer than one that asks eight times. One call with eight
items costs far less, so calls wait for each other and go together, but not for longer than short calls take.
"""

import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

Question = TypeVar("Question", bound=Hashable)
Item = TypeVar("Item")
Answer = TypeVar("Answer")

PATIENCE = 0.01
"""Seconds that a call waits for the one under way; then it starts beside it."""


class Together(Generic[Question, Item, Answer]):
    """A function of a question and of items, with an answer to each, that many threads call with one item.

    Calls that wait with the same question become one.
    """

    def __init__(self, function: Callable[[Question, Sequence[Item]], Sequence[Answer]]) -> None:
        self._function = function
        # The lock is held to change the other two, and never during a call.
        self._lock = threading.Lock()
        self._under_way = 0
        self._waiting: list[_Call[Question, Item, Answer]] = []

    def __call__(self, question: Question, item: Item) -> Answer:
        own = _Call[Question, Item, Answer](question, item)
        with self._lock:
            waits = self._under_way > 0
            if waits:
                self._waiting.append(own)
            else:
                self._under_way += 1
        if waits and not own.woken.wait(PATIENCE):
            with self._lock:
                waits = own not in self._waiting
                if not waits:
                    self._under_way += 1
                    self._gather(own)
            if waits:
                # Another has just taken it along.
                own.woken.wait()
        if not own.answers and own.group:
            self._answer(own.group)
        if not own.answers:
            # It failed beside others, and the fault may be another's.
            return self._function(question, [item])[0]
        return own.answers[0]

    def _answer(self, group: "list[_Call[Question, Item, Answer]]") -> None:
        try:
            answers = self._function(group[0].question, [call.item for call in group])
            for call, answer in zip(group, answers, strict=True):
                call.answers = [answer]
        except Exception:
            if len(group) == 1:
                raise
        finally:
            for call in group[1:]:
                call.woken.set()
            self._next()

    def _next(self) -> None:
        """Give the turn to the first that waits."""
        with self._lock:
            if not self._waiting:
                self._under_way -= 1
                return
            first = self._waiting[0]
            self._gather(first)
        first.woken.set()

    def _gather(self, first: "_Call[Question, Item, Answer]") -> None:
        """Take a call out of the queue, and along with it those that ask the same."""
        first.group = [first]
        rest = []
        for call in self._waiting:
            if call is first:
                continue
            if call.question == first.question:
                first.group.append(call)
                call.group = []
            else:
                rest.append(call)
        self._waiting = rest


class _Call(Generic[Question, Item, Answer]):
    """What one thread asks."""

    def __init__(self, question: Question, item: Item) -> None:
        self.question = question
        self.item = item
        self.group = [self]
        """What is answered with it, itself first; empty if it is answered with another."""
        self.answers: list[Answer] = []
        """One, once it is answered."""
        self.woken = threading.Event()
        """Set when it is answered or has its turn."""
