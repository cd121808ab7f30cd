"""A stage's folder: written beside its name, finished by one rename, described by `manifest.json`.

A stage is a function from finished folders to one finished folder. While it runs, its files live in `NAME.partial`; a run that
stops leaves that folder behind, and the next run with the same config and inputs goes on in it. A folder of other settings is
refused, never overwritten.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from retro.errors import ArtifactError
from retro.stages.files import atomic_write, file_checksum, locked, make_fingerprint, write_json

MANIFEST = "manifest.json"
PLAN = "plan.json"
SCRATCH = "scratch"
CHECKSUM = "manifest"
"""Under this name a manifest keeps the fingerprint of the rest of it."""
FORMAT = 1


@dataclass(frozen=True)
class Artifact:
    """A finished folder and what its manifest says."""

    path: Path
    manifest: dict[str, Any]

    @property
    def fingerprint(self) -> str:
        fingerprint: str = self.manifest["fingerprint"]
        return fingerprint

    @property
    def counts(self) -> dict[str, Any]:
        counts: dict[str, Any] = self.manifest["counts"]
        return counts

    @property
    def config(self) -> dict[str, Any]:
        config: dict[str, Any] = self.manifest["config"]
        return config

    @property
    def inputs(self) -> dict[str, str]:
        inputs: dict[str, str] = self.manifest["inputs"]
        return inputs

    def file(self, name: str) -> Path:
        return self.path / name

    def check(self) -> None:
        """Read every file again and compare it with its checksum, the manifest with its own."""
        _read_sound_manifest(self.path)
        for name, expected in self.manifest["files"].items():
            if not self.file(name).exists():
                raise ArtifactError(
                    f"{self.file(name)} is missing; expected it from its manifest; remove {self.path} and run the stage again"
                )
            if file_checksum(self.file(name)) != expected:
                raise ArtifactError(
                    f"{self.file(name)} does not match its checksum; remove {self.path}, or run: retro doctor --work WORK --mend; then run the stage again"
                )


class Stage:
    """An unfinished folder. `write` puts one file into it, atomically; what is there already need not be made again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.counts: dict[str, Any] = {}

    def file(self, name: str) -> Path:
        return self.path / name

    def has(self, name: str) -> bool:
        return self.file(name).exists()

    def scratch(self, name: str) -> Path:
        """A folder for what is only needed on the way, such as `Parts`; an interruption leaves it, the end removes it."""
        return self.path / SCRATCH / name

    @contextmanager
    def write(self, name: str) -> Iterator[IO[bytes]]:
        with atomic_write(self.file(name)) as file:
            yield file


def run_stage(
    path: Path,
    kind: str,
    config: dict[str, Any],
    inputs: dict[str, str],
    work: Callable[[Stage], None],
    command: str,
) -> Artifact:
    """Finish the folder `path`: reuse it if it is finished, go on if it was begun, begin it otherwise.

    `inputs` maps names to fingerprints. `command` is what a user runs to make this folder, for messages.
    """
    plan = {
        "kind": kind,
        "fingerprint": make_fingerprint(FORMAT, kind, config, inputs),
        "config": config,
        "inputs": inputs,
    }
    partial = path.with_name(path.name + ".partial")
    if not path.exists():
        partial.mkdir(parents=True, exist_ok=True)
        with locked(partial):
            if not path.exists():
                return _finish(path, partial, plan, work, command)
        with suppress(
            OSError
        ):  # another process finished the stage between the two looks; what is left here is empty
            partial.rmdir()
    artifact = open_artifact(path, kind, command)
    _expect_same(path, artifact.manifest, plan, command)
    return artifact


