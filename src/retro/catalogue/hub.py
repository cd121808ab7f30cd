"""Whether the Hugging Face hub can be asked: without a connection its libraries try for a minute."""

import importlib
import re
from functools import cache
from typing import Any

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
