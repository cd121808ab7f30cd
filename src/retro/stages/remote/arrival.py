"""A state that is brought into a folder: every file is verified beside it first, and then given its place."""

import os
import shutil
from pathlib import Path

from retro.stages.files import file_checksum
from retro.stages.progress import Narrator
from retro.stages.remote.address import MirrorError, RemoteFolder
from retro.stages.remote.state import Content, State
from retro.stages.remote.transfer import transfer
from retro.stages.remote.tree import PRIVATE, Entry, Record, put, readable, signature_of, take_out

INCOMING = "incoming"


class Arrival:
    """What a mirror lacks of a state, from the address or from a file of its own that holds the same."""

    def __init__(self, remote: RemoteFolder, folder: Path, record: Record, narrator: Narrator) -> None:
        self._remote = remote
        self._folder = folder
        self._record = record
        self._narrator = narrator

    def fetch(self, state: State) -> None:
        """Bring what is missing into a folder of its own, each file verified; what has arrived stays."""
        wanted = self._wanted(state)
        incoming = self._folder / PRIVATE / INCOMING
        incoming.mkdir(parents=True, exist_ok=True)
        contents = {content.checksum: content for content in wanted.values()}
        here = {entry.content.checksum: name for name, entry in self._record.entries.items()}

        def bring(content: Content) -> int:
            target = incoming / content.checksum
            if not target.exists():
                self._bring(content, target, here.get(content.checksum))
            return content.size

        transfer(self._narrator, f"Fetching {self._remote.address}", bring, contents.values())

    def _wanted(self, state: State) -> dict[str, Content]:
        entries = self._record.entries
        return {
            name: content
            for name, content in state.contents.items()
            if name not in entries or entries[name].content != content
        }

    def _bring(self, content: Content, target: Path, here: str | None) -> None:
        """One object, or the copy of a file that holds the same."""
        temporary = target.with_name(f"{target.name}.tmp")
        try:
            if here is not None:
                with readable(self._folder, here) as path:
                    shutil.copyfile(path, temporary)
                if file_checksum(temporary) == content.checksum:
                    temporary.replace(target)
                    return
            self._remote.download(content.object_name, temporary)
            found = file_checksum(temporary)
            if found != content.checksum:
                raise MirrorError(
                    f"{self._remote.address}/{content.object_name} arrived with sha256 {found[:12]}…; "
                    f"expected {content.checksum[:12]}…; it was thrown away; if it is the same once more, "
                    "restore it"
                )
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)

    def arrange(self, state: State, drop: bool) -> None:
        """Give all that has arrived its place, and take out what the state does not have."""
        record = self._record
        known = {*record.files, *record.arriving}
        record.arriving = state.contents
        record.write(self._folder)
        incoming = self._folder / PRIVATE / INCOMING
        wanted = self._wanted(state)
        uses = [content.checksum for content in wanted.values()]
        for name in [*record.entries]:
            if name not in state.contents and (drop or name in known):
                take_out(self._folder, name)
                del record.entries[name]
        for name, content in wanted.items():
            uses.remove(content.checksum)
            source = incoming / content.checksum
            if content.checksum in uses:
                another = source.with_name(f"{source.name}.tmp")
                source = Path(shutil.copyfile(source, another))
            put(source, self._folder / name)
            record.entries[name] = Entry(content, signature_of(self._folder / name))
        record.number, record.files, record.arriving = state.number, state.contents, {}
        record.write(self._folder)
        shutil.rmtree(incoming, ignore_errors=True)
