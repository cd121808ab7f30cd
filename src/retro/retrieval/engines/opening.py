"""Opening a search engine by its address: `KIND:WHERE`."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from retro.errors import ConfigError
from retro.retrieval.engines.engine import RAY
from retro.retrieval.engines.milvus import MilvusEngine

if TYPE_CHECKING:
    from retro.retrieval.engines.engine import Engine

LOCAL = "local"
"""This machine's own indexes: no engine at all."""
KINDS: "dict[str, Callable[[str, str], Engine]]" = {"milvus": MilvusEngine}
"""What makes an engine from where it is and the name of a collection. Another kind is one more entry."""


def open_engine(address: str, collection: str) -> "Engine":
    """The engine at an address such as `milvus:http://host:19530`; it is reached when it is first asked."""
    kind, _, where = address.partition(":")
    if kind not in KINDS or not where:
        known = ", ".join([*(f"{name}:WHERE" for name in KINDS), f"{RAY}[:ADDRESS]"])
        raise ConfigError(f"{address!r} is no search engine; expected {LOCAL}, or one of {known}")
    return KINDS[kind](where, collection)
