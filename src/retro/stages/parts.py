"""Parts: the one way to keep what an unfinished stage has done so far.

A long stage cuts its work into named parts. Each part is one value in one file, written atomically: a file
that is there is whole, and its value need never be made again. There are two places for parts:

- the stage's own folder, where they are the result (shards of text, of tokens, of queries);
- `stage.scratch(name)`, where they are only steps towards it (the scores of a few windows, the keys of a few
  chunks). `run_stage` removes all scratch folders when the stage is finished.

Two things that also survive interruptions are not parts: the arrays of `arrays.py`, which are too large to
be kept twice, and the checkpoints of a training, which are states of one thing, each replacing the last.
"""

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Generic, TypeVar

import numpy as np

from retro.errors import ArtifactError
from retro.stages.files import DAMAGED, atomic_write

Item = TypeVar("Item")
Value = TypeVar("Value")


@dataclass(frozen=True)
class Format(Generic[Value]):
    """How values become files and are read back. What is read must equal what was written."""

    suffix: str
    write: Callable[[IO[bytes], Value], None]
    read: Callable[[Path], Value]


class Parts(Generic[Value]):
    """The parts of one kind in one folder. Its only state is on disk, so any process may hold one."""

    def __init__(
        self,
        folder: Path,
        format: Format[Value],
        remedy: str = "remove it and run the same command again",
        alone: bool = True,
    ) -> None:
        """`remedy` tells a user what to do about a damaged part; the default fits an unfinished stage.

        Unless they are written by the stage's own process `alone`, two workers may write the same part.
        """
        self.folder = folder
        self.format = format
        self.remedy = remedy
        self.alone = alone

    def file(self, name: str) -> Path:
        return self.folder / f"{name}{self.format.suffix}"

    def has(self, name: str) -> bool:
        return self.file(name).exists()

    def keep(self, name: str, make: Callable[[], Value]) -> Value:
        """The part of this name: read if it was made before, and otherwise made and written.

        `make` may write further files of the part, called `NAME.something`. They are written first, so they
        are whole wherever this one stands; and mending a finished stage removes all files of a stem together.
        """
        if self.has(name):
            return self.read(name)
        value = make()
        self.write(name, value)
        return value

    def map(
        self, run: Callable[[Iterable[Item]], Iterable[Value]], items: Iterable[tuple[str, Item]]
    ) -> Iterator[Value]:
        """The parts of all named items, in their order; `run` gets only the items whose parts are missing.

        `run` turns a stream of items into a stream of values in the same order, and may take items ahead as
        an executor does: `parts.map(partial(executor.map, function), items)`. The calling process writes.
        """
        # The items taken so far whose values are still to come: the name, and whether the part is there.
        taken: deque[tuple[str, bool]] = deque()

        def missing() -> Iterator[Item]:
            for name, item in items:
                is_there = self.has(name)
                taken.append((name, is_there))
                if not is_there:
                    yield item

        for value in run(missing()):
            # Values come in the order of the missing items: what stands before the first of these goes first.
            while taken[0][1]:
                yield self.read(taken.popleft()[0])
            name, _ = taken.popleft()
            self.write(name, value)
            yield value
        for name, _ in taken:
            yield self.read(name)

    def read(self, name: str) -> Value:
        try:
            return self.format.read(self.file(name))
        except DAMAGED as error:
            raise ArtifactError(
                f"{self.file(name)} is damaged ({error}); expected a whole file; {self.remedy}"
            ) from None

    def write(self, name: str, value: Value) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(self.file(name), self.alone) as file:
            self.format.write(file, value)


def _write_json(file: IO[bytes], value: Any) -> None:
    file.write(json.dumps(value, indent=2, ensure_ascii=False).encode())


def _read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _write_rows(file: IO[bytes], rows: list[dict[str, Any]]) -> None:
    for row in rows:
        file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")


def _read_rows(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def _write_array(file: IO[bytes], array: np.ndarray) -> None:
    np.save(file, array, allow_pickle=False)


def _read_array(path: Path) -> np.ndarray:
    with path.open("rb") as file:
        return np.lib.format.read_array(file, allow_pickle=False)


def _write_arrays(file: IO[bytes], arrays: dict[str, np.ndarray]) -> None:
    np.savez(file, allow_pickle=False, **arrays)


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    # Opened here, since NumPy leaves a damaged file open.
    with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


# Named functions, not lambdas: a `Parts` can then be sent to another process.
JSON: Format[Any] = Format(".json", _write_json, _read_json)
"""Any JSON value; tuples come back as lists."""
ROWS: Format[list[dict[str, Any]]] = Format(".jsonl", _write_rows, _read_rows)
"""A table, one JSON object a line."""
ARRAY: Format[np.ndarray] = Format(".npy", _write_array, _read_array)
ARRAYS: Format[dict[str, np.ndarray]] = Format(".npz", _write_arrays, _read_arrays)
"""Several arrays by name."""
