"""Which evaluation documents the model or its datastore knows already: leakage of whole documents, in plain sight."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from retro.corpus.decontamination import find_pairs
from retro.corpus.tokens import TokenStore
from retro.retrieval.chunks import content_hashes
from retro.retrieval.datastore import Datastore


@dataclass(frozen=True)
class Seen:
    """How many documents of a set stand in the datastore or the training text as well."""

    documents: int
    """All documents of the set."""
    exact: int
    """Those whose text is there, character by character."""
    near: int
    """Others whose 13-gram Jaccard similarity with a document there is at least 0.8, which decontamination would have removed."""
    ids: tuple[str, ...]
    """The ids of both."""

    @property
    def count(self) -> int:
        return self.exact + self.near

    def __str__(self) -> str:
        return f"{self.count} of {self.documents} documents are in the training text or the datastore ({self.exact} exactly, {self.near} nearly)"


def find_seen(
    ids: Sequence[str],
    hashes: np.ndarray,
    documents: Sequence[np.ndarray],
    datastore: Datastore,
    training: TokenStore | None,
) -> Seen:
    """Compare documents, given by their ids, short content hashes and tokens, with all that was trained on or can be retrieved.

    Without the training text of a model from elsewhere, the datastore alone tells what is known.
    Only whole documents are compared: a passage out of a longer document is not found so. The overlap of chunks tells of those.
    """
    trained_on = [] if training is None else [content_hashes(training)]
    known = np.concatenate([*trained_on, *_live_hashes(datastore)])
    exact = np.isin(hashes, known)
    near = np.zeros(len(ids), dtype=bool)
    near[[pair.held_out for pair in find_pairs(_known_documents(datastore, training), documents)]] = True
    return Seen(
        len(ids),
        int(exact.sum()),
        int((near & ~exact).sum()),
        tuple(np.array(ids, dtype=object)[near | exact].tolist()),
    )


def _live_hashes(datastore: Datastore) -> list[np.ndarray]:
    snapshot = datastore.snapshot()
    return [
        segment.documents["content_hash"][live]
        for segment, live in zip(snapshot.segments, snapshot.live, strict=True)
    ]


def _known_documents(datastore: Datastore, training: TokenStore | None) -> Iterator[np.ndarray]:
    """The datastore's documents, and those of the training text that it does not hold."""
    snapshot = datastore.snapshot()
    for segment, live in zip(snapshot.segments, snapshot.live, strict=True):
        for document in segment.documents[live]:
            yield segment.tokens[document["start"] : document["end"]]
    if training is None:
        return
    held = np.concatenate([np.zeros(0, dtype=np.uint64), *_live_hashes(datastore)])
    for number in np.flatnonzero(~np.isin(content_hashes(training), held)):
        yield training.document(int(number))
