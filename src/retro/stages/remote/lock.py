"""One writer at a time: a file at the address that says who writes, since when, and when last heard of."""

import getpass
import json
import os
import socket
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from shlex import quote

from retro.errors import ArtifactError
from retro.stages.remote.address import GoneError, RemoteFolder, TakenError

LOCK = "lock.json"


class LockedError(ArtifactError):
    """Somebody else writes to the address."""


@dataclass(frozen=True)
class Holder:
    """Who writes to an address."""

    token: str
    """Its own for every command."""
    mirror: str
    """The mirror that it works in."""
    host: str
    user: str
    process: int
    since: str
    seen: str
    """When it was last heard of."""

    def __str__(self) -> str:
        return f"{self.user} on {self.host} (process {self.process})"


class Lock:
    """The lock of one command."""

    def __init__(self, remote: RemoteFolder, token: str, mirror: str) -> None:
        self._remote = remote
        time = now()
        self._me = Holder(token, mirror, socket.gethostname(), _user(), os.getpid(), time, time)

    def acquire(self) -> None:
        """Take the lock, or say who has it.

        A lock of this very mirror was left by a kill: whoever calls keeps other processes out of the mirror.
        """
        for _ in range(3):
            try:
                self._remote.create(LOCK, _encoded(self._me))
                return
            except TakenError:
                found = holder(self._remote)
            if found is not None and found.mirror != self._me.mirror:
                raise LockedError(
                    f"{self._remote.address} is being written by {found} since {found.since}, last heard of "
                    f"{found.seen}; expected this command alone; wait until it ends; if it was lost, run: "
                    f"retro mirror unlock {quote(self._remote.address)}"
                )
            if found is not None:
                self._remote.remove([LOCK])
        raise LockedError(
            f"{self._remote.address}/{LOCK} cannot be taken; expected that of one writer; run: "
            f"retro mirror unlock {quote(self._remote.address)}"
        )

    def expect_mine(self) -> None:
        """Refuse to go on if the lock was broken, be it taken again or not."""
        found = holder(self._remote)
        if found is None or found.token != self._me.token:
            by = f" and {found} has it" if found else ""
            raise LockedError(
                f"the lock of {self._remote.address} was broken{by}; expected to be its only writer; "
                "nothing was pushed since"
            )

    def renew(self) -> None:
        """Say that the writer is still there."""
        self.expect_mine()
        self._remote.write(LOCK, _encoded(replace(self._me, seen=now())))

    def release(self) -> None:
        found = holder(self._remote)
        if found is not None and found.token == self._me.token:
            self._remote.remove([LOCK])


def holder(remote: RemoteFolder) -> Holder | None:
    """Who writes to an address; None if nobody does."""
    try:
        content = remote.read(LOCK)
    except GoneError:
        return None
    try:
        return Holder(**json.loads(content))
    except (ValueError, TypeError):
        unknown = "somebody"
        return Holder("", "", unknown, unknown, 0, unknown, unknown)


def now() -> str:
    return datetime.now(UTC).isoformat(sep=" ", timespec="seconds")


def _encoded(found: Holder) -> bytes:
    return json.dumps(asdict(found)).encode()


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "somebody"
