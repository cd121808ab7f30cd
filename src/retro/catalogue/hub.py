"""The Hugging Face hub: whether it can be asked, and files of it.

Without a connection its libraries would try for a minute.
"""

import importlib
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from retro.errors import DataError

ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
"""NAME or OWNER/NAME."""
UNREACHABLE = "the hub cannot be reached, and its cache does not hold it"
SECONDS = 5.0
"""How long the hub has to answer at all."""


@cache
def is_reachable() -> bool:
    """Whether the hub answers; asked once, by a short request that goes through the user's proxy."""
    constants: Any = importlib.import_module("huggingface_hub.constants")
    utils: Any = importlib.import_module("huggingface_hub.utils")
    errors: Any = importlib.import_module("huggingface_hub.errors")
    if constants.HF_HUB_OFFLINE:
        return False
    # A missing connection is an error of the HTTP library below, which the hub's own error derives from.
    try:
        utils.get_session().head(constants.ENDPOINT, timeout=SECONDS)
    except (OSError, *errors.HfHubHTTPError.__bases__):
        return False
    return True


def is_id(name: str) -> bool:
    """Whether a model or a tokenizer of the hub can have this name; a mistyped path often cannot."""
    return bool(ID.fullmatch(name)) and not name.startswith(".")


def snapshot(name: str, files: Sequence[str], what: str) -> Path:
    """The folder with those files of a hub id that match the patterns, downloaded if the hub can be asked."""
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    local = not is_reachable()
    try:
        return Path(
            huggingface_hub.snapshot_download(name, allow_patterns=list(files), local_files_only=local)
        )
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = UNREACHABLE if local else str(error).splitlines()[0]
        raise DataError(
            f"no {what} could be fetched for {name!r} ({reason}); expected a folder or a hub id"
        ) from None
