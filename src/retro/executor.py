"""Executors: a stage maps a pure function over its shards and does not know where it runs."""

import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import chain, islice
from typing import Protocol, TypeVar, runtime_checkable

from retro.errors import ConfigError, RetroError

Item = TypeVar("Item")
Result = TypeVar("Result")


@runtime_checkable
class Executor(Protocol):
    """Runs a function over items. The function and its items can be sent to another process."""

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Results in the order of the items; items are taken as places become free, so that few are held at once."""
        ...


class LocalExecutor:
    """Processes of this machine, one a core unless told otherwise; with one worker everything runs in this process."""

    def __init__(self, num_workers: int = 0) -> None:
        if num_workers < 0:
            raise ConfigError(f"num_workers is {num_workers}; expected 0 for one a core, or a positive number")
        self.num_workers = num_workers or os.cpu_count() or 1
        self._pool: ProcessPoolExecutor | None = None

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        first, items = _peek(items, 2)
        if self.num_workers == 1 or len(first) < 2:  # a pool would cost more than it saves
            yield from map(function, items)
            return
        pool = self._started()
        pending: deque[Future[Result]] = deque()
        try:
            for item in items:
                pending.append(pool.submit(function, item))
                if len(pending) > self.num_workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        except BrokenProcessPool:
            raise RetroError(
                "the worker processes did not start or were killed; expected enough memory, and a script that works under "
                'if __name__ == "__main__":; run with one worker to see more'
            ) from None
        finally:
            if pending or sys.exc_info()[0] is not None:  # something went wrong, or the caller has enough
                pool.shutdown(wait=True, cancel_futures=True)
                self._pool = None

    def _started(self) -> ProcessPoolExecutor:
        """The processes, which stay for the next stage."""
        if self._pool is None:
            # Spawned, not forked: a fork of a process with running threads may hang.
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self.num_workers, mp_context=context, initializer=_leave_interrupts_to_the_parent)
        return self._pool


def _peek(items: Iterable[Item], number: int) -> tuple[list[Item], Iterator[Item]]:
    """The first items, and all of them again."""
    iterator = iter(items)
    first = list(islice(iterator, number))
    return first, chain(first, iterator)


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
