"""What the commands share: a console, progress bars, and options laid over a recipe."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import tyro
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from retro import recipes
from retro.config import RunConfig
from retro.errors import DataError

CONSOLE = Console(quiet=os.environ.get("RANK", "0") != "0")  # of torchrun's processes the first alone speaks
Options = TypeVar("Options")


def parse(cls: Callable[..., Options], arguments: Sequence[str], command: str, default: Any = None) -> Options:
    """Options of a command from its arguments."""
    extra = {} if default is None else {"default": default}
    return tyro.cli(cls, args=list(arguments), prog=f"retro {command}", **extra)


def recipe_of(arguments: Sequence[str], default: str = "tiny") -> RunConfig:
    """The recipe that `--recipe` names, looked up before the other options, whose defaults it gives."""
    name = default
    for position, argument in enumerate(arguments):
        if argument == "--recipe" and position + 1 < len(arguments):
            name = arguments[position + 1]
        elif argument.startswith("--recipe="):
            name = argument.removeprefix("--recipe=")
    return recipes.get(name)


class RichNarrator:
    """Progress bars on the terminal; a line at the end where there is none."""

    @contextmanager
    def counting(self, title: str) -> Iterator[Callable[[int, int], None]]:
        with self._bar(title, TaskProgressColumn(), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn()) as (progress, task):
            yield lambda done, total: progress.update(task, completed=done, total=total)

    @contextmanager
    def steps(self, title: str) -> Iterator[Callable[[str, int, int], None]]:
        with self._bar(title, TaskProgressColumn(), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn()) as (progress, task):
            names: list[str] = []

            def told(step: str, done: int, total: int) -> None:
                nonlocal task
                name = step.partition(":")[0]
                if name not in names[-1:]:
                    if names:
                        _finish(progress, task)
                        task = progress.add_task(step, total=None)
                    names.append(name)
                progress.update(task, completed=done, total=total or None, description=step)

            yield told

    @contextmanager
    def scoring(self, title: str) -> Iterator[Callable[[str, int, int], None]]:
        with self._bar(title, TaskProgressColumn(), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn()) as (progress, task):

            def told(mode: str, done: int, total: int) -> None:
                progress.update(task, completed=done, total=total, description=f"{title} · {mode}".ljust(36))

            yield told

    @contextmanager
    def training(self, title: str) -> Iterator[Callable[[Any], None]]:
        columns = (TextColumn("{task.fields[line]}"),)
        with self._bar(title, MofNCompleteColumn(), TimeElapsedColumn(), *columns) as (progress, task):

            def told(report: Any) -> None:
                line = f"loss {report.loss:.3f}  {report.tokens_per_second:,.0f} tokens/s  {report.seconds_left / 60:.1f} min left"
                progress.update(task, completed=report.step, total=report.num_steps, line=line)

            yield told

    @contextmanager
    def _bar(self, title: str, *columns: Any) -> Iterator[tuple[Progress, Any]]:
        shown = (SpinnerColumn(finished_text="[green]✓"), TextColumn("{task.description}"), BarColumn(bar_width=24), *columns)
        with Progress(*shown, console=CONSOLE, refresh_per_second=4) as progress:
            task = progress.add_task(title.ljust(36), total=None, line="")
            yield progress, task
            _finish(progress, progress.task_ids[-1])


def _finish(progress: Progress, task: TaskID) -> None:
    total = next(known.total for known in progress.tasks if known.id == task) or 1
    progress.update(task, total=total, completed=total)


def print_table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = Table(title=title, title_justify="left")
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number == 0 else "right")
    for row in rows:
        table.add_row(*row)
    CONSOLE.print(table)


def read_argument(text: str) -> str:
    """The text itself, or standard input for `-`."""
    if text != "-":
        return text
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise DataError(f"standard input is not UTF-8 (byte {error.start}); expected text") from None


def read_text(path: Path) -> str:
    """A file's text."""
    try:
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, IsADirectoryError):
        raise DataError(f"{path} is no file; expected one with text") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 (byte {error.start}); expected text") from None
