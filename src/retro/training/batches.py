"""Training batches: documents packed on the chunk grid, each with the neighbours of its
chunks."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from retro.training.omission import Omission

Made = TypeVar("Made")


@dataclass(frozen=True)
class Batch:
    """A model's inputs and the tokens to predict; padding is not predicted."""

    tokens: Int[Tensor, "batch seq"]
    targets: Int[Tensor, "batch seq"]
    neighbours: Int[Tensor, "batch chunk neighbour retrieved"] | None
    neighbour_mask: Bool[Tensor, "batch chunk neighbour"] | None

    def inputs(self, device: torch.device) -> list[Tensor | None]:
        """The four tensors, on the model's device."""
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
    """What training needs of its data: batch number i, without any state between batches."""

    mixture: Mixture | None
    """The sources that sequences are drawn from by weight; None if there are no weights."""

    def rows(self, number: int, start: int, stop: int) -> Batch:
        """Some sequences of batch `number`: the share of one process."""
        ...

    def documents(self, number: int) -> list[str]:
        """Ids of the documents in batch `number`."""
        ...


class PackedBatches:
    """An endless stream of batches, each a pure function of the seed and its number.

    A run can therefore resume at any step.

    An epoch puts all documents in random order, starts each on a fresh chunk, and cuts the
    row of chunks into sequences. A document's last chunk is padded and retrieves nothing,
    since no token of the document follows it. Neighbours from a document in the same
    sequence are masked. With a mixture, sources are drawn by weight instead, and each goes
    through its own sequences.
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
        omission: Omission | None = None,
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
        # Rounded up: the last sequence of an epoch may end in empty places.
        self.sequences_per_epoch = -(-len(self.table) // self.chunks_per_sequence)
        self.neighbours = neighbours
        self.k = k
        self.omission = omission
        self.hashes = content_hashes(store)
        self.store = store
        # Two epochs: batches are made ahead, so the next epoch begins before the last has ended.
        self._shuffled = lru_cache(maxsize=2)(self._shuffle)
        self._by_source = self._pack_by_source(store, mixture or {})
        sizes = {source: len(rows) for source, rows in self._by_source.items()}
        self.mixture = Mixture(mixture, sizes, seed) if mixture else None

    def __getitem__(self, number: int) -> Batch:
        return self.rows(number, 0, self.batch_size)

    def rows(self, number: int, start: int, stop: int) -> Batch:
        numbers = self._numbers(number, start, stop)
        chunks = np.stack([self._sequence(index) for index in numbers])
        return self._make(chunks, numbers)

    def documents(self, number: int) -> list[str]:
        numbers = self._numbers(number, 0, self.batch_size)
        chunks = np.stack([self._sequence(index) for index in numbers])
        found = np.unique(self.table.documents_of(chunks[chunks >= 0]))
        return [self.store.documents[document]["id"] for document in found.tolist()]

    def _numbers(self, number: int, start: int, stop: int) -> range:
        """The sequences of a batch, which are numbered through all batches and epochs."""
        first = number * self.batch_size
        return range(first + start, first + stop)

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
        # Documents are shuffled before packing, and sequences after: else a document that
        # spans several sequences would always be read in a row.
        return rng.permutation(self._pack(rng.permutation(len(self.table.first) - 1)))

    def _pack(self, documents: np.ndarray) -> np.ndarray:
        """The chunks of documents in this order, cut into sequences."""
        first, per_sequence = self.table.first, self.chunks_per_sequence
        num_chunks = self.table.num_chunks[documents]
        # Consecutive numbers, moved by document from where it begins in this row to where in the table.
        moved = first[documents] - (np.cumsum(num_chunks) - num_chunks)
        chunks = np.arange(num_chunks.sum()) + np.repeat(moved, num_chunks)
        # Up to the next multiple of a sequence's length.
        missing = np.full(-len(chunks) % per_sequence, -1)
        return np.concatenate([chunks, missing]).reshape(-1, per_sequence)

    def _pack_by_source(self, store: TokenStore, mixture: Mapping[str, float]) -> dict[str, np.ndarray]:
        """The sequences of each source in the mixture.

        A source's documents are shuffled once; its sequences are shuffled again each epoch.
        """
        if not mixture:
            return {}
        sources, codes = store.documents.coded("source")
        unknown = sorted(set(mixture) - set(sources))
        if unknown:
            raise ConfigError(f"mixture names {unknown}; expected sources of the corpus: {sorted(sources)}")
        rng = np.random.default_rng([self.seed, len(store)])
        return {
            source: self._pack(rng.permutation(np.flatnonzero(codes == sources.index(source))))
            for source in sorted(mixture)
        }

    def _make(self, chunks: np.ndarray, numbers: Sequence[int]) -> Batch:
        """The batch of these chunks (sequence, place), of the sequences with these numbers; −1 marks an empty
        place."""
        real = chunks >= 0
        # Empty places borrow chunk 0, so that one gather serves all; they are masked below.
        safe = np.where(real, chunks, 0)
        # One token more than a chunk has, since its last token predicts the token after it.
        # After the end of a document comes padding, which is not predicted.
        gathered = self.table.gather(safe, self.chunk_len + 1)
        gathered = np.where(real[..., None], gathered, self.pad_id)
        flat = (len(chunks), -1)
        tokens = torch.from_numpy(gathered[..., :-1].reshape(flat))
        targets = torch.from_numpy(gathered[..., 1:].reshape(flat))
        if self.neighbours is None:
            return Batch(tokens, targets, None, None)
        values, is_neighbour = self.neighbours.values(safe, self.k)
        # The last chunk of a document retrieves nothing: its neighbours would be read only by
        # tokens of the next document.
        retrieves = real & self._continues(safe)
        mask = is_neighbour & retrieves[..., None] & ~self._same_sequence(chunks)
        if self.omission is not None:
            mask &= self._kept(self.omission, safe, numbers, values)
        return Batch(tokens, targets, torch.from_numpy(values), torch.from_numpy(mask))

    def _kept(
        self, omission: Omission, chunks: np.ndarray, numbers: Sequence[int], values: np.ndarray
    ) -> np.ndarray:
        """Which neighbours (sequence, place, neighbour) training does not leave out."""
        drawn = np.stack([omission.drawn(number, chunks.shape[1], self.k) for number in numbers])
        # The tokens behind a chunk are those that read its neighbours; its own fall away.
        following = self.table.gather(chunks, 2 * self.chunk_len)[..., self.chunk_len :]
        kept: np.ndarray = drawn & omission.unlike(following, values, self.pad_id)
        return kept

    def _continues(self, chunks: np.ndarray) -> np.ndarray:
        """Whether the next chunk belongs to the same document."""
        table = self.table
        result: np.ndarray = chunks + 1 < table.first[table.documents_of(chunks) + 1]
        return result

    def _same_sequence(self, chunks: np.ndarray) -> np.ndarray:
        """Which neighbours come from a document in the same sequence, or from a copy of one."""
        assert self.neighbours is not None
        safe = np.where(chunks >= 0, chunks, 0)
        # Compared by content hash, so that copies under another id are found, too.
        present = self.hashes[self.table.documents_of(safe)]
        found = self.neighbours.documents(safe, self.k)
        # Each neighbour's document (sequence, place, rank, 1) against all documents of its
        # sequence (sequence, 1, 1, place).
        same: np.ndarray = (found[:, :, :, None] == present[:, None, None, :]).any(-1)
        return same


def prefetch(make: Callable[[int], Made], numbers: Iterable[int], depth: int = 2) -> Iterator[Made]:
    """`make(number)` for each number in turn, computed up to `depth` ahead in a thread.

    `make` must be a pure function of the number, so that only the timing changes. Its errors
    are raised where its result is due.
    """
    remaining = iter(numbers)
    # One thread: more would compete with the step for the processor.
    thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches")
    try:
        ahead: deque[Future[Made]] = deque(thread.submit(make, number) for number in islice(remaining, depth))
        while ahead:
            result = ahead.popleft().result()
            # Before the result is handed out, so that the next batch is made during the step.
            ahead.extend(thread.submit(make, number) for number in islice(remaining, 1))
            yield result
    finally:
        thread.shutdown(wait=True, cancel_futures=True)
