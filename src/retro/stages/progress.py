"""How work that takes long tells where it is: one kind of report for every stage, and who listens."""

from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable


@runtime_checkable
class Progress(Protocol):
    """Called again and again while work goes on."""

    def __call__(self, done: int, total: int, step: str = "", note: str = "") -> None:
        """`done` of `total`, 0 where nobody knows it; `step` names the part of the work, `note` says more, such as a loss."""
        ...


def no_progress(done: int, total: int, step: str = "", note: str = "") -> None:
    """For callers who do not want to know."""


def at_step(progress: Progress, step: str) -> Progress:
    """The same listener, told that all of it belongs to one step."""

    def report(done: int, total: int, step: str = step, note: str = "") -> None:
        progress(done, total, step, note)

    return report


def from_offset(progress: Progress, offset: int, whole: int) -> Progress:
    """The same listener for a part that begins at `offset` of a larger whole."""

    def report(done: int, total: int, step: str = "", note: str = "") -> None:
        progress(offset + done, whole, step, note)

    return report


@runtime_checkable
class Narrator(Protocol):
    """Tells people what is going on: a bar on a terminal, lines in a log, or nothing."""

    def progress(self, title: str) -> AbstractContextManager[Progress]:
        """A listener for work of this title; it is finished when the block ends."""
        ...
