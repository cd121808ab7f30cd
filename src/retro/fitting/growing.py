"""What sequences in progress read: whole prompts first, and then the newest token of each."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from retro.fitting.beside import fold, own_total, read_folded, read_together, share
from retro.fitting.interface import Asked
from retro.fitting.readings import Reading
from retro.fitting.whole import WholeReading
from retro.model.caches import NeighbourCache
from retro.model.pointer import Vote

if TYPE_CHECKING:
    from retro.fitting.decoding import FittedDecoding
    from retro.fitting.neighbours import Retrieved


class PromptReading(WholeReading):
    """Whole prompts, whose last states and encoded neighbours are kept for the tokens that follow."""

    def __init__(self, decoding: "FittedDecoding", retrieved: "Retrieved", pads: Tensor | None) -> None:
        super().__init__(decoding.model, retrieved, decoding.mask, pads)
        self.decoding = decoding

    def cross(self, layer: int, x: Tensor) -> Tensor:
        is_first = self.encoded is None
        if is_first:
            self.decoding.observe(x)
        added = super().cross(layer, x)
        if is_first:
            kept, (rows, chunks) = self.decoding.encoded, self.decoding.last_chunks()
            assert kept is not None
            assert self.encoded is not None
            kept.store(rows, self.encoded[rows, chunks], self.retrieved.is_token[rows, chunks])
        return added


class WatchingReading(Reading):
    """Prompts without neighbours: nothing is read, but later chunks need the last states."""

    def __init__(self, decoding: "FittedDecoding") -> None:
        super().__init__(decoding.model.joints)
        self.decoding = decoding
        self.observed = False

    def cross(self, layer: int, x: Tensor) -> None:
        if not self.observed:
            self.decoding.observe(x)
            self.observed = True


class NewestReading(Reading):
    """The newest token of every sequence, with the neighbours that it reads at present."""

    def __init__(
        self, decoding: "FittedDecoding", completing: Sequence[int], found: "Retrieved | None"
    ) -> None:
        super().__init__(decoding.model.joints)
        self.model = decoding.model
        self.decoding = decoding
        self.completing = completing
        self.found = found
        self.present = decoding.present
        self.observed = False

    def attend(self, layer: int, asked: Asked) -> Tensor:
        memory = None if self.present is None else self.present.memories.get(layer)
        if memory is None:
            return asked.own
        folded = self.decoding.folded.get(layer)
        if folded is None:
            folded = fold(memory, self.model.weighing(layer, asked.num_heads), asked.scaling)
            self.decoding.folded[layer] = folded
        if folded.is_whole:
            return read_together(asked, folded)
        found, total = read_folded(asked.query, folded, asked.softcap)
        mixed = share(found, total, asked.own.transpose(1, 2), own_total(asked), folded.present)
        return mixed.transpose(1, 2).contiguous()

    def cross(self, layer: int, x: Tensor) -> Tensor | None:
        kept = self.decoding.encoded
        assert kept is not None
        if not self.observed:
            self._observe(kept, x)
            self.observed = True
        if not kept.present_rows:
            return None
        return kept.attend(kept.operators[self.model.config.layers.index(layer + 1)], x[:, 0])[:, None]

    def _observe(self, kept: NeighbourCache, x: Tensor) -> None:
        """At layer min(P), keep the states, and encode the neighbours of the chunks just completed."""
        self.decoding.observe(x)
        if self.found is not None:
            chunks, is_token = kept.chunks(self.decoding.turn - 1, self.completing)
            encoded = self.model.encode(self.found, chunks, is_token)
            kept.store(self.completing, encoded[:, 0], self.found.is_token[:, 0])
        # A chunk without neighbours must not go on reading those of the chunk before.
        elif self.completing:
            kept.clear(self.completing)
        kept.place([length - 1 for length in self.decoding.lengths])

    def vote(self) -> Vote | None:
        pointer = self.model.pointer
        if pointer is None or self.present is None or self.present.keys is None:
            return None
        states = self.states[self.model.config.pointer_layer - 1][:, -1:]
        queries = pointer.standardise(states.to(pointer.mean.dtype))[:, None]
        vote = pointer.vote(
            queries, self.present.keys[:, None], self.present.voted[:, None], self.present.is_voter[:, None]
        )
        return vote.at((slice(None), 0, 0))
