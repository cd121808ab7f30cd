"""Neighbours that belong to one piece of work, such as an evaluation, and stay what they were when it began.

The neighbours of a workspace are found anew whenever the datastore has grown. Work that was done with the
old ones keeps these in a folder of its own. They are numbers of chunks, never text: what is deleted from
the datastore is gone from pinned neighbours as well.
"""

import shutil
from pathlib import Path

import numpy as np

from retro.corpus.tokens import TokenStore
from retro.errors import ArtifactError
from retro.retrieval.datastore import Datastore
from retro.retrieval.neighbours import Neighbours, recorded_version
from retro.stages.files import link_or_copy, read_object, write_json
from retro.stages.stage import MANIFEST, Artifact, open_artifact

RECORD = "pinned.json"
ROWS = 8192
"""Chunks whose neighbours are looked up together."""


class PinnedNeighbours(Neighbours):
    """Neighbours in a folder that `pin` made. They have the fingerprint of those that were pinned."""

    def __init__(self, artifact: Artifact, store: TokenStore, datastore: Datastore) -> None:
        super().__init__(artifact, store, datastore)
        self._record = read_object(artifact.file(RECORD), self._remedy)
        kinds = {"fingerprint": str, "version": int, "live": list}
        is_whole = all(isinstance(self._record.get(name), kind) for name, kind in kinds.items())
        if not is_whole or not all(isinstance(number, int) for number in self._record["live"]):
            raise self._damaged(f"expected {', '.join(kinds)}")

    @property
    def _remedy(self) -> str:
        return f"remove {self.artifact.path} and run the same command again"

    def _damaged(self, expected: str) -> ArtifactError:
        return ArtifactError(f"{self.artifact.file(RECORD)} is damaged; {expected}; {self._remedy}")

    @property
    def fingerprint(self) -> str:
        fingerprint: str = self._record["fingerprint"]
        return fingerprint

    @property
    def version(self) -> int:
        """The datastore's version when they were pinned."""
        version: int = self._record["version"]
        return version

    def num_deleted(self, k: int) -> int:
        """How many of the first k neighbours of all chunks have been deleted from the datastore since."""
        deleted = sum(self._record["live"][:k]) - sum(_live_by_rank(self)[:k])
        if deleted < 0:
            raise self._damaged("expected at least as many neighbours as there are now")
        return deleted


def pin(neighbours: Neighbours, folder: Path) -> PinnedNeighbours:
    """Keep neighbours in a folder, by links to their files or by copies."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in neighbours.artifact.manifest["files"]:
        link_or_copy(neighbours.artifact.file(name), folder / name)
    record = {
        "fingerprint": neighbours.fingerprint,
        "version": neighbours.snapshot.version.number,
        "live": _live_by_rank(neighbours),
    }
    write_json(folder / RECORD, record)
    # The manifest comes last: where it is, the rest is whole.
    link_or_copy(neighbours.artifact.file(MANIFEST), folder / MANIFEST)
    return PinnedNeighbours(
        open_artifact(folder, "neighbours", "retro neighbours WORK"), neighbours.store, neighbours.datastore
    )


def open_pinned(folder: Path, store: TokenStore, datastore: Datastore) -> PinnedNeighbours | None:
    """The neighbours that were pinned in a folder, if there are any of this store and this datastore."""
    if not (folder / MANIFEST).exists():
        return None
    artifact = open_artifact(folder, "neighbours", "retro neighbours WORK")
    is_whole = all(artifact.file(name).exists() for name in (*artifact.manifest["files"], RECORD))
    belongs = (
        artifact.inputs["tokens"] == store.fingerprint and recorded_version(artifact, datastore) is not None
    )
    return PinnedNeighbours(artifact, store, datastore) if is_whole and belongs else None


def _live_by_rank(neighbours: Neighbours) -> list[int]:
    """How many chunks have a neighbour of each rank that the datastore still holds."""
    counts = np.zeros(neighbours.max_neighbours, dtype=np.int64)
    for start in range(0, len(neighbours.chunks), ROWS):
        chunks = np.asarray(neighbours.chunks[start : start + ROWS], dtype=np.int64)
        counts += neighbours.snapshot.is_live(chunks).sum(axis=0)
    found: list[int] = counts.tolist()
    return found
