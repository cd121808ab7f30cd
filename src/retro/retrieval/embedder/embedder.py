"""What makes keys and queries, by one frozen function: a BERT-like model, or a table for quick work."""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from retro import catalogue
from retro.catalogue import hub
from retro.errors import DataError
from retro.retrieval.embedder.bert import BertEmbedder
from retro.retrieval.embedder.static import StaticEmbedder, find_table
from retro.stages.executor import Executor
from retro.stages.progress import Progress, no_progress


class Embedder(Protocol):
    """Makes one key for each text. Several threads may ask at the same time."""

    name: str
    precision: str
    """What its products are computed in, as it was asked for; it changes a key only by rounding."""
    width: int
    fingerprint: str
    """Changes with anything that changes a key."""
    batch_invariant: bool
    """Whether a text's key is the same to the bit, whatever else is embedded with it."""

    def embed(self, texts: Sequence[str], progress: Progress = no_progress) -> np.ndarray:
        """Keys as float32, in the order of the texts."""
        ...


def open_embedder(name: str, precision: str = "float32", progress: Progress = no_progress) -> Embedder:
    """Open an embedder by its catalogue name, its folder or its hub id; the first is fetched if missing.

    A folder that holds one table and a tokenizer is a static embedder. `precision` is float32, bfloat16, or
    auto: bfloat16 where the hardware has it.
    """
    if not name:
        raise DataError("the embedder has no name; expected a catalogue name, a folder or a hub id")
    catalogue.fetch_if_missing(name, progress)
    folder = catalogue.fetched(name).path if name in catalogue.ENTRIES else Path(name)
    if found := find_table(folder):
        return StaticEmbedder(name, *found)
    if folder.is_dir() and not (folder / "config.json").exists():
        raise DataError(
            f"{folder} holds no embedder; expected a Hugging Face model with its config.json, or a table "
            "with its tokenizer.json; run: retro fetch minilm"
        )
    if not folder.exists() and not hub.is_id(name):
        raise DataError(
            f"no embedder could be loaded from {name!r}, which is no folder and no id of the hub; "
            "expected a catalogue name, a folder or a hub id; run: retro fetch minilm"
        )
    return BertEmbedder(name, str(folder) if folder.exists() else name, precision)


def embed_shards(
    executor: Executor, embedder: Embedder, shards: Iterable[Sequence[str]]
) -> Iterator[np.ndarray]:
    """Keys of each shard's texts, as float16, in order; few shards are held at once.

    Batches are formed within a shard, so the keys depend neither on the number of workers nor on which shards
    were made before.
    """
    # A name of the catalogue or of a hub is opened by every machine for itself.
    executor.needs(None, *(path for path in [Path(embedder.name)] if path.is_dir()))
    return executor.map(_ShardEmbedder(embedder), shards)


class _ShardEmbedder:
    """Embeds a shard wherever it is sent. The embedder stays behind: every worker opens its own, once."""

    def __init__(self, embedder: Embedder) -> None:
        self.name = embedder.name
        self.precision = embedder.precision
        self.fingerprint = embedder.fingerprint
        self.embedder: Embedder | None = embedder

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "embedder": None}

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        embedder = self.embedder or open_in_worker(self.name, self.precision, self.fingerprint)
        return embedder.embed(texts).astype(np.float16)


# One for each worker process, kept from shard to shard.
@lru_cache(maxsize=1)
def open_in_worker(name: str, precision: str, fingerprint: str) -> Embedder:
    torch.set_num_threads(1)  # there is a worker a core
    embedder = open_embedder(name, precision)
    if embedder.fingerprint != fingerprint:
        raise DataError(
            f"the embedder {name!r} changed while its keys were made; expected {fingerprint}; "
            "run the command again"
        )
    return embedder
