"""Files that are whole or not there: atomic writing, flushing, locking, checksums and fingerprints."""

import hashlib
import json
import os
import shutil
import uuid
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any

from retro.errors import ArtifactError

DAMAGED = (
    *(OSError, ValueError, EOFError, zipfile.BadZipFile),
    *(LookupError, TypeError, AttributeError, ArithmeticError),  # what was read is of another kind
    *(MemoryError, RecursionError),  # a size that was never written, JSON that is nested without end
    *(SyntaxError, TokenError),  # the header of a .npy file is Python
)
"""What reading a damaged file may raise, whether it holds JSON, arrays or an archive of them."""


@contextmanager
def atomic_path(path: Path, alone: bool = True) -> Iterator[Path]:
    """A temporary name to write a file under; at the end it is flushed and renamed, on an error removed.

    Unless a process writes the file `alone`, the temporary name is its own: a worker that was given up for
    lost may still be writing while another one does its work again.
    """
    own = "" if alone else f".{uuid.uuid4().hex[:8]}"
    temporary = path.with_name(f"{path.name}{own}.tmp")
    try:
        yield temporary
        # Flushed before it is renamed: after a crash the name must not stand for an empty file.
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)  # after the rename there is nothing to remove


@contextmanager
def atomic_write(path: Path, alone: bool = True) -> Iterator[IO[bytes]]:
    """Write a file that is either whole or not there."""
    with atomic_path(path, alone) as temporary, temporary.open("wb") as file:
        yield file


def flush_folder(path: Path, deep: bool = True) -> None:
    """Have the names in a folder on disk, and the files as well if `deep`."""
    files = [file for file in path.rglob("*") if file.is_file()] if deep else []
    # The folder comes last: the names it holds are then those of files that are on disk already.
    for place in (*files, path):
        descriptor = os.open(place, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes out of a folder. The kernel holds the lock, so a kill leaves nothing behind.

    Where folders cannot be locked, as on Windows and some network file systems, nobody is kept out.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ArtifactError(
                f"{folder} is being written by another process; expected this one alone; "
                "wait until it ends, or name another folder"
            ) from None
        except OSError:
            pass  # a file system without such locks
        yield
    finally:
        os.close(descriptor)


def link_or_copy(source: str | Path, target: str | Path) -> str:
    """A second name for a file that is never written again, or a copy where the file system has no links.

    What a kill has left at the target is taken away, and not written into: it may be a finished file itself.
    """
    if os.path.lexists(target):
        if os.path.samefile(source, target):
            return str(target)
        os.unlink(target)
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    return str(target)


def write_json(path: Path, value: Any) -> None:
    with atomic_write(path) as file:
        # Half a surrogate pair, as in a name that is not UTF-8, has no bytes; JSON spells it as an escape.
        text = json.dumps(value, indent=2, ensure_ascii=False)
        file.write(text.encode(errors="backslashreplace"))


def read_object(path: Path, remedy: str) -> dict[str, Any]:
    """The JSON object of a file; `remedy` tells how to mend a damaged one."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except DAMAGED:
        value = None
    if not isinstance(value, dict):
        raise ArtifactError(f"{path} is damaged; expected a JSON object; {remedy}")
    return value


def make_fingerprint(*parts: Any) -> str:
    """Sixteen hexadecimal digits that change when any part changes."""
    # Keys are sorted, so that the order in which settings were given does not count.
    return hashlib.sha256(_as_bytes(parts)).hexdigest()[:16]


def _as_bytes(value: Any) -> bytes:
    # A name of a file need not be UTF-8; Python spells what is not as lone surrogates.
    return json.dumps(value, sort_keys=True, ensure_ascii=False).encode(errors="surrogatepass")


def file_checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
