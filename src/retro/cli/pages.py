"""What commands that write a page say on it: the command itself, the corpus, and where its documents are."""

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from retro.wording import counted

if TYPE_CHECKING:
    from retro.pages.shell import Made
    from retro.pages.sources import SourceFiles
    from retro.workspace import OpenRun


def made(command: str, arguments: Sequence[str], opened: "OpenRun") -> "Made":
    """Where the page of a command comes from."""
    from retro.pages.shell import Made

    return Made(shlex.join(["retro", command, *arguments]), _corpus(opened))


def _corpus(opened: "OpenRun") -> str:
    """The text that a run retrieves from, or that it was trained on where it retrieves nothing."""
    from retro.pages.sources import corpus_words

    if opened.work is not None and opened.datastore_path is None and opened.work.tokens_path.exists():
        return corpus_words(opened.work)
    if opened.work is None and opened.datastore_path is None:
        return f"not at hand: the run {opened.path} stands by itself"
    datastore = opened.datastore()
    snapshot = datastore.snapshot()
    return (
        f"datastore {datastore.path}: {counted(snapshot.num_documents, 'document')}, "
        f"{counted(snapshot.num_tokens(), 'token')}"
    )


def source_files(opened: "OpenRun", *more: str) -> "SourceFiles":
    """Where the documents of a run's workspace, and of other sources that were named, are on this machine."""
    from retro.pages.sources import SourceFiles

    return SourceFiles.of(opened.work.text_path if opened.work else None, *filter(None, more))
