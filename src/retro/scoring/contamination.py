"""What text that is almost the test text brings: the same documents scored while it stands in the datastore,
and once it is taken out.

Only the datastore changes. What a model has learned from such text in training is another matter.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from retro.config import EvaluationConfig
from retro.corpus.decontamination import Contamination, find_contaminated
from retro.corpus.documents import Document
from retro.corpus.tokens import TokenStore
from retro.machine import product_dtype
from retro.model.protocol import LanguageModel
from retro.retrieval.chunks import ChunkTable
from retro.retrieval.datastore import Datastore
from retro.retrieval.datastore.copying import copied
from retro.retrieval.finding import find_neighbours
from retro.retrieval.neighbours import Neighbours
from retro.scoring.bits_per_byte import score_batch
from retro.scoring.windows import Window, beginnings, scored_places
from retro.stages.progress import Progress, no_progress


@dataclass(frozen=True)
class Memory:
    """One state of the datastore, and what the documents cost with it."""

    limit: float | None
    """Documents of the datastore are less alike than this; None: whatever is there."""
    came: int
    """Documents that were put back for this state."""
    went: int
    """Documents that were taken out, from the one before."""
    concerned: int
    """Test documents that these were close to."""
    bits: np.ndarray
    """Of each test document."""


@dataclass(frozen=True)
class Contaminated:
    """Bits of the beginnings of test documents, with the datastore more and more unlike them."""

    num_bytes: np.ndarray
    """Of each document, as far as it is scored."""
    off: np.ndarray
    """Bits of each document without retrieval."""
    states: list[Memory]
    """First with what was left out, if anything was; then as it is; then without what is close."""
    most_similar: float
    """The largest similarity of a document of the datastore, as it is, with one of the test's."""


def measure_contamination(
    model: LanguageModel,
    datastore: Datastore,
    store: TokenStore,
    config: EvaluationConfig,
    left_out: Iterable[Document],
    limits: Sequence[float],
    ngram: int,
    k: int = 2,
    num_documents: int = 0,
    scratch: Path | None = None,
    progress: Progress = no_progress,
) -> Contaminated:
    """Score the beginnings of test documents with and without documents that are almost the same.

    `left_out` is what decontamination removed before: those of its documents that are close to scored ones
    are put back first. Then whatever reaches each of the `limits` is taken out, the highest limit first:
    similarities of Jaccard, between the n-grams of a document and those of a scored one. Of the store
    `num_documents` are scored, or all that read neighbours, a window of each. The datastore itself is not
    changed.
    """
    limits = sorted(limits, reverse=True)
    drawn = beginnings(ChunkTable(store, datastore.chunk_len), num_documents or len(store), config.window)
    part = store.select([window.document for window in drawn])
    scored = _Scored(model, part, config, datastore.chunk_len, k)
    held_out = [part.document(number) for number in range(len(part))]
    # Read once more than is held in memory: their tokens are compared, and their text may be added.
    removed = list(left_out)
    encoded = [np.array(datastore.tokenizer.encode(document.text)) for document in removed]
    near = find_contaminated(encoded, held_out, ngram, limits[-1])
    numbers, texts = _live(datastore)
    close = find_contaminated(texts, held_out, ngram, limits[-1])
    states: list[Memory] = []
    with copied(datastore, scratch) as copy:
        total = 2 + bool(near) + len(limits)
        progress(0, total)
        off = scored.bits(None)
        progress(1, total)
        if near:
            version = copy.snapshot().version.number
            copy.add([removed[entry.document] for entry in near])
            came = copy.ledger.added_since(version, copy.snapshot().version.number)
            states.append(Memory(None, len(near), 0, _held_out(near), scored.with_datastore(copy)))
            _delete(copy, came)
            progress(2, total)
        states.append(Memory(None, 0, 0, 0, scored.with_datastore(copy)))
        before = np.inf
        for limit in limits:
            progress(total - len(limits) + limits.index(limit), total)
            gone = [entry for entry in close if entry.similarity >= limit]
            # What went for a higher limit is gone already; copies are equally close and go together.
            leaving = [numbers[entry.document] for entry in gone if entry.similarity < before]
            before = limit
            bits = states[-1].bits
            if leaving:
                _delete(copy, leaving)
                bits = scored.with_datastore(copy)
            states.append(Memory(limit, 0, len(leaving), _held_out(gone), bits))
        progress(total, total)
    return Contaminated(
        num_bytes=scored.num_bytes(datastore.tokenizer.token_lengths),
        off=off,
        states=states,
        most_similar=max((entry.similarity for entry in close), default=0.0),
    )


class _Scored:
    """The beginnings of some documents, scored with any datastore."""

    def __init__(
        self, model: LanguageModel, store: TokenStore, config: EvaluationConfig, chunk_len: int, k: int
    ) -> None:
        self.model = model
        self.store = store
        self.k = k
        self.dtype: torch.dtype = product_dtype(config.precision, model.device)
        self.table = ChunkTable(store, chunk_len)
        self.windows: list[Window] = beginnings(self.table, len(store), config.window)

    def with_datastore(self, datastore: Datastore) -> np.ndarray:
        """Bits of every document with the neighbours that this datastore has."""
        # Neighbours of the state before are brought up to date: only what has changed is searched.
        return self.bits(find_neighbours(self.store, datastore, datastore.path.with_name("neighbours")))

    def bits(self, neighbours: Neighbours | None) -> np.ndarray:
        """Bits of every document, with neighbours or without."""
        k = self.k if neighbours is not None else 0
        return np.array(
            [
                score_batch(self.model, self.table, [window], neighbours, k, self.dtype).sum()
                for window in self.windows
            ]
        )

    def num_bytes(self, token_lengths: np.ndarray) -> np.ndarray:
        """The bytes that are scored of every document."""
        places = [scored_places([window]) for window in self.windows]
        return np.array([token_lengths[np.asarray(self.store.tokens[place])].sum() for place in places])


def _live(datastore: Datastore) -> tuple[list[int], list[np.ndarray]]:
    """The numbers and the tokens, which stay on disk, of all documents that are there."""
    found = list(datastore.snapshot().texts())
    return [number for number, _ in found], [tokens for _, tokens in found]


def _delete(datastore: Datastore, numbers: Sequence[int]) -> None:
    """Delete documents by their text: two sources may use the same id."""
    version = datastore.snapshot().version.number
    rows = datastore.ledger.documents(numbers, version)
    datastore.delete(content_hashes=list(dict.fromkeys(row["content_hash"] for row in rows.values())))


def _held_out(found: Sequence[Contamination]) -> int:
    return len({entry.held_out for entry in found})
