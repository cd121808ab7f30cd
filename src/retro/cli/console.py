"""What the commands share: a console, progress bars, and options that override a recipe."""

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import tyro
from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column, Table
from rich.text import Text

from retro import recipes
from retro.cli.progress_lines import progress_lines
from retro.config import RunConfig
from retro.config.checks import require_utf8
from retro.errors import ConfigError, DataError
from retro.stages.progress import Progress as Report
from retro.stages.progress import step_name

if TYPE_CHECKING:
    from retro.stages.redo import Removal

# Under torchrun only the first process prints. Brackets in the user's paths and titles are no markup.
CONSOLE = Console(quiet=os.environ.get("RANK", "0") != "0", markup=False)
WIDE = 110
"""From this width on a terminal has room for long bars and the time that has passed."""
TITLE_WIDTH = 36
"""Titles are padded to this width, so that bars line up."""
LOG_WIDTH = 2000
"""More than any table needs: in a log it is as wide as it has to be."""
DEFAULT_RECIPE = "tiny"
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


def recipe_of(arguments: Sequence[str], default: str = DEFAULT_RECIPE) -> RunConfig:
    """The recipe that gives the other options' defaults, so it is looked up before they are parsed.

    It is the one that `--recipe` names, by its name or as a JSON file; else that of the workspace, if `retro
    study` left one there; else the default.
    """
    # Searched for by hand: the parser can only be built once the defaults are known.
    if name := option_of(arguments, "--recipe"):
        return recipes.get(name)
    if default != DEFAULT_RECIPE:  # a task that has its own, and nothing to do with a study's
        return recipes.get(default)
    # The workspace is what `--out` names, or an argument without a name.
    for place in (option_of(arguments, "--out"), *arguments):
        folder = Path(place)
        if folder.parent.name == "runs":  # a run's own folder
            folder = folder.parent.parent
        found = recipes.of_workspace(folder) if place and not place.startswith("-") else None
        if found:
            return found
    return recipes.get(default)


def option_of(arguments: Sequence[str], name: str) -> str:
    """The value of an option, as it stands among arguments that are not parsed yet; empty without it."""
    value = ""
    for position, argument in enumerate(arguments):
        if argument == name and position + 1 < len(arguments):
            value = arguments[position + 1]
        elif argument.startswith(f"{name}="):
            value = argument.removeprefix(f"{name}=")
    return value


class RichNarrator:
    """Progress bars on the terminal, one per step. Without a terminal, plain lines."""

    @contextmanager
    def progress(self, title: str) -> Iterator[Report]:
        with _bars(title) if CONSOLE.is_terminal else progress_lines(title, _write_line) as report:
            yield _with_pauses(report)


_PAUSES: list[Callable[[], object]] = []
"""What is done between two steps of any work that reports its progress."""


@contextmanager
def between_reports(pause: Callable[[], object]) -> Iterator[None]:
    """Call `pause` whenever work reports its progress; meanwhile the work waits."""
    _PAUSES.append(pause)
    try:
        yield
    finally:
        _PAUSES.remove(pause)


def _with_pauses(report: Report) -> Report:
    def reported(done: int, total: int, step: str = "", note: str = "") -> None:
        report(done, total, step, note)
        for pause in _PAUSES:
            pause()

    return reported


@contextmanager
def _bars(title: str) -> Iterator[Report]:
    is_wide = CONSOLE.width >= WIDE
    columns: list[ProgressColumn] = [
        SpinnerColumn(finished_text="[green]✓"),
        # On a narrow terminal the text goes over two lines, rather than the times over the edge.
        TextColumn("{task.description}", markup=False, table_column=Column()),
        BarColumn(bar_width=24 if is_wide else 10),
        TaskProgressColumn(),
        *([TimeElapsedColumn()] if is_wide else []),
        TextColumn("left"),
        TimeRemainingColumn(),
    ]
    with Progress(*columns, console=CONSOLE, refresh_per_second=4) as bars:
        task = bars.add_task(title.ljust(TITLE_WIDTH), total=None)
        current: str | None = None

        def report(done: int, total: int, step: str = "", note: str = "") -> None:
            nonlocal task, current
            if current not in (None, step):  # a new step has begun and gets its own bar below
                _finish(bars, task)
                task = bars.add_task("", total=None)
            current = step
            description = describe(title, step, note)
            # A total of 0 means that it is unknown.
            bars.update(task, completed=done, total=total or None, description=description)

        yield report
        _finish(bars, task)


