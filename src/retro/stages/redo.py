"""Beginning a stage anew: what would be removed is found first, so that it can be told before it is done.

Only folders that a stage has made are removed, and only if they hold nothing that somebody else put there.
"""

import json
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from retro.errors import ArtifactError
from retro.stages.stage import CARD, CHECKPOINT, MANIFEST, PLAN, SCRATCH, partial_of, replaced_by

REMOVED = ".removed"
"""What the name of a folder ends in while it is being removed: a part of it must not be taken for a stage."""


@dataclass(frozen=True)
class Removal:
    """What is to be removed, in this order, and what was made from it and stays."""

    paths: tuple[Path, ...]
    dependents: tuple[Path, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.paths)

    def and_then(self, other: "Removal") -> "Removal":
        """Both, the other one last."""
        return Removal((*self.paths, *other.paths), (*self.dependents, *other.dependents))

    def lines(self) -> list[str]:
        """What a user should know beforehand."""
        lines = [f"removes {path} ({_readable(size_of(path))})" for path in self.paths]
        lines += [f"{path} was made from it and stays as it is" for path in self.dependents]
        return lines

    def carry_out(self) -> None:
        for path in self.paths:
            if path.is_dir():
                doomed = path.with_name(path.name + REMOVED)
                shutil.rmtree(doomed, ignore_errors=True)  # a kill may have left it
                path.replace(doomed)
                shutil.rmtree(doomed)
            else:
                path.unlink()


def removal_of(
    stages: Iterable[Path], files: Sequence[Path] = (), dependents: Sequence[Path] = ()
) -> Removal:
    """The folders of these stages, finished and begun, and files beside them; those that are there."""
    found: list[Path] = []
    for path in stages:
        for folder in (path, partial_of(path), replaced_by(path)):
            if folder.exists():
                _expect_ours(folder)
                found.append(folder)
    found += [path for path in files if path.exists()]
    return Removal(tuple(found), tuple(path for path in dependents if path.exists()))


def size_of(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def _readable(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.1f} MB" if num_bytes >= 100_000 else f"{num_bytes / 1e3:,.1f} kB"


def _expect_ours(folder: Path) -> None:
    """Refuse a folder that no stage has made, or in which somebody keeps something else."""
    if folder.name.endswith(".partial"):
        known = (folder / PLAN).exists() or (folder / MANIFEST).exists() or not any(folder.iterdir())
        foreign = [] if known else [folder]
    else:
        foreign = _foreign_files(folder)
    if foreign:
        raise ArtifactError(
            f"{foreign[0]} was not made by this stage; expected nothing else in {folder}; "
            "move it away and run the same command again"
        )


def _foreign_files(folder: Path) -> list[Path]:
    try:
        names = set(json.loads((folder / MANIFEST).read_text())["files"])
    except (OSError, ValueError, LookupError):
        return [folder]
    names |= {MANIFEST, PLAN, CARD}
    files = [file.relative_to(folder) for file in sorted(folder.rglob("*")) if file.is_file()]
    return [
        folder / file
        for file in files
        if str(file) not in names and file.parts[0] not in (SCRATCH, CHECKPOINT)
    ]
