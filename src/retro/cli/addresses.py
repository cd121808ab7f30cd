"""Addresses among a command's arguments: each becomes the folder of its mirror, and the command runs on that.

What a command prints names the address in the folder's place. No command knows of it.
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TextIO, cast

from retro.errors import ConfigError
from retro.stages.remote.address import is_address

CREATE = ("ingest", "study", "demo", "reproduce")
"""Commands that make a workspace, at --out. All their other arguments are something else."""
WRITE = (*CREATE, "build", "neighbours", "train", "fit", "evaluate", "knn")
DB_WRITES = ("add", "sync", "delete", "compact", "engine")
FLAGS = {"serve": "--allow-writes", "doctor": "--mend"}
"""Options with which a command that reads writes."""
BY_NAME = {"doctor": "--work"}
"""Commands that have the workspace behind an option."""
BESIDE = "--datastore"
"""An option that names a second place, which is read."""
OUT = "--out"
SECONDS = "RETRO_MIRROR_SECONDS"
"""Where the environment may hold the time between two pushes of a command that goes on."""

Named = Callable[[str], str]
"""A text with addresses in the place of their mirrors' folders."""


@contextmanager
def with_mirrors(command: str, arguments: list[str]) -> Iterator[tuple[list[str], Named]]:
    """The arguments with folders for addresses, which are pulled before and, if it writes, pushed after."""
    found = {} if {"-h", "--help"} & {*arguments} else places(command, arguments)
    if not found:
        yield arguments, str
        return
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError(
            f"{arguments[next(iter(found))]} was given to several processes; expected a folder that all of "
            "them share; run: retro mirror pull ADDRESS --folder FOLDER, train on FOLDER, and run: "
            "retro mirror push ADDRESS --folder FOLDER"
        )
    # Here and not above, so that --help does not wait for them.
    from retro.cli import console
    from retro.mirrors import mirror_folder
    from retro.stages.remote.mirror import Mirror

    arguments = list(arguments)
    with ExitStack() as stack:
        names: dict[str, str] = {}
        mirrors = []
        for position, writes in found.items():
            option, equals, address = _split(arguments[position])
            mirror = Mirror(address, mirror_folder(address), console.RichNarrator(), console.warn, seconds())
            folder = stack.enter_context(mirror.session(writes, command in CREATE))
            arguments[position] = f"{option}{equals}{folder}"
            names[str(folder)] = mirror.address
            mirrors.append(mirror)

        def named(text: str) -> str:
            for folder, address in names.items():
                text = text.replace(folder, address)
            return text

        def push_if_due() -> None:
            for mirror in mirrors:
                mirror.push_if_due()

        stack.enter_context(_printed(named))
        stack.enter_context(console.between_reports(push_if_due))
        yield arguments, named


def places(command: str, arguments: Sequence[str]) -> dict[int, bool]:
    """Where among the arguments an address stands for a workspace, and whether that one is written to."""
    found: dict[int, bool] = {}
    is_free = command not in (*CREATE, *BY_NAME, "mirror", "plan", "fetch")
    for position, argument in enumerate(arguments):
        option, equals, value = _split(argument)
        if not is_address(value):
            # A text that is asked for may look like an address; it comes after the place.
            is_word = not argument.startswith("-") and position >= (1 if command == "db" else 0)
            is_value = position > 0 and arguments[position - 1].startswith("-")
            is_free = is_free and not (is_word and not is_value and Path(argument).exists())
            continue
        if not equals and position > 0 and arguments[position - 1].startswith("--"):
            option = arguments[position - 1]
        if option == OUT and command not in CREATE:
            raise ConfigError(
                f"{OUT} is {value}; expected a place on this machine, as this command writes files there "
                "and no workspace"
            )
        if option == BESIDE:
            found[position] = False
        elif option in (OUT, BY_NAME.get(command)) or (is_free and not equals):
            found[position] = _writes(command, arguments)
            is_free = False
    return found


def seconds() -> float:
    """The time between two pushes of a command that goes on."""
    from retro.stages.remote.mirror import EVERY

    text = os.environ.get(SECONDS, "")
    try:
        return float(text or EVERY)
    except ValueError:
        raise ConfigError(f"{SECONDS} is {text!r}; expected a number of seconds") from None


def _writes(command: str, arguments: Sequence[str]) -> bool:
    if command == "db":
        return bool({*DB_WRITES} & {*arguments[:1]})
    return command in WRITE or any(argument.replace("_", "-") == FLAGS.get(command) for argument in arguments)


def _split(argument: str) -> tuple[str, str, str]:
    """An option and its value in one argument; otherwise the value alone."""
    if argument.startswith("--") and "=" in argument:
        return argument.partition("=")
    return "", "", argument


@contextmanager
def _printed(named: Named) -> Iterator[None]:
    """Name addresses in all that is printed."""
    kept = sys.stdout, sys.stderr
    sys.stdout = cast(TextIO, _Naming(sys.stdout, named))
    sys.stderr = cast(TextIO, _Naming(sys.stderr, named))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = kept


class _Naming:
    """A stream that names addresses in what is written to it."""

    def __init__(self, stream: TextIO, named: Named) -> None:
        self._stream = stream
        self._named = named

    def write(self, text: str) -> int:
        return self._stream.write(self._named(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
