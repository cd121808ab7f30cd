"""The datastore of a workspace, and the neighbours of its chunks."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

from retro.config import FILE_BYTES, CorpusConfig, DatastoreConfig
from retro.config.as_json import from_dict
from retro.corpus import readers
from retro.corpus.documents import SPLITS, Document, split_of
from retro.corpus.readers import FieldMap
from retro.corpus.tokens import TokenStore
from retro.retrieval.datastore import Datastore
from retro.retrieval.datastore.build import build_datastore, sync_datastore
from retro.retrieval.datastore.difference import Synced
from retro.retrieval.finding import find_neighbours as find_in
from retro.retrieval.finding import former_of
from retro.retrieval.neighbours import Neighbours
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
    # Closed at the end: idle processes would hold their copy of the embedder through all of training.
    with closing(executor or LocalExecutor()) as workers:
        build_datastore(stores, work.tokenizer_path, work.datastore_path, config, progress, workers)
    # The build writes to the folder; the workspace then opens it once and shares it.
    return work.datastore()


def sync(work: Workspace, progress: Progress = no_progress, executor: Executor | None = None) -> Synced:
    """Bring the datastore to the state of the training tokens."""
    return sync_datastore(work.datastore(), work.corpus().train, progress, executor)


def sync_sources(
    datastore: Datastore,
    sources: Sequence[str],
    fields: FieldMap | None = None,
    work: Workspace | None = None,
    progress: Progress = no_progress,
    executor: Executor | None = None,
) -> tuple[Synced, int]:
    """Bring the documents of these sources to the state of their files; and how many were kept out.

    In a workspace those are kept out that its corpus holds out or has removed: a model that is scored on a
    document must not find it in its datastore.
    """
    is_kept_out = _kept_out_of(work) if work is not None else None
    num_kept_out = 0

    def documents() -> Iterator[Document]:
        nonlocal num_kept_out
        for document in (document for source in sources for document in readers.read(source, fields)):
            if is_kept_out is not None and is_kept_out(document):
                num_kept_out += 1
            elif document.text.strip():
                yield document

    return datastore.sync(documents(), progress, executor), num_kept_out


def _kept_out_of(work: Workspace) -> Callable[[Document], bool]:
    """Whether a document stays out of the datastore, by the settings of the corpus and what it removed."""
    settings = work.corpus().train.artifact.config
    config = from_dict(CorpusConfig, {key: value for key, value in settings.items() if key != "split"})
    removed = {(row["source"], row["document"]) for row in work.removed_rows()}

    def is_kept_out(document: Document) -> bool:
        return split_of(document, config) != "train" or (document.source, document.id) in removed

    return is_kept_out


def find_neighbours(
    work: Workspace,
    split: str,
    progress: Progress = no_progress,
    executor: Executor | None = None,
    file_bytes: int = FILE_BYTES,
) -> Neighbours:
    """Find the neighbours of one split's chunks in the datastore."""
    path = work.neighbours_path(split)
    return find_in(work.store(split), work.datastore(), path, progress, executor, file_bytes)


def neighbours_paths(work: Workspace) -> list[Path]:
    """The places of all splits' neighbours, and of those that are just being brought up to date."""
    places = [work.neighbours_path(split) for split in SPLITS]
    return [*places, *map(former_of, places)]


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
