"""A stage's folder: written under another name, finished by one rename, described by `manifest.json`.

A stage is a function from finished folders to one finished folder. While it runs, its files live in
`NAME.partial`. If it is interrupted, that folder stays, and the next run with the same config and inputs goes
on in it. A folder of other settings is refused, never overwritten, unless the caller says that it is to be
renewed: then the old folder stays until the new one is finished and takes its place.
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
from retro.stages.hints import with_paths

MANIFEST = "manifest.json"
PLAN = "plan.json"
SCRATCH = "scratch"
CARD = "README.md"
"""A page for people beside the result. It may be written again at any time, and has no checksum."""
CHECKPOINT = "checkpoint"
"""A folder in the result that only going on needs. It is moved out or removed at any time, and has no
checksum."""
CHECKSUM = "manifest"
"""The key of a manifest that holds the fingerprint of all its other keys."""
FORMAT = 1
WITH_REDO = tuple(f"retro {name} " for name in ("ingest", "build", "neighbours", "train", "fit", "evaluate"))
"""What the commands begin with that begin their stage anew with `--redo`."""


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
        self.expect_whole(*self.manifest["files"])

    def expect_whole(self, *names: str) -> None:
        """Compare files with their checksums: cheap for those that are read from end to end anyway."""
        for name in names:
            expected = self.manifest.get("files", {}).get(name)
            file = self.file(name)
            if not file.exists():
                raise ArtifactError(
                    f"{file} is missing; expected it from its manifest; "
                    f"remove {self.path} and run the stage again"
                )
            # A file that came later, such as a card, has no checksum.
            if expected is not None and file_checksum(file) != expected:
                mend = with_paths("retro doctor --work WORK --mend", self.path)
                raise ArtifactError(
                    f"{file} does not match its checksum; remove {self.path}, "
                    f"or run: {mend}; then run the stage again"
                )


class Stage:
    """An unfinished folder. Files are written into it atomically; what is there need not be made again."""

    def __init__(self, path: Path, mended: dict[str, Any] | None = None) -> None:
        self.path = path
        self.counts: dict[str, Any] = {}
        self.mended = mended
        """The counts of the finished stage that is being mended; None if it was never finished."""

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
    renew: bool = False,
) -> Artifact:
    """Finish the folder `path`: reuse it if it is finished, go on if it was begun, begin it otherwise.

    `inputs` maps names to fingerprints. `command` is what a user runs to make this folder, for messages.
    With `renew`, a finished folder of other settings is replaced once the new one is finished.
    """
    plan = _plan(kind, config, inputs)
    partial = partial_of(path)
    if _is_to_make(path, plan, command, renew):
        partial.mkdir(parents=True, exist_ok=True)
        with locked(partial):
            # Looked at again under the lock, since another process may have finished meanwhile.
            if _is_to_make(path, plan, command, renew):
                return _finish(path, partial, plan, work, command)
        # Another process finished the stage between the two looks; the folder made here is empty.
        with suppress(OSError):
            partial.rmdir()
    return _open_same(path, plan, command)


def is_finished(
    path: Path, kind: str, config: dict[str, Any], inputs: dict[str, str], command: str, renew: bool
) -> bool:
    """Whether `run_stage` has nothing to do but to open the folder, or to refuse it."""
    return not _is_to_make(path, _plan(kind, config, inputs), command, renew)


def _is_to_make(path: Path, plan: dict[str, Any], command: str, renew: bool) -> bool:
    restore(path)
    if not path.exists():
        return True
    return renew and open_artifact(path, plan["kind"], command).fingerprint != plan["fingerprint"]


def put_in_place(new: Path, path: Path) -> None:
    """Give a finished folder its name; what had the name before is removed.

    A folder cannot be renamed over another in one step. A kill between the two steps leaves the old one under
    the name from which `restore` brings it back.
    """
    replaced = replaced_by(path)
    if path.exists():
        shutil.rmtree(replaced, ignore_errors=True)
        path.replace(replaced)
    new.replace(path)
    shutil.rmtree(replaced, ignore_errors=True)


def restore(path: Path) -> None:
    """Bring a folder back that a kill left in the midst of being replaced."""
    replaced = replaced_by(path)
    if replaced.exists() and not path.exists():
        with suppress(OSError):  # another process was quicker
            replaced.replace(path)


def replaced_by(path: Path) -> Path:
    """Where a folder lies for the moment in which another takes its place."""
    return _beside(path, ".replaced")


def find_finished(
    path: Path, kind: str, config: dict[str, Any], inputs: dict[str, str], command: str
) -> Artifact | None:
    """The folder that `run_stage` would reuse, if it is finished; one of other settings is refused."""
    return _open_same(path, _plan(kind, config, inputs), command) if path.exists() else None


def differences(found: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """The dotted names of settings that differ."""
    old = _flatten(found)
    new = _flatten(expected)
    return sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))


def recorded_inputs(path: Path) -> dict[str, str]:
    """The inputs' fingerprints that a stage was begun or finished with; none if it never was."""
    for record in (path / MANIFEST, partial_of(path) / PLAN):
        try:
            inputs: dict[str, str] = json.loads(record.read_text())["inputs"]
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            continue  # not there; if it is damaged, running the stage says so
        return inputs if isinstance(inputs, dict) else {}
    return {}


def _plan(kind: str, config: dict[str, Any], inputs: dict[str, str]) -> dict[str, Any]:
    """What tells one stage from another of the same place."""
    fingerprint = make_fingerprint(FORMAT, kind, config, inputs)
    return {"kind": kind, "fingerprint": fingerprint, "config": config, "inputs": inputs}


def partial_of(path: Path) -> Path:
    """Where a stage lies until it is finished."""
    return _beside(path, ".partial")


