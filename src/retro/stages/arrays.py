"""Arrays on disk: loading those of a finished stage, and filling those of an unfinished one in place.

A `Filling` holds arrays of known size that stay in the stage's folder as its result. Unlike `Parts`, whose
files are joined at the end, they are never on disk twice: the states of every token of a corpus can take most
of a disk. The price is that only a prefix can be finished, never a piece in the middle.
"""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from retro.errors import ArtifactError
from retro.stages.files import DAMAGED, write_json
from retro.stages.stage import Stage

DONE = "done.json"


class Filling:
    """Memory-mapped arrays of an unfinished stage, and how much of them is filled."""

    def __init__(self, stage: Stage, **arrays: tuple[Any, tuple[int, ...]]) -> None:
        """`arrays` gives the dtype and the shape of each."""
        self._done = stage.file(DONE)
        was_begun = self._done.exists()
        self.done: int = json.loads(self._done.read_text()) if was_begun else 0
        """How much is filled for good, in whatever unit the stage counts."""
        mode = "r+" if was_begun else "w+"
        self.arrays = {
            name: np.lib.format.open_memmap(stage.file(f"{name}.npy"), mode, dtype, shape)
            for name, (dtype, shape) in arrays.items()
        }
        if not was_begun:
            for name in arrays:
                reserve(stage.file(f"{name}.npy"))
        # From now on the arrays can be opened again, even if nothing of them is filled.
        self.keep(self.done)

    def keep(self, done: int) -> None:
        """Flush what was filled to disk, and only then call it done."""
        # The other way round, a crash could leave a count of what never reached the disk.
        for array in self.arrays.values():
            array.flush()
        write_json(self._done, done)
        self.done = done

    def finish(self) -> None:
        self._done.unlink()


def reserve(path: Path) -> None:
    """Have the whole file on disk: where a disk is full, writing to a mapped file kills the process."""
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)


def load_array(path: Path, remedy: str, mapped: bool = False) -> np.ndarray:
    """An array of a finished folder, mapped into memory on request; `remedy` tells how to mend its file."""
    try:
        if mapped:
            return np.lib.format.open_memmap(path, mode="r")
        # Opened here: `np.load` takes some damaged files for archives and leaves them open.
        with path.open("rb") as file:
            return np.lib.format.read_array(file, allow_pickle=False)
    except DAMAGED as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ArtifactError(f"{path} is damaged ({reason}); expected a whole array; {remedy}") from None
