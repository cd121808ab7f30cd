"""The datastore of a workspace, and the neighbours of its chunks."""

from collections.abc import Sequence
from pathlib import Path

from retro.config import DatastoreConfig
from retro.corpus.tokens import TokenStore
from retro.retrieval.datastore import Datastore
from retro.retrieval.datastore.build import build_datastore
from retro.retrieval.neighbours import Neighbours
from retro.retrieval.neighbours import find_neighbours as find_in
from retro.retrieval.thinning import thinned_neighbours
from retro.stages.executor import Executor, LocalExecutor
from retro.stages.progress import Progress, no_progress
from retro.workspace import Workspace


def build(
    work: Workspace,
    config: DatastoreConfig,
    also: Sequence[Path] = (),
    progress: Progress = no_progress,
    executor: Executor | None = None,
) -> Datastore:
    """Embed and index the training chunks, and those of other token stores, if named."""
    stores = [work.corpus().train, *map(TokenStore.open, also)]
    # The build writes to the folder; the workspace then opens it once and shares it.
    executor = executor or LocalExecutor()
    build_datastore(stores, work.tokenizer_path, work.datastore_path, config, progress, executor)
    return work.datastore()


def find_neighbours(work: Workspace, split: str, progress: Progress = no_progress) -> Neighbours:
    """Find the neighbours of one split's chunks in the datastore."""
    return find_in(work.store(split), work.datastore(), work.neighbours_path(split), progress)


def find_thinned(
    work: Workspace,
    split: str,
    fractions: Sequence[float],
    k: int = 0,
    seed: int = 0,
    progress: Progress = no_progress,
) -> dict[float, Neighbours]:
    """Exact neighbours of a split's chunks in random parts of the datastore, by fraction.

    Each chunk has `k`; 0: as many as the datastore saves.
    """
    folder = work.path / "thinned" / split
    return thinned_neighbours(work.store(split), work.datastore(), folder, fractions, k, seed, progress)
