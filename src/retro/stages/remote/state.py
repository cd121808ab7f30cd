"""What stands at an address: objects named by their checksums, and states that say which file is which.

Nothing at an address is ever overwritten. An object is named by what it holds. A state lists all files of the
workspace, and is one object with the next number, which only one writer can make: whoever reads the newest
state sees one moment of the workspace, and of two writers that began at the same state the second is refused.
"""

import json
import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from retro.errors import ArtifactError
from retro.stages.files import make_fingerprint
from retro.stages.remote.address import GoneError, RemoteFolder

FORMAT = 1
STATES, OBJECTS = "states", "objects"
IS_STATE = re.compile(rf"{STATES}/(\d{{8}})\.json")
IS_OBJECT = re.compile(rf"{OBJECTS}/[0-9a-f]{{2}}/([0-9a-f]{{64}})")
CHECKSUM = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class Content:
    """What a file holds."""

    size: int
    checksum: str

    @property
    def object_name(self) -> str:
        return f"{OBJECTS}/{self.checksum[:2]}/{self.checksum}"


@dataclass(frozen=True)
class State:
    """One moment of a workspace; number 0 is an address where there is none yet."""

    number: int = 0
    files: dict[str, Content] | None = None
    writer: str = ""
    written: str = ""

    @property
    def contents(self) -> dict[str, Content]:
        return self.files or {}

    @property
    def num_bytes(self) -> int:
        return sum(content.size for content in self.contents.values())

    def encode(self) -> bytes:
        files = {name: [content.size, content.checksum] for name, content in self.contents.items()}
        about = {"format": FORMAT, "number": self.number, "writer": self.writer, "written": self.written}
        whole = {**about, "files": files}
        # Escapes, and not UTF-8: a name of a file need not be any.
        return json.dumps({**whole, "checksum": make_fingerprint(whole)}).encode()


def state_name(number: int) -> str:
    return f"{STATES}/{number:08d}.json"


def decode(content: bytes) -> State | None:
    """A state as it was written; None if it is not whole."""
    try:
        whole = json.loads(content)
        checksum = whole.pop("checksum")
        if checksum != make_fingerprint(whole) or whole["format"] != FORMAT:
            return None
        files = {name: _content(name, value) for name, value in whole["files"].items()}
        return State(int(whole["number"]), files, str(whole["writer"]), str(whole["written"]))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None


def _content(name: str, value: Any) -> Content:
    """A file's content; a name that leads out of the folder is no name of ours."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name or not path.parts:
        raise ValueError(name)
    size, checksum = value
    if not isinstance(size, int) or not CHECKSUM.fullmatch(checksum):
        raise ValueError(name)
    return Content(size, checksum)


def state_numbers(remote: RemoteFolder) -> list[int]:
    """The numbers of the states that are there, the newest first."""
    found = (IS_STATE.fullmatch(name) for name in remote.names(STATES))
    return sorted((int(match[1]) for match in found if match), reverse=True)


def newest_state(remote: RemoteFolder) -> State:
    """The newest state that is whole.

    Where files can be seen before they are whole, as on a file system, a kill may have left a part of one,
    which nobody has relied on.
    """
    for _ in range(10):
        numbers = state_numbers(remote)
        gone = False
        for number in numbers:
            try:
                state = decode(remote.read(state_name(number)))
            except GoneError:  # a newer one has taken its place
                gone = True
                break
            if state is not None and state.number == number:
                return state
        if not gone:
            break
    if numbers:
        raise ArtifactError(
            f"{remote.address} has no state that is whole ({len(numbers)} are damaged, or of another version "
            "of retro); expected one; restore it, or push a mirror to another address: "
            "retro mirror push ADDRESS --folder FOLDER"
        )
    return State()


def object_names(remote: RemoteFolder) -> dict[str, int]:
    """The objects that are there, and how large they are."""
    return {name: size for name, size in remote.names(OBJECTS).items() if IS_OBJECT.fullmatch(name)}
