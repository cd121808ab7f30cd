"""What a worker on another machine must have in common with the command that sends it work.

A worker checks it once, before its first shard: the same code, the folder of the command as its own, and the
files and folders that the work needs. Machines that join later are checked as well.
"""

import hashlib
import os
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TypeVar

import retro
from retro.errors import RetroError

Item = TypeVar("Item")
Result = TypeVar("Result")
Facts = tuple[int, int] | str | None
"""The size and the time of a file, `folder`, or nothing where there is neither."""


class WorkerError(RetroError):
    """A worker that cannot do this work, because it runs other code or does not see the files."""


@dataclass(frozen=True)
class Terms:
    """What every worker has to have in common with the command."""

    package: str
    folder: str
    """The folder in which the command was given, where relative paths begin."""
    paths: tuple[tuple[str, Facts], ...]
    """Files and folders that must be there, files with their size and time."""

    def check(self) -> None:
        """Take the command's folder for this process, and refuse to work where something is missing."""
        # A command that names absolute paths alone can do without its folder.
        with suppress(OSError):
            os.chdir(self.folder)
        host = socket.gethostname()
        if self.package != package_version():
            raise WorkerError(
                f"a worker on {host} runs retro {package_version()} from {Path(retro.__file__).parent}; "
                f"expected {self.package}, as here; install the same package on every machine"
            )
        for name, facts in self.paths:
            if facts != _facts_of(Path(name)):
                raise WorkerError(
                    f"a worker on {host} does not see {_shown(name)} as it is here; expected the same files "
                    "on every machine; put the workspace and its sources on storage that all of them share"
                )


@contextmanager
def terms_for(works: Iterable[Path], sources: Iterable[Path]) -> Iterator[Terms]:
    """The terms of work in some folders on some sources; while the block lasts each folder has a mark in it.

    Two machines may each have a folder of the same name: only the mark tells that it is one folder. Sources
    are left alone, as they may belong to somebody else.
    """
    with ExitStack() as marks:
        paths = [path.absolute() for path in sources if path.exists()]
        for work in (work.absolute() for work in works if work.is_dir()):
            paths.append(Path(marks.enter_context(NamedTemporaryFile(dir=work, prefix=MARK)).name))
        facts = tuple((str(path), _facts_of(path)) for path in paths)
        yield Terms(package_version(), os.getcwd(), facts)


MARK = ".retro-cluster-"
"""What the names of marks begin with. They are hidden, so no reader takes them for text."""


@lru_cache(maxsize=1)
def package_version() -> str:
    """The version of this package, and a digest of its code: the same version may be two checkouts."""
    folder = Path(retro.__file__).parent
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        digest.update(f"{file.relative_to(folder)}\n".encode())
        digest.update(file.read_bytes())
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return f"{retro.__version__} (code {digest.hexdigest()[:8]}, Python {python})"


def call(terms: Terms, function: Callable[[Item], Result], item: Item) -> Result:
    """Do one item of work, if the terms are met."""
    _check_once(terms)
    return function(item)


# Once for each worker process, and again for the next piece of work.
@lru_cache(maxsize=1)
def _check_once(terms: Terms) -> None:
    terms.check()


def _facts_of(path: Path) -> Facts:
    if not path.exists():
        return None
    status = path.stat()
    # The time in seconds, as not every file system keeps more of it.
    return "folder" if path.is_dir() else (status.st_size, int(status.st_mtime))


def _shown(name: str) -> str:
    """A path as the user knows it: a mark stands for its folder."""
    path = Path(name)
    return str(path.parent if path.name.startswith(MARK) else path)
