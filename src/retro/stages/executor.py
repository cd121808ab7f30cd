"""Executors: a stage maps a pure function over its shards and does not know where it runs.

Here is what runs on this machine; `cluster.py` is for several.
"""

import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import chain, islice
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

from retro.errors import ConfigError, RetroError

Handle = TypeVar("Handle")
Item = TypeVar("Item")
Result = TypeVar("Result")


@runtime_checkable
class Executor(Protocol):
    """Runs a function over items. The function and its items can be sent to another process."""

    def close(self) -> None:
        """Let go what is kept for the next call, such as processes; another call starts them again."""
        ...

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Results in the order of the items, which are taken as places become free: few are held at once."""
        ...

    def needs(self, work: Path | None, *sources: Path) -> None:
        """Say which folder the functions write to, if any, and which files and folders they read.

        Where one of them cannot be seen, the next call says so before it does anything else.
        """
        ...


class LocalExecutor:
    """Processes of this machine, one for each core by default. One worker means this process alone."""

    def __init__(self, num_workers: int = 0) -> None:
        self.num_workers = expect_workers(num_workers) or os.cpu_count() or 1
        self._pool: ProcessPoolExecutor | None = None

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        first, items = _peek(items, 2)
        # For a single worker or a single item a pool would cost more than it saves.
        if self.num_workers == 1 or len(first) < 2:
            yield from map(function, items)
            return
        pool = self._started()
        # Tasks that were handed to the pool and whose results have not been taken yet.
        pending: deque[Future[Result]] = deque()
        try:
            yield from in_order(
                items, lambda item: pool.submit(function, item), Future.result, pending, self.num_workers
            )
        except BrokenProcessPool:
            raise RetroError(
                "the worker processes did not start or were killed; expected enough memory, and a script "
                'that works under if __name__ == "__main__":; run with one worker to see more'
            ) from None
        finally:
            # Something went wrong, or the caller stopped asking: drop what is still to be done.
            if pending or sys.exc_info()[0] is not None:
                self.close()

    def needs(self, work: Path | None, *sources: Path) -> None:
        """Processes of this machine see what this one sees."""

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None

    def _started(self) -> ProcessPoolExecutor:
        """The processes, which stay for the next stage until they are closed."""
        if self._pool is None:
            # Spawned, not forked: a fork of a process with running threads may hang.
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(
                self.num_workers, mp_context=context, initializer=_leave_interrupts_to_the_parent
            )
        return self._pool


def expect_workers(num_workers: int) -> int:
    if num_workers < 0:
        raise ConfigError(f"num_workers is {num_workers}; expected 0 for one a core, or a positive number")
    return num_workers


def in_order(
    items: Iterable[Item],
    submit: Callable[[Item], Handle],
    result: Callable[[Handle], Result],
    pending: deque[Handle],
    workers: int,
) -> Iterator[Result]:
    """The results in the order of the items.

    One task more than there are workers is pending, so that a worker that finishes finds the next at once.
    """
    for item in items:
        pending.append(submit(item))
        if len(pending) > workers:
            yield result(pending.popleft())
    while pending:
        yield result(pending.popleft())


def _peek(items: Iterable[Item], number: int) -> tuple[list[Item], Iterator[Item]]:
    """The first items, and all of them again."""
    iterator = iter(items)
    first = list(islice(iterator, number))
    return first, chain(first, iterator)


def _leave_interrupts_to_the_parent() -> None:
    """Ctrl-C reaches every process of a terminal, but only the parent knows what to do about it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
