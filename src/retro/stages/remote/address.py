"""A folder at an address that fsspec knows: what is asked of it, and one line for each failure."""

import errno
import os
import re
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from retro.errors import ArtifactError, ConfigError, DataError, MissingExtraError, RetroError

ADDRESS = re.compile(r"(?!https?:)[a-z][a-z0-9+.-]*://\S+")
"""What is taken for an address. The web's own are not: nothing can be written there."""
EXTRAS = {"s3": "s3", "s3a": "s3"}
"""Protocols whose package is an extra of ours."""
WITHOUT_FOLDERS = ("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "memory")
"""Protocols of object stores, where a name may have slashes and no folder has to be made."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
KEPT = "what this machine has is kept; run the same command again"


class MirrorError(ArtifactError):
    """A mirror and its address that do not go together; the message names both."""


class GoneError(DataError):
    """What an earlier look had seen at an address is there no longer."""


class TakenError(DataError):
    """A name at an address that was to be made is there already."""


def is_address(text: str) -> bool:
    return ADDRESS.fullmatch(text) is not None


class RemoteFolder:
    """Files by their names below one address. Every failure is one line that names the address."""

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")
        self._files: Any
        self._files, self._root = _open(self.address)
        protocol = self._files.protocol
        self._protocols = {protocol} if isinstance(protocol, str) else set(protocol)
        self._made: set[str] = set()

    def names(self, below: str) -> dict[str, int]:
        """The files below a folder, and how large they are; none if there is no such folder."""
        with self._explained():
            self._files.invalidate_cache()
            found = self._files.find(self._path(below), detail=True)
        prefix = self._root.rstrip("/") + "/"
        return {str(path).removeprefix(prefix): int(about["size"]) for path, about in found.items()}

    def read(self, name: str) -> bytes:
        with self._explained(name):
            content: bytes = self._files.cat_file(self._path(name))
        return content

    def create(self, name: str, content: bytes) -> None:
        """Write a file that is not there yet; of two who try, one meets `TakenError`.

        This is as sure as the protocol: S3, Google's and Azure's stores and file systems decide it
        themselves; others are asked first, which leaves a moment between.
        """
        with self._explained():
            self._make_folder(name)
            try:
                if "file" in self._protocols:
                    _link_new(Path(self._path(name)), content)
                else:
                    self._files.pipe_file(self._path(name), content, mode="create")
            except FileExistsError:
                raise TakenError(f"{self.address}/{name} is there already; expected to make it") from None

    def write(self, name: str, content: bytes) -> None:
        with self._explained():
            self._make_folder(name)
            self._files.pipe_file(self._path(name), content)

    def upload(self, source: Path, name: str) -> None:
        with self._explained():
            self._make_folder(name)
            self._files.put_file(str(source), self._path(name))

    def download(self, name: str, target: Path) -> None:
        with self._explained(name):
            self._files.get_file(self._path(name), str(target))

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            try:
                with self._explained(name):
                    self._files.rm_file(self._path(name))
            except GoneError:
                pass  # somebody else was quicker

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"

    def _make_folder(self, name: str) -> None:
        folder = self._path(name).rpartition("/")[0]
        if folder not in self._made and not self._protocols & set(WITHOUT_FOLDERS):
            self._files.makedirs(folder, exist_ok=True)
        self._made.add(folder)

    @contextmanager
    def _explained(self, name: str = "") -> Iterator[None]:
        """Turn what a protocol's library raises into one line. `name` is a file that was seen before."""
        try:
            yield
        except RetroError:
            raise
        except Exception as error:  # every protocol's library has errors of its own
            if isinstance(error, OSError) and error.errno in FULL:
                raise
            if name and isinstance(error, FileNotFoundError):
                raise GoneError(
                    f"{self.address}/{name} is gone; expected it since an earlier look; {KEPT}"
                ) from error
            raise DataError(self._line(error)) from error

    def _line(self, error: Exception) -> str:
        reason = " ".join((getattr(error, "strerror", None) or str(error) or type(error).__name__).split())
        if isinstance(error, PermissionError) or "Credentials" in type(error).__name__:
            wanted = "credentials that may read and write there"
            if EXTRAS.keys() & self._protocols:
                wanted += ", such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            return f"{self.address} cannot be used ({reason}); expected {wanted}; {KEPT}"
        if isinstance(error, FileNotFoundError):
            return f"{self.address} cannot be used ({reason}); expected a bucket that is there; {KEPT}"
        if isinstance(error, NotImplementedError):
            return f"{self.address} cannot be used ({reason}); expected a protocol that can be written"
        return f"{self.address} cannot be used ({reason}); expected it to answer; {KEPT}"


def _link_new(path: Path, content: bytes) -> None:
    """A file of this machine that is whole or not there, and of which only one can be made."""
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    temporary.write_bytes(content)
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        with path.open("xb") as file:
            file.write(content)
    finally:
        temporary.unlink()


def _open(address: str) -> tuple[Any, str]:
    """The file system of an address, and the path in it."""
    # Here and not above: fsspec takes a while to load, and nothing else needs it.
    import fsspec

    protocol = address.partition("://")[0]
    try:
        files, root = fsspec.core.url_to_fs(address)
    except ImportError as error:
        if protocol in EXTRAS:
            raise MissingExtraError("s3fs", EXTRAS[protocol]) from None
        raise ConfigError(f"{address} needs a package that is not installed ({error}); install it") from None
    except ValueError as error:
        known = ", ".join(sorted(fsspec.available_protocols()))
        raise ConfigError(f"{address} cannot be used ({error}); expected a protocol of {known}") from None
    except Exception as error:  # every protocol's library has errors of its own
        raise DataError(f"{address} cannot be used ({' '.join(str(error).split())}); {KEPT}") from error
    return files, str(root)
