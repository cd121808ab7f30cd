"""Looking a datastore over: every checksum, the catalogue, and a random sample of keys made anew."""

from dataclasses import dataclass

import numpy as np

from retro.errors import ArtifactError
from retro.retrieval.datastore.datastore import SEGMENTS, Datastore
from retro.stages.files import file_checksum
from retro.stages.progress import Progress

TOLERANCE = 2e-2
"""How far a key made anew may be from the stored one, relative to its length: float16 and other batches both round."""


@dataclass(frozen=True)
class Verified:
    """What was looked at; all of it was sound."""

    version: int
    files: int
    documents: int
    keys: int
    recomputed: int


def verify(
    datastore: Datastore, sample: int = 100, seed: int = 0, progress: Progress | None = None
) -> Verified:
    """Check the catalogue, all files against their checksums, the counts against each other, and `sample` keys against their text."""
    datastore.ledger.check()
    with datastore.reading() as snapshot:
        rows = datastore.ledger.segments()
        live = datastore.ledger.rows("SELECT count(*) FROM documents WHERE deleted IS NULL")[0][0]
    if live != snapshot.num_documents:
        raise ArtifactError(
            f"{datastore.path} names {live} documents and holds {snapshot.num_documents}; expected as many; restore a copy"
        )
    checked = 0
    total = sum(len(row.files) for row in rows)
    for row in rows:
        for name, checksum in row.files.items():
            file = datastore.path / SEGMENTS / row.name / name
            if not file.exists() or file_checksum(file) != checksum:
                found = "is missing" if not file.exists() else "does not match its checksum"
                raise ArtifactError(
                    f"{file} {found}; expected what was committed; restore it, or remove the datastore and run: retro build"
                )
            checked += 1
            if progress:
                progress(checked, total)
    return Verified(
        snapshot.version.number, checked, live, len(snapshot), _recompute(datastore, sample, seed)
    )


def _recompute(datastore: Datastore, sample: int, seed: int) -> int:
    """Embed a random sample of chunks again and compare; how many there were."""
    snapshot, rng = datastore.snapshot(), np.random.default_rng(seed)
    chunks = np.concatenate(
        [s.chunks[live[s.places]] for s, live in zip(snapshot.segments, snapshot.live, strict=True)]
        or [np.zeros(0, int)]
    )
    picked = np.sort(rng.choice(chunks, size=min(sample, len(chunks)), replace=False))
    if not len(picked):
        return 0
    tokens = snapshot.values(picked, datastore.chunk_len)
    _, stored = snapshot.keys(picked)
    fresh = datastore.embedder.embed([datastore.tokenizer.decode(row.tolist()) for row in tokens])
    apart = np.linalg.norm(fresh - stored.astype(np.float32), axis=1) / np.maximum(
        np.linalg.norm(fresh, axis=1), 1e-6
    )
    if (apart > TOLERANCE).any():
        chunk = int(picked[np.argmax(apart)])
        raise ArtifactError(
            f"the key of chunk {chunk} in {datastore.path} is not that of its text (apart by {apart.max():.3f}); expected at most {TOLERANCE}; "
            "remove the datastore and run: retro build"
        )
    return len(picked)
