"""Folders of which one file at a time is changed, and put back."""

from collections.abc import Callable, Sequence
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.mutations import changed_file
from tests.fuzz.watch import expect_sound, inputs

ASIDE = ("-wal", "-shm", "README.md")
"""SQLite's own files belong to the connections that are open, and nobody reads a card."""


def files_below(path: Path) -> list[Path]:
    """The files of a folder, or the file itself, that may be changed."""
    files = [path] if path.is_file() else [file for file in sorted(path.rglob("*")) if file.is_file()]
    return [file for file in files if not file.name.endswith(ASIDE)]


class Spoiling:
    """What the files of a folder hold, so that they can be restored."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pristine = {file: file.read_bytes() for file in files_below(folder)}

    def write(self, file: Path, content: bytes) -> None:
        # A file of its own: the former one may still be mapped into memory.
        file.unlink(missing_ok=True)
        file.write_bytes(content)

    def restore(self) -> None:
        for file in sorted(self.folder.rglob("*")):
            if file.is_file() and file not in self.pristine:
                file.unlink()
        for file, content in self.pristine.items():
            if not file.exists() or file.read_bytes() != content:
                self.write(file, content)


def fuzz_files(
    target: str, share: float, folder: Path, use: Callable[[], object], files: Sequence[Path] = ()
) -> None:
    """Use a folder with one of its files changed, or missing now and then; `files` are those to change."""
    use()  # as it is, it must be sound
    spoiling = Spoiling(folder)
    choices = list(files) or list(spoiling.pristine)

    @inputs(share)
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        file = data.draw(st.sampled_from(choices))
        if data.draw(st.integers(0, 19)):
            spoiling.write(file, data.draw(changed_file(file.name, spoiling.pristine[file])))
        else:
            file.unlink()
        try:
            expect_sound(target, use)
        finally:
            spoiling.restore()

    check()
