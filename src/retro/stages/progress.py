"""How long work reports its progress: one kind of call for every stage."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, runtime_checkable


@runtime_checkable
class Progress(Protocol):
    """Called again and again while work goes on."""

    def __call__(self, done: int, total: int, step: str = "", note: str = "") -> None:
        """`done` of `total`, 0 where it is unknown; `step` names the part, `note` adds such as a loss."""
        ...


def no_progress(done: int, total: int, step: str = "", note: str = "") -> None:
    """Reports nothing: the default of every function that takes a `Progress`."""


def step_name(title: str, step: str) -> str:
    """What a step is called below its work's title.

    A step with a capital letter is a title of its own; others, such as a mode, follow the title.
    """
    if not step:
        return title
    return step if step[0].isupper() else f"{title} · {step}"


def at_step(progress: Progress, step: str) -> Progress:
    """The same progress, with every call belonging to one step."""

    def report(done: int, total: int, step: str = step, note: str = "") -> None:
        progress(done, total, step, note)

    return report


def from_offset(progress: Progress, offset: int, whole: int) -> Progress:
    """The same progress for a part that begins at `offset` of a larger whole."""

    # The total that is reported is of the part alone, and gives way to that of the whole; where nothing is
    # counted there is no whole either.
    def report(done: int, total: int, step: str = "", note: str = "") -> None:
        if total:
            progress(offset + done, whole, step, note)
        else:
            progress(done, 0, step, note)

    return report


@runtime_checkable
class Narrator(Protocol):
    """Shows people what is going on: a bar on a terminal, lines in a log, or nothing."""

    def progress(self, title: str) -> AbstractContextManager[Progress]:
        """The progress of work with this title; it is finished when the block ends."""
        ...


class SilentNarrator:
    """Says nothing: for whoever calls from Python."""

    @contextmanager
    def progress(self, title: str) -> Iterator[Progress]:
        yield no_progress
