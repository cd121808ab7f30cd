"""How much is fuzzed, what counts as sound, and what was seen: inputs by target, read or refused.

`RETRO_FUZZ` is the number of inputs in all, shared among the targets. Without it a few hundred run, the same
ones every time; with it they are drawn anew.
"""

import faulthandler
import os
import resource
import signal
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from hypothesis import HealthCheck, Phase, settings

from retro.errors import RetroError

FEW = 400
TOTAL = int(os.environ.get("RETRO_FUZZ", "0")) or FEW
IS_LONG = "RETRO_FUZZ" in os.environ
SECONDS = 20.0
"""An input that takes longer hangs."""
MORE_BYTES = 4 << 30
"""What an input may take beyond the memory that the tests hold: more is refused as on a small machine."""
COLLECTING = {"gc_callback", "__del__"}
"""Functions that run while memory is collected: hypothesis's own, which measures it, and finalisers."""
SEEN: dict[str, Counter[str]] = {}


def inputs(share: float) -> settings:
    """Settings for a part of all inputs."""
    return settings(
        max_examples=max(1, round(TOTAL * share)),
        derandomize=not IS_LONG,
        database=None,
        deadline=None,  # `watched` has its own, which a busy machine does not trip
        # A change of a valid file is small already; making it smaller would take longer than finding it.
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )


class HangError(BaseException):
    """No `except` of the code under test may catch it."""


@contextmanager
def watched(target: str) -> Iterator[None]:
    """Bound the time and the memory of one input."""
    started = time.monotonic()
    # What never returns to Python hears no signal; then the whole process ends, with a trace.
    faulthandler.dump_traceback_later(6 * SECONDS, exit=True)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_virtual_bytes() + MORE_BYTES, limits[1]))
    try:
        hang = HangError(f"an input took longer than {SECONDS:.0f} s")
        with warnings.catch_warnings(), alarm(SECONDS, hang):
            # Numbers that overflow are warned of, which is no traceback.
            warnings.simplefilter("ignore")
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
        faulthandler.cancel_dump_traceback_later()
        SEEN.setdefault(target, Counter())["milliseconds"] += round(1000 * (time.monotonic() - started))


def expect_sound(target: str, use: Callable[[], Any]) -> None:
    """Whatever the input, it is read, or refused by an error of ours."""
    with watched(target):
        try:
            use()
            count(target, "read")
        except RetroError:
            count(target, "refused")


def count(target: str, outcome: str) -> None:
    SEEN.setdefault(target, Counter())[outcome] += 1


def table() -> Iterator[str]:
    """Inputs by target and outcome."""
    yield f"{'target':<28} {'inputs':>7} {'read':>7} {'refused':>7} {'seconds':>8}"
    every: Counter[str] = Counter()
    for target, seen in [*sorted(SEEN.items()), ("all", every)]:
        number = seen["read"] + seen["refused"]
        seconds = seen["milliseconds"] / 1000
        yield f"{target:<28} {number:>7,} {seen['read']:>7,} {seen['refused']:>7,} {seconds:>8.1f}"
        every.update(seen)


@contextmanager
def alarm(seconds: float, error: BaseException) -> Iterator[None]:
    """Raise an error in the block once it takes longer.

    What is raised while something is collected or freed is lost, and is then a warning of whatever test runs;
    so it waits until that is over.
    """

    def ring(_number: int, frame: FrameType | None) -> None:
        while frame is not None:
            if frame.f_code.co_name in COLLECTING:
                signal.setitimer(signal.ITIMER_REAL, 0.01)
                return
            frame = frame.f_back
        raise error

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _virtual_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()
