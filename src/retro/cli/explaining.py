"""One line for whatever ended a command."""

import errno
import re
import sqlite3
import tempfile
import traceback
from pathlib import Path

from retro.errors import RetroError

SAID_FULL = re.compile(
    r"No space left|File too large|os error (27|28)\b|requested and \d+ written|disk is full"
)
"""What libraries say that write files themselves and keep the system's number for themselves."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""A full disk, a full quota, and a file that would be larger than this process may write."""
KEPT = "what was finished is kept"


def explain(error: BaseException) -> str | None:
    """One line for an error that the user can mend; None for a bug of ours."""
    if isinstance(error, RetroError):
        return _one_line(str(error))
    if isinstance(error, KeyboardInterrupt):
        return f"interrupted; {KEPT}; run the same command to go on"
    if isinstance(error, MemoryError) or "DefaultCPUAllocator: can't allocate memory" in str(error):
        return (
            f"there is not enough memory ({_one_line(str(error)) or 'none is left'}); {KEPT}; "
            "expected less at once: a smaller model, batch or sequence, or fewer workers"
        )
    if SAID_FULL.search(str(error)):
        return _explain_os_error(OSError(errno.ENOSPC, "", getattr(error, "filename", None)))
    if isinstance(error, sqlite3.OperationalError):
        return f"the ledger of the datastore could not be used ({error}); {KEPT}; run the same command again"
    if isinstance(error, OSError):
        return _explain_os_error(error)
    return None


def unexpected(error: BaseException) -> str:
    """One line for a bug of ours, and where its trace is."""
    trace = "".join(traceback.format_exception(error))
    where = "that RETRO_DEBUG=1 shows"
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="retro-", suffix=".txt", delete=False, encoding="utf-8", errors="replace"
        ) as file:
            file.write(trace)
            where = f"in {file.name}"
    except OSError:
        pass  # the disk may be full, which is perhaps why we are here
    what = _one_line(f"{type(error).__name__}: {error}")
    return f"this should not have happened ({what}); {KEPT}; please report it with the trace {where}"


def _explain_os_error(error: OSError) -> str:
    """What the system refused, and at which place."""
    place = f"{error.filename}" if error.filename else "a file"
    reason = error.strerror or str(error) or type(error).__name__
    if error.errno in FULL:
        return (
            f"the disk is full ({error.filename or 'while writing'}); {KEPT}; "
            "free some space and run the same command"
        )
    if error.errno == errno.EROFS:
        return f"{place} is on a file system that is read-only; expected a folder of your own"
    if isinstance(error, PermissionError):
        return f"{place} cannot be read or written; expected permission; choose another folder with --out"
    if error.filename and isinstance(error, NotADirectoryError | FileExistsError | FileNotFoundError):
        # The deepest part of the path that is there tells what is wrong with it.
        there = next(folder for folder in (Path(place), *Path(place).absolute().parents) if folder.exists())
        if not there.is_dir():
            return f"{there} is a file; expected a folder, for {place}"
        return f"{place} cannot be made or found in {there} ({reason}); expected a folder of your own"
    return f"{place} cannot be used ({reason})"


def _one_line(text: str) -> str:
    return " ".join(text.split())
