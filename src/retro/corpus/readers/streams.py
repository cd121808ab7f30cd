"""Files as streams of bytes, unpacked on the way; the first bytes tell how, whatever a file is called."""

import bz2
import gzip
import io
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import IO, cast

import zstandard

LONGEST_WINDOW = 2**31
"""Archives made with `zstd --long=31` are common among text dumps; zstandard refuses them unless told."""

BUFFER_BYTES = 1 << 17
SKIPPABLE = b"*M\x18"
REPEATED_BYTE = 1

BROKEN = (EOFError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError, OSError)
"""What reading a damaged or cut archive raises."""


def packing_of(path: Path) -> str:
    """`gz`, `bz2`, `zst`, or nothing for a plain file."""
    with path.open("rb") as file:
        head = file.read(4)
    if head[:2] == b"\x1f\x8b":
        return "gz"
    if head[:3] == b"BZh":
        return "bz2"
    skippable = head[1:] == SKIPPABLE and head[0] & 0xF0 == 0x50
    return "zst" if head == b"\x28\xb5\x2f\xfd" or skippable else ""


class Meter:
    """How many bytes of their files the readers have taken, packed as they lie there."""

    num_bytes = 0


_METER: ContextVar[Meter | None] = ContextVar("meter", default=None)


@contextmanager
def metered() -> Iterator[Meter]:
    """Count what is read of files within the block."""
    # A context variable, so that nested and concurrent readings count apart.
    token = _METER.set(meter := Meter())
    try:
        yield meter
    finally:
        _METER.reset(token)


def count_bytes(number: int) -> None:
    """For readers that open their files without `open_stream`."""
    if meter := _METER.get():
        meter.num_bytes += number


def open_stream(path: Path) -> IO[bytes]:
    """The unpacked bytes of a file."""
    packing = packing_of(path)
    file = cast(IO[bytes], io.BufferedReader(_CountedFile(path), BUFFER_BYTES))
    if packing == "gz":
        unpacked = _Unpacked(file, cast(IO[bytes], gzip.GzipFile(fileobj=file)))
    elif packing == "bz2":
        unpacked = _Unpacked(file, cast(IO[bytes], bz2.BZ2File(file)))
    elif packing == "zst":
        unpacked = _UnpackedZstd(file)
    else:
        return file
    return cast(IO[bytes], io.BufferedReader(unpacked))


class _CountedFile(io.FileIO):
    def readinto(self, buffer: "bytearray | memoryview") -> int:  # type: ignore[override]
        size = super().readinto(buffer) or 0
        count_bytes(size)
        return size

    def readall(self) -> bytes:
        content = super().readall() or b""
        count_bytes(len(content))
        return content


class _Unpacked(io.RawIOBase):
    """A packed file and what reads it, which close together."""

    def __init__(self, file: IO[bytes], reader: IO[bytes]) -> None:
        self._file = file
        self._reader = reader

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "bytearray | memoryview") -> int:  # type: ignore[override]
        return self._reader.readinto(buffer)  # type: ignore[attr-defined]

    def close(self) -> None:
        self._file.close()
        super().close()


class _UnpackedZstd(_Unpacked):
    """A zstd file of one or many frames.

    The library's own stream ends quietly where a file was cut off; this one raises an error.
    """

    def __init__(self, file: IO[bytes]) -> None:
        decompressor = zstandard.ZstdDecompressor(max_window_size=LONGEST_WINDOW)
        reader = decompressor.stream_reader(file, read_across_frames=True, closefd=False)
        super().__init__(file, cast(IO[bytes], reader))

    def readinto(self, buffer: "bytearray | memoryview") -> int:  # type: ignore[override]
        size = super().readinto(buffer)
        # Nothing more comes: was that the end of a frame?
        if size == 0 and not _ends_with_a_frame(self._file):
            raise EOFError("the file ends within a zstd frame")
        return size


def _ends_with_a_frame(file: IO[bytes]) -> bool:
    """Whether the file is whole, by a walk over its headers of frames and blocks (RFC 8878, section 3.1)."""
    end = file.seek(0, os.SEEK_END)
    position = 0
    while position < end:
        file.seek(position)
        head = file.read(18)  # the longest header of a frame
        # A frame that holds no data says its size in the next four bytes.
        if head[1:4] == SKIPPABLE:
            position += 8 + int.from_bytes(head[4:8], "little")
            continue
        try:
            position += zstandard.frame_header_size(head)
            has_checksum = zstandard.get_frame_parameters(head).has_checksum
        except zstandard.ZstdError:
            return False
        is_last = False
        while not is_last:
            file.seek(position)
            header = file.read(3)
            if len(header) < 3:
                return False
            # From the lowest bit on: whether it is the last block, two bits of its kind, and its size.
            value = int.from_bytes(header, "little")
            is_last = bool(value & 1)
            kind = value >> 1 & 3
            size = value >> 3
            # A block of one repeated byte holds that byte alone; its size is what it unpacks to.
            position += 3 + (1 if kind == REPEATED_BYTE else size)
        position += 4 if has_checksum else 0
    return position == end
