"""A workspace at an address, from Python: pulled into a folder of this machine, used there, and pushed."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from retro import catalogue
from retro.stages.progress import Narrator
from retro.stages.remote.mirror import Mirror
from retro.workspace import Workspace

FOLDER = "RETRO_MIRRORS"
"""Where the environment may name the folder of all mirrors."""
NAMED = 40
"""Characters of an address that the name of its mirror's folder shows."""


@contextmanager
def mirrored(
    address: str,
    writes: bool = False,
    creates: bool = False,
    folder: str | Path | None = None,
    narrator: Narrator | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Iterator[Workspace]:
    """The workspace at an address that fsspec knows, such as `s3://bucket/work`, in a folder of this machine.

    It is pulled first. With `writes`, nobody else can write at the address until the block ends; then what
    the block has made is pushed, after an error as well. With `creates`, nothing needs to be there yet.
    `folder` is the mirror, by default one below RETRO_MIRRORS or the cache, which commands use, too. `say` is
    told what the user should know, such as that a mirror holds what was never pushed.
    """
    mirror = Mirror(address, Path(folder) if folder else mirror_folder(address), narrator, say)
    with mirror.session(writes, creates) as place:
        yield Workspace(place)


def mirror_folder(address: str) -> Path:
    """Where the mirror of an address is, or will be: below RETRO_MIRRORS, or the cache."""
    chosen = os.environ.get(FOLDER)
    place = Path(chosen) if chosen else catalogue.cache_dir() / "mirrors"
    address = address.rstrip("/")
    # The address itself is no name of a folder; its end is for people, and the digits keep mirrors apart.
    end = "".join(letter if letter.isalnum() else "-" for letter in address.partition("://")[2])
    return place / f"{end[-NAMED:].strip('-')}-{sha256(address.encode()).hexdigest()[:12]}"
