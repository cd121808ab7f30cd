"""Batches made ahead in a background thread, so that a step never waits for the disk."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

Made = TypeVar("Made")


def prefetch(make: Callable[[int], Made], numbers: Iterable[int], depth: int = 2) -> Iterator[Made]:
    """`make(number)` for each number in turn, up to `depth` of them ahead of what is asked for.

    Nothing but time can change: `make` must be a pure function of the number. Its errors are raised where its result is due.
    """
    remaining = iter(numbers)
    thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches")
    try:
        ahead: deque[Future[Made]] = deque(thread.submit(make, number) for number in islice(remaining, depth))
        while ahead:
            result = ahead.popleft().result()
            ahead.extend(thread.submit(make, number) for number in islice(remaining, 1))
            yield result
    finally:
        thread.shutdown(wait=True, cancel_futures=True)
