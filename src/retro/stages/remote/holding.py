"""Who may be in a mirror's folder on this machine: one who writes, or any number who read."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from retro.stages.remote.address import MirrorError
from retro.stages.remote.tree import PRIVATE

try:
    import fcntl
except ImportError:  # Windows, where nobody is kept out
    fcntl = None  # type: ignore[assignment]

LOCK = "lock"


class Hold:
    """A lock on the folder, which the kernel holds, so that a kill leaves nothing behind."""

    def __init__(self, descriptor: int, is_alone: bool) -> None:
        self._descriptor = descriptor
        self.is_alone = is_alone
        """Whether nobody else is in the folder."""

    def share(self) -> None:
        """Let others who read into the folder."""
        if self.is_alone:
            _locked(self._descriptor, is_shared=True)


@contextmanager
def hold(folder: Path, address: str, writes: bool) -> Iterator[Hold]:
    """Keep others of this machine out of the folder, or, to read, those who write."""
    place = folder / PRIVATE
    place.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(place / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        is_alone = _locked(descriptor)
        if not is_alone and (writes or not _locked(descriptor, is_shared=True)):
            raise MirrorError(
                f"{folder}, the mirror of {address}, is in use by another command; expected it alone; wait "
                "until it ends, or name another folder for mirrors: RETRO_MIRRORS=FOLDER"
            )
        yield Hold(descriptor, is_alone)
    finally:
        os.close(descriptor)


def _locked(descriptor: int, is_shared: bool = False) -> bool:
    """Whether a lock could be had, for this process alone or beside others that share it."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # a file system without such locks
    return True
