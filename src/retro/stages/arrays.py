"""Arrays of known size that a stage fills in place, part by part; what was filled before an interruption stays."""

import json
from typing import Any

import numpy as np

from retro.stages.files import write_json
from retro.stages.stage import Stage

DONE = "done.json"


class Filling:
    """Memory-mapped arrays of a stage, and how much of the work is in them. On disk they take no more than in the end."""

    def __init__(self, stage: Stage, **arrays: tuple[Any, tuple[int, ...]]) -> None:
        """`arrays` are the dtype and the shape of each."""
        self._done = stage.file(DONE)
        self.done: int = json.loads(self._done.read_text()) if self._done.exists() else 0
        """Parts that are filled for good, in whatever unit the stage counts."""
        mode = "r+" if self._done.exists() else "w+"
        self.arrays = {
            name: np.lib.format.open_memmap(stage.file(f"{name}.npy"), mode, dtype, shape)
            for name, (dtype, shape) in arrays.items()
        }
        self.keep(self.done)

    def keep(self, done: int) -> None:
        """Have what was filled on disk before it is called done."""
        for array in self.arrays.values():
            array.flush()
        write_json(self._done, done)
        self.done = done

    def finish(self) -> None:
        self._done.unlink()
