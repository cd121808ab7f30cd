"""Datasets of the Hugging Face hub, streamed by name."""

import importlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from retro.catalogue.hub import is_reachable
from retro.corpus.documents import Document
from retro.corpus.readers.problems import Problems
from retro.corpus.readers.records import FieldMap, to_document
from retro.errors import DataError, MissingExtraError

PREFIX = "hf:"
BROKEN = (OSError, ValueError)
"""What opening and streaming a dataset raise, be it the network's fault, Arrow's or the decoder's."""
TIMEOUT = 10.0
"""Seconds that the hub has to say which revision is the newest."""


def read_hub(source: str, fields: FieldMap, problems: Problems) -> Iterator[Document]:
    """One document a row of `hf:OWNER/NAME` or `hf:OWNER/NAME/CONFIG`, of train or what `@SPLIT` names."""
    name, config, split = parse_hub_name(source)
    try:
        datasets: Any = importlib.import_module("datasets")
    except ImportError:
        raise MissingExtraError("datasets", "hf") from None
    if not is_reachable():
        _stay_offline()
    try:
        # Streamed: only what is read is downloaded, and nothing is kept.
        rows = datasets.load_dataset(name, config, split=split, streaming=True)
    except BROKEN as error:
        reason = " ".join(str(error).split())
        raise DataError(
            f"{source} could not be opened ({reason}); expected hf:OWNER/NAME/CONFIG@SPLIT of the hub"
        ) from None
    return documents_of_rows(rows, source, name, fields, problems)


def _stay_offline() -> None:
    """Have the library read its cache at once: without a connection it would first try for a minute."""
    with suppress(ImportError):
        config: Any = importlib.import_module("datasets.config")
        config.HF_HUB_OFFLINE = True


def parse_hub_name(source: str) -> tuple[str, str | None, str]:
    """Name, config and split. Without an owner, a config needs a leading slash: `hf:/NAME/CONFIG`."""
    path, _, split = source.removeprefix(PREFIX).partition("@")
    parts = path.split("/", 2)
    name = "/".join(parts[:2]).removeprefix("/")
    config = parts[2] if len(parts) > 2 else None
    # The library takes dots for folders, and would read all that is below them.
    if not name.strip("./") or config == "":
        raise DataError(
            f"{source!r} names no dataset; expected hf:OWNER/NAME, hf:OWNER/NAME/CONFIG or either with @SPLIT"
        )
    return name, config, split or "train"


def revision_of(name: str) -> str:
    """The commit of a dataset's newest revision; empty where nobody can say.

    The hub is asked first. Offline it is the revision that was last downloaded to this machine, if any was.
    """
    try:
        hub: Any = importlib.import_module("huggingface_hub")
        errors: Any = importlib.import_module("huggingface_hub.errors")
    except ImportError:
        return ""
    # A missing connection is an error of the HTTP library below, which the hub's own error derives from.
    unreachable = (*BROKEN, *errors.HfHubHTTPError.__bases__)
    try:
        return hub.HfApi().dataset_info(name, timeout=TIMEOUT).sha or ""
    except unreachable:
        # Where the hub's library notes which commit a branch was at when it was downloaded.
        folder = Path(hub.constants.HF_HUB_CACHE) / f"datasets--{name.replace('/', '--')}"
        downloaded = folder / "refs" / "main"
        return downloaded.read_text().strip() if downloaded.is_file() else ""


def documents_of_rows(
    rows: Iterable[dict[str, Any]], where: str, source: str, fields: FieldMap, problems: Problems
) -> Iterator[Document]:
    """One document a row. Rows are fetched as they are asked for, so a fault may show at any of them."""
    number = 0
    try:
        for number, row in enumerate(rows, start=1):
            document = to_document(row, f"{where} row {number}", str(number), source, fields, problems)
            if document is not None:
                yield document
    except BROKEN as error:
        problems.add(
            f"{where} row {number + 1}",
            f"or one soon after it cannot be read ({error}); expected a whole dataset; run again",
        )
