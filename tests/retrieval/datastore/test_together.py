"""Calls of several threads become one, and each gets its own answer, or its own error."""

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from retro.retrieval.datastore import together
from retro.retrieval.datastore.together import Together

SECONDS = 20.0


class Counting:
    """Adds the question to every item, notes who came together, and waits where it is told to."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.go = threading.Event()
        self.began = threading.Event()

    def __call__(self, question: int, items: Sequence[int]) -> list[int]:
        self.calls.append(list(items))
        self.began.set()
        if items[0] == 0:
            assert self.go.wait(SECONDS)
        if 13 in items:
            raise ValueError("13 is refused")
        return [question + item for item in items]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "PATIENCE", SECONDS)


def ask(
    function: Counting, items: Sequence[tuple[int, int]], until_waiting: bool = True
) -> list[Future[int]]:
    """A first call that is held up, then the given questions and items, each by a thread of its own."""
    call = Together(function)
    with ThreadPoolExecutor(1 + len(items)) as pool:
        first = pool.submit(call, 100, 0)
        assert function.began.wait(SECONDS)
        others = []
        for number, (question, item) in enumerate(items, start=1):
            others.append(pool.submit(call, question, item))
            while until_waiting and len(call._waiting) < number:
                pass
        if not until_waiting:
            for other in others:
                other.exception(SECONDS)
        function.go.set()
    return [first, *others]


def test_what_waits_becomes_one_call(patient: None) -> None:
    function = Counting()
    found = ask(function, [(100, 1), (100, 2), (100, 3)])
    assert [future.result() for future in found] == [100, 101, 102, 103]
    assert function.calls == [[0], [1, 2, 3]]


def test_other_questions_are_calls_of_their_own(patient: None) -> None:
    function = Counting()
    found = ask(function, [(100, 1), (200, 2), (100, 3), (200, 4)])
    assert [future.result() for future in found] == [100, 101, 202, 103, 204]
    assert function.calls == [[0], [1, 3], [2, 4]]


def test_an_error_reaches_only_the_one_at_fault(patient: None) -> None:
    function = Counting()
    first, *others = ask(function, [(100, 1), (100, 13), (100, 3)])
    assert (first.result(), others[0].result(), others[2].result()) == (100, 101, 103)
    with pytest.raises(ValueError, match="13 is refused"):
        others[1].result()


def test_nobody_waits_long_for_a_long_call() -> None:
    function = Counting()
    found = ask(function, [(100, 1), (100, 2)], until_waiting=False)
    assert [future.result() for future in found] == [100, 101, 102]


def test_after_an_error_alone_the_next_call_goes_on() -> None:
    call = Together(Counting())
    with pytest.raises(ValueError, match="13 is refused"):
        call(0, 13)
    assert call(1, 1) == 2
    assert call._under_way == 0
