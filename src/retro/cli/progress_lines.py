"""Progress where nobody watches, as in a log: a plain line now and then, and one for each step's end.

Such as `Training retro: 120 of 500, loss 3.210, valid 3.400, 0:35 left` and, at the end,
`Training retro: 500 of 500, loss 2.871, valid 3.102, took 1:12`.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from retro.stages.progress import Progress, step_name

SECONDS = 10.0
"""Between two lines of the same step."""
MANY = 1_000_000
"""From here on a total is told in percent: it counts bytes, or more than a reader would compare."""


@contextmanager
def progress_lines(title: str, write: Callable[[str], None], seconds: float = SECONDS) -> Iterator[Progress]:
    """Write how far the block is every few seconds, be it reported or not, and how long each step took.

    A thread writes the lines, so that they also come while a library is silent. It ends with the block.
    """
    current = _Step(title)
    lock = threading.Lock()
    ended = threading.Event()

    def report(done: int, total: int, step: str = "", note: str = "") -> None:
        nonlocal current
        name = step_name(title, step)
        with lock:
            if current.begun and name != current.name:
                write(current.last_line())
                current = _Step(name)
            current.name = name
            current.update(done, total, note)

    def tick() -> None:
        # Whoever read the output may have closed it; the command itself finds out and ends.
        with suppress(BrokenPipeError):
            while not ended.wait(seconds):
                with lock:
                    write(current.line())

    thread = threading.Thread(target=tick, name=f"progress of {title}", daemon=True)
    thread.start()
    try:
        yield report
    finally:
        ended.set()
        thread.join()
    write(current.last_line())


class _Step:
    """One step, from its first report to its end."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.started = time.monotonic()
        self.done = 0
        self.total = 0
        self.note = ""
        self.begun: tuple[int, float] | None = None
        """How much was done at the first report, and when: a resumed step begins somewhere in the middle."""

    def update(self, done: int, total: int, note: str) -> None:
        self.done = done
        self.total = total
        self.note = note
        self.begun = self.begun or (done, time.monotonic())

    def line(self) -> str:
        left = self._seconds_left()
        running = f"{minutes(time.monotonic() - self.started)} so far"
        return self._with(running if left is None else f"{minutes(left)} left")

    def last_line(self) -> str:
        return self._with(f"took {minutes(time.monotonic() - self.started)}")

    def _with(self, time_told: str) -> str:
        count = ""
        if self.total >= MANY:
            count = f"{self.done / self.total:.0%}"
        elif self.total:
            count = f"{self.done:,} of {self.total:,}"
        return f"{self.name}: {', '.join(part for part in (count, self.note, time_told) if part)}"

    def _seconds_left(self) -> float | None:
        """At the speed since the first report; None before there is a speed."""
        if self.begun is None or not self.total:
            return None
        first, since = self.begun
        made, seconds = self.done - first, time.monotonic() - since
        return (self.total - self.done) * seconds / made if made > 0 else None


def minutes(seconds: float) -> str:
    """0:07, 12:30 or 1:02:03."""
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"
