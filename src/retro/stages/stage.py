"""A stage's folder: written under another name, finished by one rename, described by `manifest.json`.

A stage is a function from finished folders to one finished folder. While it runs, its files live in
`NAME.partial`. If it is interrupted, that folder stays, and the next run with the same config and inputs goes
on in it. A folder of other settings is refused, never overwritten.
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
CARD = "README.md"
"""A page for people beside the result. It may be written again at any time, and has no checksum."""
CHECKSUM = "manifest"
"""The key of a manifest that holds the fingerprint of all its other keys."""
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
        """Read every file again and compare it with its checksum, and the manifest with its own."""
        _read_sound_manifest(self.path)
        for name, expected in self.manifest["files"].items():
            file = self.file(name)
            if not file.exists():
                raise ArtifactError(
                    f"{file} is missing; expected it from its manifest; "
                    f"remove {self.path} and run the stage again"
                )
            if file_checksum(file) != expected:
                raise ArtifactError(
                    f"{file} does not match its checksum; remove {self.path}, "
                    "or run: retro doctor --work WORK --mend; then run the stage again"
                )


class Stage:
    """An unfinished folder. Files are written into it atomically; what is there need not be made again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.counts: dict[str, Any] = {}

    def file(self, name: str) -> Path:
        return self.path / name

    def has(self, name: str) -> bool:
        return self.file(name).exists()

    def scratch(self, name: str) -> Path:
        """A folder for what only the unfinished stage needs, such as `Parts`; finishing removes it."""
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
    plan = _plan(kind, config, inputs)
    partial = _partial(path)
    if not path.exists():
        partial.mkdir(parents=True, exist_ok=True)
        with locked(partial):
            # Looked at again under the lock, since another process may have finished meanwhile.
            if not path.exists():
                return _finish(path, partial, plan, work, command)
        # Another process finished the stage between the two looks; the folder made here is empty.
        with suppress(OSError):
            partial.rmdir()
    return _open_same(path, plan, command)


def find_finished(
    path: Path, kind: str, config: dict[str, Any], inputs: dict[str, str], command: str
) -> Artifact | None:
    """The folder that `run_stage` would reuse, if it is finished; one of other settings is refused."""
    return _open_same(path, _plan(kind, config, inputs), command) if path.exists() else None


def recorded_inputs(path: Path) -> dict[str, str]:
    """The inputs' fingerprints that a stage was begun or finished with; none if it never was."""
    for record in (path / MANIFEST, _partial(path) / PLAN):
        try:
            inputs: dict[str, str] = json.loads(record.read_text())["inputs"]
        except (OSError, ValueError, LookupError):
            continue  # not there; if it is damaged, running the stage says so
        return inputs
    return {}


def _plan(kind: str, config: dict[str, Any], inputs: dict[str, str]) -> dict[str, Any]:
    """What tells one stage from another of the same place."""
    fingerprint = make_fingerprint(FORMAT, kind, config, inputs)
    return {"kind": kind, "fingerprint": fingerprint, "config": config, "inputs": inputs}


def _partial(path: Path) -> Path:
    return path.with_name(path.name + ".partial")


def _open_same(path: Path, plan: dict[str, Any], command: str) -> Artifact:
    artifact = open_artifact(path, plan["kind"], command)
    _expect_same(path, artifact.manifest, plan, command)
    _remove_scratch(path)
    return artifact


def _finish(
    path: Path, partial: Path, plan: dict[str, Any], work: Callable[[Stage], None], command: str
) -> Artifact:
    """Begin or go on in the folder `partial`, and rename it at the end."""
    plan_path = partial / PLAN
    # A folder that holds nothing but its plan may begin again with other settings: there is nothing to lose.
    if plan_path.exists() and any(file.is_file() and file != plan_path for file in partial.rglob("*")):
        _expect_same(partial, json.loads(plan_path.read_text()), plan, command)
    # The plan is written before any work, so that whatever a kill leaves says what it belongs to.
    write_json(plan_path, plan)
    stage = Stage(partial)
    work(stage)
    for leftover in partial.rglob("*.tmp"):  # a kill may have left some
        leftover.unlink()
    files = {str(file.relative_to(partial)): file_checksum(file) for file in _results(partial)}
    manifest = {"format": FORMAT, **plan, "counts": stage.counts, "files": files}
    manifest[CHECKSUM] = make_fingerprint(manifest)
    write_json(partial / MANIFEST, manifest)
    plan_path.unlink()
    partial.replace(path)
    _remove_scratch(path)
    return Artifact(path, manifest)


def _results(folder: Path) -> list[Path]:
    """The files of a stage that its manifest answers for."""
    aside = {PLAN, MANIFEST, CARD}
    files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
    return [
        file
        for file in files
        if file.relative_to(folder).parts[0] != SCRATCH and str(file.relative_to(folder)) not in aside
    ]


def _remove_scratch(path: Path) -> None:
    """Only now that the result has its name: a kill before would cost what the scratch holds."""
    shutil.rmtree(path / SCRATCH, ignore_errors=True)


def reopen_broken(path: Path) -> list[str]:
    """Remove the damaged files of a finished stage and make it unfinished again; name those files.

    The next run of the stage then makes only what is missing. The other files of a damaged part, those of
    the same stem, go with it.
    """
    manifest = _read_sound_manifest(path)
    broken = [
        name
        for name, checksum in manifest["files"].items()
        if not (path / name).exists() or file_checksum(path / name) != checksum
    ]
    if broken:
        for name in broken:
            # A shard is several files of one stem, and only all of them together are a part.
            stem = (path / name).name.partition(".")[0]
            for file in (path / name).parent.glob(f"{stem}.*"):
                file.unlink()
        # In this order a kill leaves a finished folder to mend again, or an unfinished one to go on in.
        write_json(path / PLAN, {key: manifest[key] for key in ("kind", "fingerprint", "config", "inputs")})
        path.replace(_partial(path))
        (_partial(path) / MANIFEST).unlink()
    return [str(path / name) for name in broken]


def _read_sound_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a finished folder, which must match its own checksum: it says which files are whole."""
    try:
        manifest: dict[str, Any] = json.loads((path / MANIFEST).read_text())
        sound = manifest.pop(CHECKSUM) == make_fingerprint(manifest)
    except (OSError, ValueError, LookupError, AttributeError):
        sound = False
    if not sound:
        raise ArtifactError(
            f"{path / MANIFEST} is missing or does not match its checksum; "
            f"remove {path} and run the stage again"
        )
    return manifest


def _expect_same(path: Path, found: dict[str, Any], expected: dict[str, Any], command: str) -> None:
    """Refuse a folder, finished or begun, of other settings or inputs: it may hold hours of work."""
    if found["fingerprint"] != expected["fingerprint"]:
        old = _flatten({**found["config"], **found["inputs"]})
        new = _flatten({**expected["config"], **expected["inputs"]})
        changed = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
        raise ArtifactError(
            f"{path} was made with other settings or inputs ({', '.join(changed) or 'format'} differ); "
            f"name another folder, or remove it and run: {command}"
        )


def _flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by their dotted names."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
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
