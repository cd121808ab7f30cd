"""Files as streams of bytes, unpacked on the way; the first bytes tell how a file is packed, whatever it is called."""

import bz2
import gzip
import io
import os
import zlib
from pathlib import Path
from typing import IO, cast

import zstandard

LONGEST_WINDOW = 2**31
"""Archives made with `zstd --long=31` are common among text dumps; zstandard refuses them unless told."""

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


def open_stream(path: Path) -> IO[bytes]:
    """The unpacked bytes of a file."""
    packing = packing_of(path)
    if packing == "gz":
        return cast(IO[bytes], gzip.open(path, "rb"))
    if packing == "bz2":
        return cast(IO[bytes], bz2.open(path, "rb"))
    if packing == "zst":
        return cast(IO[bytes], io.BufferedReader(_ZstdFile(path)))
    return path.open("rb")


class _ZstdFile(io.RawIOBase):
    """A zstd file of one or many frames. The library's own stream ends quietly where a file was cut off; this one does not."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        decompressor = zstandard.ZstdDecompressor(max_window_size=LONGEST_WINDOW)
        self._reader = decompressor.stream_reader(self._file, read_across_frames=True, closefd=False)

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._file.close()
        super().close()

    def readinto(self, buffer: "bytearray | memoryview") -> int:  # type: ignore[override]
        size = self._reader.readinto(buffer)
        if size == 0 and not _ends_with_a_frame(self._file):
            raise EOFError("the file ends within a zstd frame")
        return size


def _ends_with_a_frame(file: IO[bytes]) -> bool:
    """Walk the headers of frames and blocks (RFC 8878, section 3.1) to the end of the file; nothing is unpacked."""
    end = file.seek(0, os.SEEK_END)
    position = 0
    while position < end:
        file.seek(position)
        head = file.read(18)  # the longest header of a frame
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
            value = int.from_bytes(header, "little")
            is_last, kind, size = bool(value & 1), value >> 1 & 3, value >> 3
            position += 3 + (1 if kind == REPEATED_BYTE else size)
        position += 4 if has_checksum else 0
    return position == end
