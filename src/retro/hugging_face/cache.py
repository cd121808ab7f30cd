"""The cache that transformers' `generate` carries along: a batch of sequences in progress.

Keys and values lie in the model's own decoding, beside the neighbours that are read at present. The tokens of
each sequence are kept, too: the next chunk's neighbours are searched by them, and what is cropped can be read
again.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import Cache

from retro.errors import ConfigError
from retro.generation.batch import retrieve
from retro.generation.request import Retrieval
from retro.model.protocol import Decoding, LanguageModel
from retro.retrieval.retriever import Searcher, stack_neighbours
from retro.retrieval.search import Neighbour

Search = tuple[Searcher, Retrieval]
"""Where neighbours are looked for, and how."""


class RetroCache(Cache):  # type: ignore[misc]
    """Each sequence's tokens, the neighbours of its complete chunks, and the decoding that has read both."""

    def __init__(self, model: LanguageModel, search: Search | None = None) -> None:
        super().__init__(layers=[])
        self.model = model
        self.search = search
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self.rows: list[list[int]] = []
        self.neighbours: list[list[list[Neighbour]]] = []
        """Of each sequence, a list for each complete chunk."""
        self.slots = 0
        """Tokens of the longest sequence; shorter ones are padded on the left."""
        self.decoding: Decoding | None = None
        """None where it must be made of the tokens first."""

    # Growing

    def fill(self, rows: Sequence[Sequence[int]], slots: int) -> None:
        """Begin with these sequences, which are read when they are needed."""
        self.reset()
        self.rows = [list(row) for row in rows]
        self.neighbours = [[] for _ in rows]
        self.slots = slots

    def read(self) -> Float[Tensor, "batch vocab"]:
        """Read all tokens, and return the logits of the next."""
        self._retrieve()
        decoding = self.model.begin()
        logits = decoding.prefill(self.rows, *self.stacked())
        self.decoding = decoding
        return logits

    def feed(self, tokens: Sequence[int]) -> Float[Tensor, "batch vocab"]:
        """Append a token to every sequence, and return the logits of the next."""
        if self.decoding is None:
            self.read()
        assert self.decoding is not None
        completing = self.decoding.completing
        for row, token in zip(self.rows, tokens, strict=True):
            row.append(token)
        self.slots += 1
        self._retrieve()
        found = [self.neighbours[row][-1] for row in completing]
        return self.decoding.step(tokens, *self._stack(found))

    def stacked(self) -> tuple[Tensor, Tensor] | tuple[None, None]:
        """Neighbours and their mask for all complete chunks; the chunks that shorter sequences lack have
        none."""
        self._retrieve()
        num_chunks = max(map(len, self.rows)) // self.model.facts.chunk_len
        padded = [[*found, *[[]] * (num_chunks - len(found))] for found in self.neighbours]
        neighbours, mask = self._stack([found for row in padded for found in row])
        if neighbours is None or mask is None:
            return None, None
        shape = (len(self.rows), num_chunks)
        return neighbours.unflatten(0, shape), mask.unflatten(0, shape)

    def _retrieve(self) -> None:
        """Find the neighbours of all complete chunks that have not been searched yet, in one search."""
        m = self.model.facts.chunk_len
        due = [
            (number, chunk)
            for number, row in enumerate(self.rows)
            for chunk in range(len(self.neighbours[number]), len(row) // m)
        ]
        found: list[list[Neighbour]] = [[] for _ in due]
        if self.search is not None and due:
            chunks = [(chunk, self.rows[row][chunk * m : (chunk + 1) * m]) for row, chunk in due]
            found = retrieve(*self.search, chunks)
        for (row, _), neighbours in zip(due, found, strict=True):
            self.neighbours[row].append(neighbours)

    def _stack(self, found: Sequence[Sequence[Neighbour]]) -> tuple[Tensor, Tensor] | tuple[None, None]:
        # Without any neighbour the model runs as without retrieval.
        if not any(found):
            return None, None
        facts, device = self.model.facts, self.model.device
        values, mask = stack_neighbours(found, facts.retrieved_len, facts.pad_id)
        return torch.from_numpy(values).to(device), torch.from_numpy(mask).to(device)

    # What `generate` asks

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.slots

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return -1

    get_max_cache_shape = get_max_length

    def get_mask_sizes(self, query_length: Any, layer_idx: int = 0) -> tuple[int, int]:
        return self.slots + int(query_length), 0

    @property
    def batch_size(self) -> int:
        return len(self.rows) or -1

    def __len__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return f"RetroCache({len(self.rows)} sequences, {self.slots} tokens)"

    def update(self, *_: Any, **__: Any) -> None:
        raise ConfigError(
            "a base was given the cache of a model with retrieval; expected its own; "
            "call the model with retrieval, or give the base no cache"
        )

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Go on with these sequences, as a beam search chose them; one may be named twice."""
        rows = beam_idx.tolist()
        self.rows = [list(self.rows[row]) for row in rows]
        self.neighbours = [list(self.neighbours[row]) for row in rows]
        if self.decoding is not None:
            self.decoding.select(rows)

    def batch_select_indices(self, indices: Tensor) -> None:
        self.reorder_cache(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        self.reorder_cache(torch.arange(len(self.rows)).repeat_interleave(repeats))

    def crop(self, tokens_to_remove: int) -> None:
        """Take the last tokens of every sequence away; a positive number is the length that remains.

        The rest is read again when it is needed: the last chunk's neighbours may be others now.
        """
        removed = -tokens_to_remove if tokens_to_remove <= 0 else self.slots - tokens_to_remove
        if removed <= 0:
            return
        if removed >= min(map(len, self.rows)):
            raise ConfigError(
                f"{removed} tokens were to be cropped; expected fewer than the shortest sequence has, "
                f"{min(map(len, self.rows))}; call reset() to begin anew"
            )
        self.rows = [row[:-removed] for row in self.rows]
        m = self.model.facts.chunk_len
        pairs = zip(self.neighbours, self.rows, strict=True)
        self.neighbours = [found[: len(row) // m] for found, row in pairs]
        self.slots -= removed
        self.decoding = None
