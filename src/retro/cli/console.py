"""What the commands share: a console, progress bars, and options that override a recipe."""

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
from retro.errors import ConfigError, DataError
from retro.stages.progress import Progress as Report

# Under torchrun only the first process prints.
CONSOLE = Console(quiet=os.environ.get("RANK", "0") != "0")
TITLE_WIDTH = 36
"""Titles are padded to this width, so that bars line up."""
Options = TypeVar("Options")


def parse(
    cls: Callable[..., Options], arguments: Sequence[str], command: str, default: Any = None
) -> Options:
    """Read a command's options from its arguments."""
    extra = {} if default is None else {"default": default}
    # Without subcommands, a config that may be absent, such as a model's retrieval, has options
    # only if the recipe has that config.
    return tyro.cli(
        cls, args=list(arguments), prog=f"retro {command}", config=(tyro.conf.AvoidSubcommands,), **extra
    )


def recipe_of(arguments: Sequence[str], default: str = "tiny") -> RunConfig:
    """The recipe that `--recipe` names. It is looked up first, as it gives the other options' defaults."""
    # Searched for by hand: the parser can only be built once the defaults are known.
    name = default
    for position, argument in enumerate(arguments):
        if argument == "--recipe" and position + 1 < len(arguments):
            name = arguments[position + 1]
        elif argument.startswith("--recipe="):
            name = argument.removeprefix("--recipe=")
    return recipes.get(name)


class RichNarrator:
    """Progress bars on the terminal, one per step. Without a terminal, a line at the end."""

    @contextmanager
    def progress(self, title: str) -> Iterator[Report]:
        columns = (
            SpinnerColumn(finished_text="[green]✓"),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=CONSOLE, refresh_per_second=4) as bars:
            task = bars.add_task(title.ljust(TITLE_WIDTH), total=None)
            current = ""

            def report(done: int, total: int, step: str = "", note: str = "") -> None:
                nonlocal task, current
                if step != current and current:  # a new step has begun and gets its own bar below
                    _finish(bars, task)
                    task = bars.add_task("", total=None)
                current = step
                description = describe(title, step, note)
                # A total of 0 means that it is unknown.
                bars.update(task, completed=done, total=total or None, description=description)

            yield report
            _finish(bars, task)


def describe(title: str, step: str, note: str) -> str:
    """The text before a bar.

    A step with a capital letter is a title of its own; others, such as a mode, follow the title.
    """
    name = title
    if step:
        name = step if step[0].isupper() else f"{title} · {step}"
    return f"{name}: {note}" if note else name.ljust(TITLE_WIDTH)


def _finish(progress: Progress, task: TaskID) -> None:
    # A bar whose total was never known also ends full.
    total = next(known.total for known in progress.tasks if known.id == task) or 1
    progress.update(task, total=total, completed=total)


def print_table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    # The first column holds names, the others numbers.
    table = Table(title=title, title_justify="left")
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number == 0 else "right")
    for row in rows:
        table.add_row(*row)
    CONSOLE.print(table)


def warn(*lines: str) -> None:
    """Print warnings to standard error, apart from the output."""
    for line in lines:
        Console(stderr=True).print(f"[yellow]![/] {line}", soft_wrap=True, highlight=False)


def file_for(path: Path, option: str) -> Path:
    """The file that a command writes when it is done.

    A path that cannot be written is refused before the work begins.
    """
    if path.is_dir():
        raise ConfigError(f"{option} is {path}, which is a folder; expected the name of a file")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise ConfigError(
            f"{option} is {path}, but {path.parent} is no folder; expected the name of a file in a folder"
        ) from None
    return path


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
