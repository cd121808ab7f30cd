"""A workspace at an address, mirrored: it is pulled into a folder, worked on there, and pushed.

Stores stay files of this machine, which are mapped into memory; no stage knows that there is an address. A
pull brings the folder to the newest state of the address. A push publishes the folder as the next state, in
one step, after everything that the state names is there. So a reader, or a kill at any moment, meets one
state or the next, and never a part of one.
"""

import socket
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote

from retro.errors import DataError, RetroError
from retro.stages.files import file_checksum
from retro.stages.progress import Narrator, SilentNarrator
from retro.stages.remote.address import GoneError, MirrorError, RemoteFolder, TakenError
from retro.stages.remote.arrival import Arrival
from retro.stages.remote.holding import Hold, hold
from retro.stages.remote.lock import Lock, now
from retro.stages.remote.state import (
    Content,
    State,
    newest_state,
    object_names,
    state_name,
    state_numbers,
)
from retro.stages.remote.transfer import transfer
from retro.stages.remote.tree import Entry, Record, files_of, look, readable, signature_of, signatures
from retro.wording import counted

ATTEMPTS = 5
EVERY = 600.0
"""Seconds between two pushes of a stage that goes on."""
FEW = 3
"""Names that a message lists."""


class UnsettledError(DataError):
    """Files that changed while they were pushed."""


