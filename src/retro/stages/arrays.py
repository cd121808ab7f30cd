"""Arrays of known size that a stage fills in place and that stay in its folder as the result.

Unlike `Parts`, whose files are joined at the end, these arrays are never on disk twice: the states of every
token of a corpus can take most of a disk. The price is that only a prefix can be finished, never a hole.
"""

import json
from typing import Any

import numpy as np

from retro.stages.files import write_json
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
        self.keep(self.done)

    def keep(self, done: int) -> None:
        """Flush what was filled to disk, and only then call it done."""
        for array in self.arrays.values():
            array.flush()
        write_json(self._done, done)
        self.done = done

    def finish(self) -> None:
        self._done.unlink()
