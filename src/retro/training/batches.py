"""Training batches: documents packed on the chunk grid, each with the neighbours of its
chunks."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from retro.corpus.mixture import Mixture
from retro.corpus.tokens import TokenStore
from retro.errors import ConfigError
from retro.retrieval.chunks import ChunkTable, content_hashes
from retro.retrieval.neighbours import Neighbours

Made = TypeVar("Made")


@dataclass(frozen=True)
class Batch:
    """Model inputs and the tokens to predict; padding is not predicted."""

    tokens: Int[Tensor, "batch seq"]
    targets: Int[Tensor, "batch seq"]
    neighbours: Int[Tensor, "batch chunk neighbour retrieved"] | None
    neighbour_mask: Bool[Tensor, "batch chunk neighbour"] | None

    def inputs(self, device: torch.device) -> list[Tensor | None]:
        """The four tensors, where the model is."""
        tensors = (self.tokens, self.targets, self.neighbours, self.neighbour_mask)
        return [None if tensor is None else tensor.to(device, non_blocking=True) for tensor in tensors]

    def parts(self, number: int) -> Iterator["Batch"]:
        """The batch cut into equal parts along its sequences."""
        tensors = (self.tokens, self.targets, self.neighbours, self.neighbour_mask)
        for pieces in zip(
            *([None] * number if tensor is None else tensor.chunk(number) for tensor in tensors), strict=True
        ):
            yield Batch(*pieces)


@runtime_checkable
class Batches(Protocol):
    """What training needs of its data: batch number i, and nothing
    remembered between two of them."""

    mixture: Mixture | None
    """The sources that sequences are drawn from by weight, if they are."""

    def rows(self, number: int, start: int, stop: int) -> Batch:
        """Some of the sequences of batch `number`: what one of several processes needs of it."""
        ...

    def documents(self, number: int) -> list[str]:
        """Ids of the documents in batch `number`."""
        ...


class PackedBatches:
    """Batch number i of an endless stream, a pure function of the seed
    and i: a run resumes anywhere.

    An epoch lays all documents, shuffled, one behind the other, each from a fresh chunk on,
    and cuts the row of chunks into sequences. A document's last chunk is padded; it retrieves
    nothing, since nothing of the document follows it. Neighbours from any document that is in
    the same sequence are masked. With a mixture the sources take turns by their weights
    instead, each going through its own sequences.
    """

    def __init__(
        self,
        store: TokenStore,
        chunk_len: int,
        seq_len: int,
        batch_size: int,
        seed: int,
        neighbours: Neighbours | None = None,
        k: int = 0,
        mixture: Mapping[str, float] | None = None,
    ) -> None:
        if seq_len % chunk_len:
            raise ConfigError(f"seq_len is {seq_len}; expected a multiple of chunk_len, {chunk_len}")
        if neighbours is not None and k > neighbours.max_neighbours:
            raise ConfigError(
                f"num_neighbours is {k}; expected at most the {neighbours.max_neighbours} that were saved"
            )
        self.table = neighbours.table if neighbours is not None else ChunkTable(store, chunk_len)
        self.chunk_len = chunk_len
        self.batch_size = batch_size
        self.seed = seed
        self.pad_id = store.pad_id
        self.chunks_per_sequence = seq_len // chunk_len
        self.sequences_per_epoch = -(-len(self.table) // self.chunks_per_sequence)
        self.neighbours = neighbours
        self.k = k
        self.hashes = content_hashes(store)
        self.ids = [document["id"] for document in store.documents]
        # The batches of two epochs may be asked for at once: one is made ahead.
        self._shuffled = lru_cache(maxsize=2)(self._shuffle)
        self._by_source = self._pack_by_source(store, mixture or {})
        sizes = {source: len(rows) for source, rows in self._by_source.items()}
        self.mixture = Mixture(mixture, sizes, seed) if mixture else None

    def __getitem__(self, number: int) -> Batch:
        return self.rows(number, 0, self.batch_size)

    def rows(self, number: int, start: int, stop: int) -> Batch:
        return self._make(self._sequences(number, start, stop))

    def documents(self, number: int) -> list[str]:
        chunks = self._sequences(number, 0, self.batch_size)
        return [self.ids[document] for document in np.unique(self.table.documents[chunks[chunks >= 0]])]

    def _sequences(self, number: int, start: int, stop: int) -> np.ndarray:
        first = number * self.batch_size
        return np.stack([self._sequence(index) for index in range(first + start, first + stop)])

    def _sequence(self, index: int) -> np.ndarray:
        """The chunks of a sequence; −1 fills the end of an epoch, or of a source."""
        if self.mixture is not None:
            draw = self.mixture[index]
            row: np.ndarray = self._by_source[draw.source][draw.document]
            return row
        epoch, position = divmod(index, self.sequences_per_epoch)
        sequence: np.ndarray = self._shuffled(epoch)[position]
        return sequence

    def _shuffle(self, epoch: int) -> np.ndarray:
        rng = np.random.default_rng([self.seed, epoch])
        return rng.permutation(self._pack(rng.permutation(len(self.table.first) - 1)))

    def _pack(self, documents: np.ndarray) -> np.ndarray:
        """The chunks of documents in this order, cut into sequences."""
        first, per_sequence = self.table.first, self.chunks_per_sequence
        chunks = np.concatenate([np.arange(first[document], first[document + 1]) for document in documents])
        missing = np.full(-len(chunks) % per_sequence, -1)
        return np.concatenate([chunks, missing]).reshape(-1, per_sequence)

    def _pack_by_source(self, store: TokenStore, mixture: Mapping[str, float]) -> dict[str, np.ndarray]:
        """The sequences of every source of the mixture.

        Within a source documents are shuffled once, and sequences anew each epoch.
        """
        sources = np.array([document["source"] for document in store.documents])
        unknown = sorted(set(mixture) - set(sources.tolist()))
        if unknown:
            raise ConfigError(
                f"mixture names {unknown}; expected sources of the corpus: {sorted(set(sources.tolist()))}"
            )
        rng = np.random.default_rng([self.seed, len(sources)])
        return {
            source: self._pack(rng.permutation(np.flatnonzero(sources == source)))
            for source in sorted(mixture)
        }

    def _make(self, chunks: np.ndarray) -> Batch:
        """The batch of these chunks (sequence, place); −1 is a place that stays empty."""
        real = chunks >= 0
        safe = np.where(real, chunks, 0)
        # One token more than a chunk has: the token after it is what its last token predicts.
        # Behind the end of a document there is padding, which is not predicted.
        gathered = self.table.gather(safe, self.chunk_len + 1)
        gathered = np.where(real[..., None], gathered, self.pad_id)
        flat = (len(chunks), -1)
        tokens = torch.from_numpy(gathered[..., :-1].reshape(flat))
        targets = torch.from_numpy(gathered[..., 1:].reshape(flat))
        if self.neighbours is None:
            return Batch(tokens, targets, None, None)
        values, is_neighbour = self.neighbours.values(safe, self.k)
        # The last chunk of a document retrieves nothing, as nothing of the document follows it.
        retrieves = real & self._continues(safe)
        mask = is_neighbour & retrieves[..., None] & ~self._same_sequence(chunks)
        return Batch(tokens, targets, torch.from_numpy(values), torch.from_numpy(mask))

    def _continues(self, chunks: np.ndarray) -> np.ndarray:
        """Whether the next chunk belongs to the same document."""
        table = self.table
        result: np.ndarray = chunks + 1 < table.first[table.documents[chunks] + 1]
        return result

    def _same_sequence(self, chunks: np.ndarray) -> np.ndarray:
        """Which neighbours come from a document, or a copy of one,
        that is in the same sequence."""
        assert self.neighbours is not None
        safe = np.where(chunks >= 0, chunks, 0)
        present = self.hashes[self.table.documents[safe]]
        found = self.neighbours.documents(safe, self.k)
        # Each neighbour's document (sequence, place, rank, 1) against all of its
        # sequence (sequence, 1, 1, place).
        same: np.ndarray = (found[:, :, :, None] == present[:, None, None, :]).any(-1)
        return same


def prefetch(make: Callable[[int], Made], numbers: Iterable[int], depth: int = 2) -> Iterator[Made]:
    """`make(number)` for each number in turn, up to `depth` of them ahead of what is asked for.

    Nothing but time can change: `make` must be a pure function of the number. Its errors are
    raised where its result is due.
    """
    remaining = iter(numbers)
    thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches")
    try:
        ahead: deque[Future[Made]] = deque(thread.submit(make, number) for number in islice(remaining, depth))
        while ahead:
            result = ahead.popleft().result()
            ahead.extend(thread.submit(make, number) for number in islice(remaining, 1))
            yield result
    finally:
        thread.shutdown(wait=True, cancel_futures=True)