def _finish(
    path: Path, partial: Path, plan: dict[str, Any], work: Callable[[Stage], None], command: str
) -> Artifact:
    """Begin or go on in the folder `partial`, and rename it at the end."""
    plan_path = partial / PLAN
    if plan_path.exists() and any(file.is_file() and file != plan_path for file in partial.rglob("*")):
        _expect_same(partial, json.loads(plan_path.read_text()), plan, command)
    write_json(plan_path, plan)
    stage = Stage(partial)
    work(stage)
    shutil.rmtree(partial / SCRATCH, ignore_errors=True)
    # A kill may have left any of these behind.
    for leftover in (plan_path, partial / MANIFEST, *partial.rglob("*.tmp")):
        leftover.unlink(missing_ok=True)
    files = {
        str(file.relative_to(partial)): file_checksum(file)
        for file in sorted(partial.rglob("*"))
        if file.is_file()
    }
    manifest = {"format": FORMAT, **plan, "counts": stage.counts, "files": files}
    manifest[CHECKSUM] = make_fingerprint(manifest)
    write_json(partial / MANIFEST, manifest)
    partial.replace(path)
    return Artifact(path, manifest)


def reopen_broken(path: Path) -> list[str]:
    """If files of a finished stage are missing or do not match their checksums, take them out and make the stage unfinished again.

    The next run of the stage then makes only what is missing. A shard's other files, those of the same stem, go with it.
    """
    manifest = _read_sound_manifest(path)
    broken = [
        name
        for name, checksum in manifest["files"].items()
        if not (path / name).exists() or file_checksum(path / name) != checksum
    ]
    if broken:
        for name in broken:
            stem = (path / name).name.partition(".")[0]
            for file in (path / name).parent.glob(f"{stem}.*"):
                file.unlink()
        write_json(path / PLAN, {key: manifest[key] for key in ("kind", "fingerprint", "config", "inputs")})
        (path / MANIFEST).unlink()
        path.replace(path.with_name(path.name + ".partial"))
    return [str(path / name) for name in broken]


def _read_sound_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a finished folder, if no bit of it has changed; without it nothing tells which of the files are whole."""
    try:
        manifest: dict[str, Any] = json.loads((path / MANIFEST).read_text())
        sound = manifest.pop(CHECKSUM) == make_fingerprint(manifest)
    except (OSError, ValueError, LookupError, AttributeError):
        sound = False
    if not sound:
        raise ArtifactError(
            f"{path / MANIFEST} is missing or does not match its checksum; remove {path} and run the stage again"
        )
    return manifest


def _expect_same(path: Path, found: dict[str, Any], expected: dict[str, Any], command: str) -> None:
    """Refuse a folder, finished or begun, of other settings or inputs: nobody's hours of work are overwritten."""
    if found["fingerprint"] != expected["fingerprint"]:
        old, new = (_flatten({**plan["config"], **plan["inputs"]}) for plan in (found, expected))
        changed = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
        raise ArtifactError(
            f"{path} was made with other settings or inputs ({', '.join(changed) or 'format'} differ); "
            f"name another folder, or remove it and run: {command}"
        )


def _flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by their dotted names."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def open_artifact(path: Path, kind: str, command: str) -> Artifact:
    """Open a finished folder of the given kind; `command` is what makes one."""
    manifest_path = path / MANIFEST
    if not path.exists():
        raise ArtifactError(f"{path} does not exist; expected a finished {kind} folder; run: {command}")
    if not manifest_path.exists():
        raise ArtifactError(f"{path} has no {MANIFEST}; expected a finished {kind} folder; run: {command}")
    try:
        manifest = json.loads(manifest_path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise ArtifactError(
            f"{manifest_path} is not readable JSON; remove {path} and run: {command}"
        ) from None
    if manifest.get("kind") != kind:
        raise ArtifactError(f"{path} is a {manifest.get('kind')!r} folder; expected {kind!r}; run: {command}")
    if manifest.get("format") != FORMAT:
        raise ArtifactError(
            f"{path} has format {manifest.get('format')}; expected {FORMAT}; remove it and run: {command}"
        )
    return Artifact(path, manifest)