class Mirror:
    """One address and its folder on this machine."""

    def __init__(
        self,
        address: str,
        folder: Path,
        narrator: Narrator | None = None,
        say: Callable[[str], None] = lambda line: None,
        every: float = EVERY,
    ) -> None:
        """`say` is told what a user should know, such as that a push in between has failed."""
        self.remote = RemoteFolder(address)
        self.address = self.remote.address
        self.folder = folder
        self._narrator = narrator or SilentNarrator()
        self._say = say
        self._every = every
        self._pushed_at = time.monotonic()
        self._lock: Lock | None = None
        self._is_working = False
        self._record: Record | None = None
        self._is_new = False
        """Whether the folder had no record of this address when it was opened."""

    @contextmanager
    def session(self, writes: bool = False, creates: bool = False) -> Iterator[Path]:
        """The mirror's folder, pulled; what was written there is pushed at the end, after an error as well.

        Who writes is alone at the address until the end; who reads shares the mirror with others who read.
        With `creates`, nothing needs to be at the address yet.
        """
        with self.held(writes) as held:
            if not writes:
                self.pull(is_alone=held.is_alone)
                held.share()
                yield self.folder
                return
            with self.locked():
                self.pull(creates)
                self._is_working = True
                try:
                    yield self.folder
                except BaseException as error:
                    self._is_working = False
                    try:
                        self.push()
                    except RetroError as second:
                        error.add_note(str(second))
                    raise
                self._is_working = False
                self.push()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Be the only one who writes to the address."""
        self._lock = Lock(self.remote, uuid.uuid4().hex, self.record.mirror)
        # The lock that a kill leaves names this mirror, which must know its name.
        self.record.write(self.folder)
        self._lock.acquire()
        try:
            yield
        finally:
            self._lock.release()
            self._lock = None

    @property
    def record(self) -> Record:
        """What is known of the address; of a folder that mirrors another one, nothing."""
        if self._record is None:
            found = Record.read(self.folder)
            self._is_new = found is None or found.address != self.address
            if found is None or self._is_new:
                found = Record(self.address, uuid.uuid4().hex)
            self._record = found
        return self._record

    @property
    def is_known(self) -> bool:
        """Whether the folder was a mirror of this address before, however little has become of it."""
        return not (self.record.number == 0 and self._is_new)

    # Pulling

    def pull(self, creates: bool = False, is_alone: bool = True, drop: bool = False) -> State:
        """Bring the folder to the newest state; with `drop`, what it has of its own goes.

        What a command left that was killed before it had pushed stays, if the address is still as it was; the
        next push sends it.
        """
        for attempt in range(ATTEMPTS):
            state = self._expected_state(creates)
            is_here = state.number == self.record.number and not self.record.arriving
            if is_here and not drop:
                self._tell_unpushed()
                return state
            if not is_alone:
                raise MirrorError(
                    f"{self.folder} is in use and at state {self.record.number} of {self.address}, which is "
                    f"at {state.number}; expected nobody in it, to pull; wait until the other command ends, "
                    "or name another folder for mirrors: RETRO_MIRRORS=FOLDER"
                )
            self._expect_nothing_own(state, drop)
            arrival = Arrival(self.remote, self.folder, self.record, self._narrator)
            try:
                arrival.fetch(state)
            except GoneError:  # a newer state has come meanwhile, and what it does not name has gone
                if attempt + 1 == ATTEMPTS:
                    raise
                continue
            arrival.arrange(state, drop)
            return state
        raise AssertionError("the last attempt returns or raises")

    def _expected_state(self, creates: bool) -> State:
        state = newest_state(self.remote)
        if not state.number and not creates:
            raise MirrorError(
                f"{self.address} holds no workspace; expected one that retro has written there; "
                f"run: retro ingest SOURCE --out {quote(self.address)}"
            )
        return state

    def _tell_unpushed(self) -> None:
        entries = look(self.folder, self.record.entries)
        self.record.entries = entries
        own = _differing({name: entry.content for name, entry in entries.items()}, self.record.files)
        if own and self._lock is None:
            self._say(
                f"{self.folder} holds {_some(own)} that {self.address} lacks or has otherwise; the next "
                f"command that writes pushes that, or run: retro mirror push {quote(self.address)}"
            )

    def _expect_nothing_own(self, state: State, drop: bool) -> None:
        """Refuse to replace what is in the folder alone, and was never pushed."""
        record = self.record
        # With `drop` as well, which is for what a mirror has of its own: this may be anybody's folder.
        if self._is_new and any(files_of(self.folder)):
            Record.remove(self.folder)  # made for the lock; with it the folder would pass for a mirror
            raise MirrorError(
                f"{self.folder} holds files and is no mirror of {self.address}; expected an empty folder; "
                "name another one with --folder"
            )
        record.entries = look(self.folder, record.entries)
        # A pull that was killed has left files of both states.
        known = (record.files, record.arriving, state.contents)
        own = [
            name
            for name, entry in record.entries.items()
            if all(files.get(name) != entry.content for files in known)
        ]
        if own and not drop:
            raise MirrorError(
                f"{self.address} is at state {state.number}, written by {state.writer} at {state.written}, "
                f"and its mirror {self.folder} began at state {record.number} and holds {_some(own)} that "
                "were never pushed; expected one of the two; copy the mirror to keep what it holds, then "
                f"run: retro mirror pull {quote(self.address)} --drop"
            )

    # Pushing

    def push(self, narrator: Narrator | None = None) -> bool:
        """Publish the folder as the next state; whether there was anything to publish."""
        narrator = narrator or self._narrator
        self._expect_lock().expect_mine()
        record = self.record
        record.entries = self._settled()
        files = {name: entry.content for name, entry in record.entries.items()}
        numbers = state_numbers(self.remote)
        if files != record.files:
            there = object_names(self.remote)
            self._send(files, there, narrator)
            self._expect_lock().expect_mine()
            self._publish(files)
            self._sweep()
        elif len(numbers) > 1:  # a kill has come before the end
            self._sweep()
        record.write(self.folder)
        self._pushed_at = time.monotonic()
        return files != record.files

    def push_if_due(self) -> None:
        """Push in between, if the last time is long enough ago. For a command that works for hours to call.

        While it is called nothing else of the command should run; if files change all the same, nothing is
        pushed, until the next time. A failure is told, and is no reason to end the work.
        """
        if not self._is_working or time.monotonic() - self._pushed_at < self._every:
            return
        self._is_working = False
        try:
            self._expect_lock().renew()
            # Silent, as the command's own bar is on the terminal.
            self.push(SilentNarrator())
        except UnsettledError:
            pass
        except RetroError as error:
            self._say(f"nothing was pushed in between: {error}")
        finally:
            self._pushed_at = time.monotonic()
            self._is_working = True

    def _settled(self) -> dict[str, Entry]:
        """Every file and its checksum at one moment: nothing has changed from the first look to the last."""
        for _ in range(ATTEMPTS):
            try:
                found = look(self.folder, self.record.entries)
            except FileNotFoundError:
                continue
            if signatures(self.folder) == {name: entry.signature for name, entry in found.items()}:
                return found
            self.record.entries = found  # what has not changed need not be read again
        raise UnsettledError(
            f"the files of {self.folder} changed while they were read; expected nobody else to write there; "
            f"run: retro mirror push {quote(self.address)}"
        )

    def _send(self, files: dict[str, Content], there: dict[str, int], narrator: Narrator) -> None:
        """Upload the objects that are missing, or of which a kill has left a part."""
        missing = {
            content.checksum: name
            for name, content in files.items()
            if there.get(content.object_name) != content.size
        }

        def send(name: str) -> int:
            entry = self.record.entries[name]
            try:
                with readable(self.folder, name) as path:
                    is_copy = path != self.folder / name
                    is_same = not is_copy or file_checksum(path) == entry.content.checksum
                    if is_same:
                        self.remote.upload(path, entry.content.object_name)
                # A copy is nobody else's; SQLite itself may touch the file whenever somebody closes it.
                if not is_copy and signature_of(path) != entry.signature:
                    self.remote.remove([entry.content.object_name])
                    is_same = False
            except FileNotFoundError:
                is_same = False
            if not is_same:
                raise UnsettledError(
                    f"{self.folder / name} changed while it was pushed; expected nobody else to write there; "
                    f"run: retro mirror push {quote(self.address)}"
                )
            return entry.content.size

        transfer(narrator, f"Sending to {self.address}", send, missing.values())

    def _publish(self, files: dict[str, Content]) -> None:
        """Make the next state: the one step that readers see."""
        record = self.record
        # Above those that a kill has left, too; asked before the newest is, so that a state that comes in
        # between is either seen or takes this number.
        number = max([record.number, *state_numbers(self.remote)]) + 1
        newest = newest_state(self.remote)
        if newest.number != record.number:
            raise self._lost(newest)
        state = State(number, files, socket.gethostname(), now())
        try:
            self.remote.create(state_name(number), state.encode())
        except TakenError:
            raise self._lost(newest_state(self.remote)) from None
        record.number, record.files = number, files
        record.write(self.folder)

    def _lost(self, newest: State) -> MirrorError:
        return MirrorError(
            f"{self.address} is at state {newest.number}, written by {newest.writer} at {newest.written}; "
            f"expected {self.record.number}, with which this command began; nothing was pushed, and what it "
            f"made is kept in {self.folder}; copy that elsewhere, then run: "
            f"retro mirror pull {quote(self.address)} --drop"
        )

    def _sweep(self) -> None:
        """Remove the objects that no file has any more, and then the states before: the last of all steps."""
        named = {content.object_name for content in self.record.files.values()}
        self._expect_lock().expect_mine()
        self.remote.remove(name for name in object_names(self.remote) if name not in named)
        numbers = state_numbers(self.remote)
        self.remote.remove(state_name(number) for number in numbers if number < self.record.number)

    def _expect_lock(self) -> Lock:
        if self._lock is None:
            raise MirrorError(
                f"{self.address} was opened to be read; expected it to be opened with writes=True, to push"
            )
        return self._lock

    @contextmanager
    def held(self, writes: bool = True) -> Iterator[Hold]:
        """Be in the folder alone, or, to read, beside others who read."""
        with hold(self.folder, self.address, writes) as held:
            self._record = None  # another command may have written it
            yield held


def _differing(found: dict[str, Content], expected: dict[str, Content]) -> list[str]:
    return sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))


def _some(names: list[str]) -> str:
    """The first names, and how many there are besides."""
    listed = ", ".join(names[:FEW])
    return f"{listed} and {counted(len(names) - FEW, 'file')} more" if len(names) > FEW else listed
