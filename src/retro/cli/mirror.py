"""retro mirror"""

from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Annotated, Literal

import tyro

from retro.cli.console import CONSOLE, RichNarrator, parse, print_table, warn
from retro.errors import ConfigError
from retro.stages.remote.address import RemoteFolder, is_address
from retro.stages.remote.lock import LOCK, holder
from retro.stages.remote.mirror import Mirror
from retro.stages.remote.state import newest_state
from retro.wording import counted


@dataclass(frozen=True)
class Options:
    """See to the mirror of a workspace at an address: what is there, fetch it, send it, or break its lock.

    Commands that are given an address pull and push by themselves.
    """

    action: Annotated[Literal["info", "pull", "push", "unlock"], tyro.conf.Positional]
    """info says what is at the address and who writes to it; pull fetches it; push sends what the folder has,
    such as what a lost connection has left, or a workspace that is to be at an address from now on; unlock
    breaks the lock of a writer that was lost."""
    address: Annotated[str, tyro.conf.Positional]
    """The address of the workspace, such as s3://bucket/work."""
    folder: Path | None = None
    """The mirror, or a workspace of this machine; the folder that commands use if none is named."""
    drop: bool = False
    """With pull: remove what a mirror has and its address has not, and all that differs. A folder that is no
    mirror of the address is left alone."""


def main(arguments: list[str]) -> None:
    options = parse(Options, arguments, "mirror")
    if not is_address(options.address):
        raise ConfigError(f"{options.address} is no address; expected one such as s3://bucket/work")
    if options.drop and options.action != "pull":
        raise ConfigError(f"--drop is for pull; expected it without {options.action}")
    from retro.mirrors import mirror_folder

    folder = options.folder or mirror_folder(options.address)
    if options.action == "unlock":
        unlock(options.address)
        return
    mirror = Mirror(options.address, folder, RichNarrator(), warn)
    if options.action == "info":
        info(mirror)
    elif options.action == "pull":
        with mirror.held():
            state = mirror.pull(drop=options.drop)
        files = counted(len(state.contents), "file")
        CONSOLE.print(f"{folder} is at state {state.number} of {mirror.address}: {files}", soft_wrap=True)
    else:
        if not (mirror.is_known or holds_workspace(folder)):
            raise ConfigError(
                f"{folder} is neither a workspace nor a mirror of {mirror.address}; expected one of them, as "
                "all of its files would be sent; name it with --folder"
            )
        with mirror.held(), mirror.locked():
            is_new = mirror.push()
        done = "pushed" if is_new else "there already"
        CONSOLE.print(f"{mirror.address} is at state {mirror.record.number}: {done}", soft_wrap=True)


def holds_workspace(folder: Path) -> bool:
    """Whether anything of a workspace is there, however little was made of it so far."""
    from retro.workspace import Workspace

    work = Workspace(folder)
    places = (work.text_path, work.tokenizer_path, work.tokens_path, work.datastore_path, folder / "runs")
    return any(place.is_dir() for place in places)


def info(mirror: Mirror) -> None:
    """Show the newest state, the lock and the mirror."""
    state = newest_state(mirror.remote)
    writer = holder(mirror.remote)
    rows = [
        ["state", f"{state.number}" if state.number else "none: no workspace"],
        ["written", f"{state.written} by {state.writer}" if state.number else ""],
        ["files", f"{len(state.contents):,}, {state.num_bytes / 1e6:,.1f} MB"],
        ["writer", f"{writer} since {writer.since}, last heard of {writer.seen}" if writer else "nobody"],
        ["mirror", f"{mirror.folder}, at state {mirror.record.number}"],
    ]
    print_table(mirror.address, ["", "value"], rows, words=True)


def unlock(address: str) -> None:
    """Break the lock of a writer, which then can publish nothing any more."""
    remote = RemoteFolder(address)
    found = holder(remote)
    if found is None:
        CONSOLE.print(f"{remote.address} is not locked", soft_wrap=True)
        return
    remote.remove([LOCK])
    CONSOLE.print(
        f"{remote.address} is no longer locked by {found}; what it has not pushed is in its mirror, and its "
        f"next push is refused; retro mirror info {quote(remote.address)} shows what is there",
        soft_wrap=True,
    )