def _write_line(line: str) -> None:
    """One line of a log, whole and without colours, at once: whoever follows the log sees it."""
    CONSOLE.print(line, soft_wrap=True, markup=False, highlight=False)
    CONSOLE.file.flush()


def describe(title: str, step: str, note: str) -> str:
    """The text before a bar."""
    name = step_name(title, step)
    return f"{name}: {note}" if note else name.ljust(TITLE_WIDTH)


def _finish(progress: Progress, task: TaskID) -> None:
    # A bar whose total was never known also ends full.
    total = next(known.total for known in progress.tasks if known.id == task) or 1
    progress.update(task, total=total, completed=total)


def print_table(
    title: str, headings: Sequence[str], rows: Sequence[Sequence[str | Text]], *, words: bool = False
) -> None:
    """A table, of numbers unless it has `words`; in a log it has no frame, and no line is cut or wrapped."""
    table = Table(box=box.HEAVY_HEAD if CONSOLE.is_terminal else None)
    # The first column holds names, the others numbers.
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if words or number == 0 else "right")
    for row in rows:
        table.add_row(*row)
    if CONSOLE.is_terminal:
        table.title, table.title_justify = Text(title), "left"
        CONSOLE.print(table)
        return
    CONSOLE.print(title, soft_wrap=True, highlight=False)
    Console(file=CONSOLE.file, width=LOG_WIDTH, quiet=CONSOLE.quiet, markup=False).print(table)


def warn(*lines: str) -> None:
    """Print warnings to standard error, apart from the output."""
    for line in lines:
        text = Text.assemble(("! ", "yellow"), line)
        Console(stderr=True).print(text, soft_wrap=True, highlight=False)


def begin_anew(removal: "Removal", asks: bool = False) -> None:
    """Say what is removed, and remove it. With `asks`, a user at a terminal is asked first."""
    for line in removal.lines():
        CONSOLE.print(f"--redo: {line}", soft_wrap=True, markup=False, highlight=False)
    if removal and asks and sys.stdin.isatty() and CONSOLE.is_terminal:
        answer = CONSOLE.input("Remove it? [y/N] ", markup=False)
        if answer.strip().lower() not in ("y", "yes"):
            raise ConfigError("nothing was removed; expected y; give the new run another name with --name")
    removal.carry_out()


def file_for(path: Path, option: str) -> Path:
    """The file that a command writes when it is done.

    A path that cannot be written is refused before the work begins.
    """
    if path.is_dir():
        raise ConfigError(f"{option} is {path}, which is a folder; expected the name of a file")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Tried, because permissions do not tell whether a disk is full or read-only.
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except (FileExistsError, NotADirectoryError):
        raise ConfigError(
            f"{option} is {path}, but {path.parent} is no folder; expected the name of a file in a folder"
        ) from None
    except OSError as error:
        raise ConfigError(
            f"{option} is {path}, which cannot be written ({error.strerror}); "
            "expected the name of a file in a folder of your own"
        ) from None
    return path


def folder_for(path: Path) -> Path:
    """The folder that a command writes into, made if it is missing.

    A place that cannot be written is refused before the work begins.
    """
    path.mkdir(parents=True, exist_ok=True)
    # That it is there does not say that it can be written: only writing does.
    with tempfile.TemporaryFile(dir=path):
        return path


def place_for(path: Path) -> Path:
    """A folder that a command makes later; a place that cannot be written is refused now all the same."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    folder_for(path)
    for folder in missing:
        folder.rmdir()
    return path


def read_argument(text: str) -> str:
    """The text itself, or standard input for `-`."""
    if text != "-":
        require_utf8("the text", text)
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
