"""What a stage costs a token, a chunk or a key, as it was measured on this machine; kept in a file.

Times are of one core. Another machine's cores are taken to be as fast as these, unless the plan says how much
faster they are.
"""

import platform
from dataclasses import dataclass
from pathlib import Path

import retro
from retro.catalogue.fetching import cache_dir
from retro.config.as_json import from_dict, to_dict
from retro.errors import RetroError
from retro.stages.files import make_fingerprint, read_object, write_json


@dataclass(frozen=True, kw_only=True)
class Coefficients:
    """Measured on real text, keys of the embedder's width and a small RETRO; seconds are of one core."""

    embedder: str
    width: int
    """Numbers in a key."""
    processor: str
    measured: str
    """When."""
    bytes_per_token: float
    tokens_per_document: float
    reading: float
    """Seconds a byte of text takes to be read, cleaned and split."""
    cutting: float
    """Seconds a byte takes to be cut into tokens."""
    packing: float
    """Seconds a byte takes among duplicates and contamination."""
    text_disk: float
    """Bytes on disk for a byte of text, compressed, with what tells its documents."""
    token_disk: float
    """Bytes on disk for a token, as it is cut and as it is packed."""
    embedding: float
    """Seconds a chunk takes to become a key."""
    pair: float
    """Seconds to compare two keys."""
    link: float
    """Seconds a key takes in a graph of 1,024 keys; `link_log` is added whenever the graph doubles."""
    link_log: float
    walk: float
    """Seconds a query takes in a graph of 1,024 keys; `walk_log` is added whenever the graph doubles."""
    walk_log: float
    graph_disk: float
    """Bytes of a graph for a key, beside the key itself."""
    code: float
    """Seconds a key takes to be compressed into its list."""
    scan: float
    """Seconds to compare a query with a compressed key."""
    train_speed: float
    """Floating point operations a second in training."""


def place_of(embedder: str) -> Path:
    """Where the coefficients of this machine and this version are kept."""
    known = make_fingerprint(retro.__version__, platform.node(), platform.processor(), embedder)
    return cache_dir() / "plan" / f"{known}.json"


def read_coefficients(path: Path) -> Coefficients | None:
    """Those that were measured before, if there are any that can be read."""
    if not path.exists():
        return None
    try:
        return from_dict(Coefficients, read_object(path, "measure again"), str(path))
    except RetroError:
        return None  # of another version; measuring takes a minute


def keep_coefficients(coefficients: Coefficients, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, to_dict(coefficients))
