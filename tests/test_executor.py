import os
import signal
from collections.abc import Iterator

import pytest

from retro.errors import ConfigError, RetroError
from retro.executor import LocalExecutor


def square(number: int) -> tuple[int, int]:
    return number * number, os.getpid()


def die(number: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return number


def fail(number: int) -> int:
    raise ValueError(f"item {number}")


@pytest.mark.parametrize("num_workers", [1, 2])
def test_results_come_in_order_from_bounded_input(num_workers: int) -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for number in range(20):
            taken.append(number)
            yield number

    results = LocalExecutor(num_workers).map(square, items())
    first = next(results)
    assert len(taken) <= 2 + num_workers
    values = [first, *results]
    assert [value for value, _ in values] == [number * number for number in range(20)]
    assert (os.getpid() in {process for _, process in values}) == (num_workers == 1)


def test_one_item_needs_no_pool() -> None:
    assert list(LocalExecutor(2).map(square, [3])) == [(9, os.getpid())]
    assert list(LocalExecutor(2).map(square, [])) == []


def test_an_error_of_a_worker_reaches_the_caller() -> None:
    with pytest.raises(ValueError, match="item 0"):
        list(LocalExecutor(2).map(fail, range(3)))
    with pytest.raises(RetroError, match="did not start or were killed"):
        list(LocalExecutor(2).map(die, range(3)))
    with pytest.raises(ConfigError, match="num_workers is -1"):
        LocalExecutor(-1)


def test_processes_stay_for_the_next_stage() -> None:
    executor = LocalExecutor(2)
    first, second = ({process for _, process in executor.map(square, range(20))} for _ in range(2))
    assert first & second