def _beside(path: Path, ending: str) -> Path:
    """A folder's name with an ending, where it lies; `.` and `..` have no name of their own."""
    place = path.resolve() if path.name in ("", "..") else path
    return place.with_name(place.name + ending) if place.name else place / ending


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
    mended: dict[str, Any] | None = None
    # A folder that holds nothing but its plan may begin again with other settings: there is nothing to lose.
    if plan_path.exists() and any(file.is_file() and file != plan_path for file in partial.rglob("*")):
        found = _read_plan(plan_path)
        _expect_same(partial, found, plan, command)
        mended = found.get("counts")
    # The plan is written before any work, so that whatever a kill leaves says what it belongs to.
    write_json(plan_path, plan if mended is None else {**plan, "counts": mended})
    stage = Stage(partial, mended)
    work(stage)
    for leftover in partial.rglob("*.tmp"):  # a kill may have left some
        leftover.unlink()
    files = {str(file.relative_to(partial)): file_checksum(file) for file in _results(partial)}
    manifest = {"format": FORMAT, **plan, "counts": stage.counts, "files": files}
    manifest[CHECKSUM] = make_fingerprint(manifest)
    write_json(partial / MANIFEST, manifest)
    plan_path.unlink()
    put_in_place(partial, path)
    _remove_scratch(path)
    return Artifact(path, manifest)


def _read_plan(path: Path) -> dict[str, Any]:
    """The plan that an unfinished stage was begun with; what it has done so far is nobody's without it."""
    try:
        plan = json.loads(path.read_text())
    except (ValueError, RecursionError):
        plan = None
    if not _is_plan(plan):
        raise ArtifactError(
            f"{path} is not readable; expected the settings that {path.parent} was begun with; "
            f"remove {path.parent} and run the same command again"
        )
    found: dict[str, Any] = plan
    return found


def _is_plan(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("fingerprint"), str)
        and isinstance(value.get("config"), dict)
        and isinstance(value.get("inputs"), dict)
    )


def _results(folder: Path) -> list[Path]:
    """The files of a stage that its manifest answers for."""
    aside = {PLAN, MANIFEST, CARD}
    files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
    return [
        file
        for file in files
        if file.relative_to(folder).parts[0] not in (SCRATCH, CHECKPOINT)
        and str(file.relative_to(folder)) not in aside
    ]


def _remove_scratch(path: Path) -> None:
    """Only now that the result has its name: a kill before would cost what the scratch holds."""
    shutil.rmtree(replaced_by(path), ignore_errors=True)
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
        kept = ("kind", "fingerprint", "config", "inputs", "counts")
        write_json(path / PLAN, {key: manifest[key] for key in kept})
        path.replace(partial_of(path))
        (partial_of(path) / MANIFEST).unlink()
    return [str(path / name) for name in broken]


def _read_sound_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a finished folder, which must match its own checksum: it says which files are whole."""
    try:
        manifest: dict[str, Any] = json.loads((path / MANIFEST).read_text())
        sound = manifest.pop(CHECKSUM) == make_fingerprint(manifest)
    except (OSError, ValueError, LookupError, AttributeError, TypeError, RecursionError):
        sound = False
    if not sound:
        raise ArtifactError(
            f"{path / MANIFEST} is missing or does not match its checksum; "
            f"remove {path} and run the stage again"
        )
    return manifest


def _expect_same(path: Path, found: dict[str, Any], expected: dict[str, Any], command: str) -> None:
    """Refuse a folder, finished or begun, of other settings or inputs: it may hold hours of work."""
    command = with_paths(command, path)
    if found["fingerprint"] != expected["fingerprint"]:
        changed = differences(
            {**found["config"], **found["inputs"]}, {**expected["config"], **expected["inputs"]}
        )
        raise ArtifactError(
            f"{path} was made with other settings or inputs ({', '.join(changed) or 'format'} differ); "
            f"{way_out(command)}"
        )


def way_out(command: str) -> str:
    """What to do about a folder of other settings; `command` is what makes it."""
    if command.startswith(WITH_REDO):
        return f"name another folder, or begin anew; run: {command} --redo"
    return f"name another folder, or remove it and run: {command}"


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
    command = with_paths(command, path)
    manifest_path = path / MANIFEST
    restore(path)
    if not path.exists():
        raise ArtifactError(f"{path} does not exist; expected a finished {kind} folder; run: {command}")
    if not manifest_path.exists():
        raise ArtifactError(f"{path} has no {MANIFEST}; expected a finished {kind} folder; run: {command}")
    try:
        manifest = json.loads(manifest_path.read_text())
    except (ValueError, RecursionError):
        manifest = None
    if not isinstance(manifest, dict):
        raise ArtifactError(f"{manifest_path} is not readable JSON; remove {path} and run: {command}")
    if manifest.get("kind") != kind:
        raise ArtifactError(f"{path} is a {manifest.get('kind')!r} folder; expected {kind!r}; run: {command}")
    if manifest.get("format") != FORMAT:
        raise ArtifactError(
            f"{path} has format {manifest.get('format')}; expected {FORMAT}; remove it and run: {command}"
        )
    if not _is_as_written(manifest):
        raise ArtifactError(
            f"{manifest_path} does not match its checksum; expected it as it was written; "
            f"restore it, or remove {path} and run: {command}"
        )
    return Artifact(path, manifest)


def _is_as_written(manifest: dict[str, Any]) -> bool:
    """Whether a manifest has all it must have and matches its own checksum; older ones have none."""
    has_all = _is_plan(manifest) and all(isinstance(manifest.get(key), dict) for key in ("counts", "files"))
    others = {key: value for key, value in manifest.items() if key != CHECKSUM}
    return has_all and manifest.get(CHECKSUM) in (None, make_fingerprint(others))
