"""Arrays in one file, or in several of bounded size that are read as if they were one.

What fits one file is `NAME.npy`. More is `NAME-00000.npy`, `NAME-00001.npy` and so on, all with the same
number of rows but the last, so that the file of a row is found by division. How an array is cut changes
nothing of what it holds: every reader sees the same rows, and `whole_checksum` is that of the one file.
"""

import hashlib
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from retro.config import FILE_BYTES
from retro.errors import ArtifactError, ConfigError
from retro.stages.arrays import load_array
from retro.stages.stage import Artifact, Stage

BLOCK = 1 << 22
"""Rows that are read together where all of them are."""


class ShardedArray:
    """Several arrays, which may be memory maps, as one along their first axis; all but the last are equally
    long. It is read with integers, slices, and arrays of numbers or of truth values, as NumPy's are."""

    def __init__(self, parts: Sequence[np.ndarray]) -> None:
        self.parts = tuple(parts)
        self.part_len = len(parts[0])
        self.shape = (sum(len(part) for part in parts), *parts[0].shape[1:])
        self.dtype = parts[0].dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> Any:
        rows, *others = key if isinstance(key, tuple) else (key,)
        if isinstance(rows, slice):
            begin, end, step = rows.indices(len(self))
            if step == 1:
                return self._run(begin, max(begin, end), others)
            rows = np.arange(begin, end, step)
        rows = self._numbers(rows)
        found = self._rows(rows)
        return found[(*[slice(None)] * rows.ndim, *others)]

    def __setitem__(self, rows: np.ndarray, values: np.ndarray) -> None:
        """Write rows, where the parts can be written; `rows` are numbers in one row."""
        for number, here, places in self._by_part(self._numbers(rows)):
            self.parts[number][places] = values[here]

    def flush(self) -> None:
        """Have what was written on disk."""
        for part in self.parts:
            if isinstance(part, np.memmap):
                part.flush()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """All of it in memory."""
        if copy is False:
            raise ValueError("an array of several files cannot be had in one piece without a copy")
        whole: np.ndarray = np.concatenate(self.parts)
        return whole if dtype is None else whole.astype(dtype)

    def _numbers(self, rows: Any) -> np.ndarray:
        rows = np.asarray(rows)
        if rows.dtype == bool:
            return np.flatnonzero(rows)
        if not rows.size:
            return rows.astype(np.int64)
        if rows.max() >= len(self) or rows.min() < -len(self):
            raise IndexError(f"rows {rows.min()} to {rows.max()} are asked for; there are {len(self)}")
        return np.where(rows < 0, rows + len(self), rows)

    def _run(self, begin: int, end: int, others: Sequence[Any]) -> np.ndarray:
        """Some rows that follow each other: where one part has all of them, without a copy."""
        first, last = begin // self.part_len, max(begin, end - 1) // self.part_len
        pieces = [
            self.parts[number][
                (slice(max(0, begin - number * self.part_len), end - number * self.part_len), *others)
            ]
            for number in range(min(first, len(self.parts) - 1), min(last, len(self.parts) - 1) + 1)
        ]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def _rows(self, rows: np.ndarray) -> np.ndarray:
        found = np.empty((*rows.shape, *self.shape[1:]), dtype=self.dtype)
        for number, here, places in self._by_part(rows):
            found[here] = self.parts[number][places]
        return found

    def _by_part(self, rows: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """The parts that hold some of the rows, which of the rows those are, and their places in the part."""
        part_of, places = np.divmod(rows, self.part_len)
        for number in np.unique(part_of):
            here = part_of == number
            yield int(number), here, places[here]


Rows = np.ndarray | ShardedArray


def shard_name(name: str, number: int) -> str:
    return f"{name}-{number:05d}.npy"


def file_names(name: str, num_rows: int, rows_per_file: int) -> list[str]:
    """The files of an array with so many rows."""
    number = max(1, -(-num_rows // rows_per_file))
    return [f"{name}.npy"] if number == 1 else [shard_name(name, index) for index in range(number)]


def rows_per_file(file_bytes: int, row_bytes: int) -> int:
    """How many rows make a file; a row is never cut."""
    if file_bytes < 1:
        raise ConfigError(f"file_bytes is {file_bytes}; expected a positive number of bytes")
    return max(1, file_bytes // row_bytes)


def files_of(artifact: Artifact, name: str) -> list[Path]:
    """The files of an array, by the manifest: one that is missing is told when it is read."""
    form = re.compile(rf"{re.escape(name)}-\d{{5,}}\.npy")
    names = sorted(filter(form.fullmatch, artifact.manifest["files"]), key=lambda file: (len(file), file))
    return [artifact.file(file) for file in names or [f"{name}.npy"]]


def load_shards(files: Sequence[Path], remedy: str) -> Rows:
    """An array, mapped into memory, whether it is one file or several."""
    parts = [load_array(file, remedy, mapped=True) for file in files]
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    for file, part in zip(files, parts, strict=True):
        is_alike = part.ndim > 0 and (part.dtype, part.shape[1:]) == (first.dtype, first.shape[1:])
        if not is_alike or not 0 < len(part) <= len(first) or (len(part) < len(first) and file != files[-1]):
            raise ArtifactError(
                f"{file} holds {part.dtype} of shape {part.shape}; "
                f"expected {first.dtype} of shape {first.shape} as {files[0].name}; {remedy}"
            )
    return ShardedArray(parts)


def drop_shards(stage: Stage, name: str) -> None:
    """Remove what an interrupted run may have left of an array that is written anew: it may be cut
    otherwise."""
    for file in (stage.file(f"{name}.npy"), *stage.path.glob(f"{name}-*.npy")):
        file.unlink(missing_ok=True)


def append_shards(
    stage: Stage, name: str, dtype: np.dtype, pieces: Iterable[np.ndarray], file_bytes: int = FILE_BYTES
) -> list[Path]:
    """Write numbers that come piece by piece, at least one of them; returns their files. A piece is held."""
    drop_shards(stage, name)
    number = 0
    most = rows_per_file(file_bytes, dtype.itemsize)
    for number, run in enumerate(_runs(pieces, most)):
        if number == 1:
            # Only now is it known that one file does not do.
            stage.file(f"{name}.npy").rename(stage.file(shard_name(name, 0)))
        with stage.write(shard_name(name, number) if number else f"{name}.npy") as file:
            # How many they are is known at the end; NumPy leaves room for any number.
            _write_header(file, dtype, most)
            num_rows = 0
            for piece in run:
                file.write(piece.tobytes())
                num_rows += len(piece)
            file.seek(0)
            _write_header(file, dtype, num_rows)
    return [
        stage.file(f"{name}.npy" if not number else shard_name(name, index)) for index in range(number + 1)
    ]


def whole_checksum(array: Rows) -> str:
    """The checksum of the one file that `append_shards` would write if it were large enough."""
    header = io.BytesIO()
    _write_header(header, array.dtype, len(array))
    digest = hashlib.sha256(header.getvalue())
    for start in range(0, len(array), BLOCK):
        digest.update(np.ascontiguousarray(array[start : start + BLOCK]).data)
    return digest.hexdigest()


def _write_header(file: IO[bytes], dtype: np.dtype, num_rows: int) -> None:
    header = {
        "descr": np.lib.format.dtype_to_descr(dtype),
        "fortran_order": False,
        "shape": (num_rows,),
    }
    np.lib.format.write_array_header_2_0(file, header)


def _runs(pieces: Iterable[np.ndarray], most: int) -> Iterator[Iterator[np.ndarray]]:
    """The pieces again, in runs of `most` rows; each must be used up before the next is asked for."""
    # An empty piece at the end of a full file would begin one that holds nothing.
    source = (piece for piece in pieces if len(piece))
    held = next(source, None)

    def run() -> Iterator[np.ndarray]:
        nonlocal held
        room = most
        while held is not None and room:
            part, rest = held[:room], held[room:]
            room -= len(part)
            held = rest if len(rest) else next(source, None)
            yield part

    while held is not None:
        yield run()
