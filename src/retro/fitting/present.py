"""The neighbours that sequences in progress read at present: one chunk's for each, replaced as chunks end."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from retro.fitting.beside import Memory
from retro.fitting.neighbours import Retrieved


@dataclass(frozen=True)
class Present:
    """The neighbours that each sequence reads at present; a sequence without any has no real token."""

    memories: dict[int, Memory]
    keys: Float[Tensor, "batch voter width"] | None
    voted: Int[Tensor, "batch voter"]
    is_voter: Bool[Tensor, "batch voter"]

    @staticmethod
    def of(retrieved: Retrieved, rows: Tensor, chunks: Tensor, real: Tensor) -> "Present":
        """Those of one chunk of each row, where it is real."""
        memories = {
            layer: Memory(
                memory.keys[rows, chunks][:, None],
                memory.values[rows, chunks][:, None],
                (memory.is_token[rows, chunks] & real[:, None])[:, None],
                memory.likeness[rows, chunks][:, None],
            )
            for layer, memory in retrieved.memories.items()
        }
        keys = None if retrieved.keys is None else retrieved.keys[rows, chunks]
        return Present(
            memories, keys, retrieved.voted[rows, chunks], retrieved.is_voter[rows, chunks] & real[:, None]
        )

    @staticmethod
    def empty(like: Retrieved, batch: int) -> "Present":
        """For sequences that have read nothing yet."""
        rows = torch.zeros(batch, dtype=torch.long, device=like.voted.device)
        return Present.of(like, rows, rows, torch.zeros_like(rows, dtype=torch.bool))

    def select(self, index: Tensor) -> "Present":
        memories = {
            layer: Memory(
                memory.keys[index], memory.values[index], memory.is_token[index], memory.likeness[index]
            )
            for layer, memory in self.memories.items()
        }
        keys = None if self.keys is None else self.keys[index]
        return Present(memories, keys, self.voted[index], self.is_voter[index])

    def replaced(self, rows: Sequence[int], found: Retrieved | None) -> "Present":
        """With other neighbours for some sequences; none if nothing was found."""
        index = torch.tensor(rows, dtype=torch.long, device=self.voted.device)
        if found is None:
            silenced = self.is_voter.index_fill(0, index, False)
            memories = {
                layer: replace(memory, is_token=memory.is_token.index_fill(0, index, False))
                for layer, memory in self.memories.items()
            }
            return replace(self, memories=memories, is_voter=silenced)
        new = Present.of(
            found,
            torch.arange(len(rows), device=index.device),
            torch.zeros_like(index),
            torch.ones_like(index, dtype=torch.bool),
        )
        width = max(self.voted.shape[-1], new.voted.shape[-1])
        old, new = self._widened(width), new._widened(width)
        memories = {
            layer: Memory(
                memory.keys.index_copy(0, index, new.memories[layer].keys),
                memory.values.index_copy(0, index, new.memories[layer].values),
                memory.is_token.index_copy(0, index, new.memories[layer].is_token),
                memory.likeness.index_copy(0, index, new.memories[layer].likeness),
            )
            for layer, memory in old.memories.items()
        }
        keys = None
        if old.keys is not None and new.keys is not None:
            keys = old.keys.index_copy(0, index, new.keys)
        return Present(
            memories,
            keys,
            old.voted.index_copy(0, index, new.voted),
            old.is_voter.index_copy(0, index, new.is_voter),
        )

    def _widened(self, width: int) -> "Present":
        """With room for more neighbours; the new places are empty."""
        missing = width - self.voted.shape[-1]
        if not missing:
            return self
        memories = {
            layer: Memory(
                pad(memory.keys, (0, 0, 0, missing)),
                pad(memory.values, (0, 0, 0, missing)),
                pad(memory.is_token, (0, missing), value=False),
                pad(memory.likeness, (0, 0, 0, missing)),
            )
            for layer, memory in self.memories.items()
        }
        keys = None if self.keys is None else pad(self.keys, (0, 0, 0, missing))
        return Present(memories, keys, pad(self.voted, (0, missing)), pad(self.is_voter, (0, missing)))

    def silent(self, batch: int) -> "Present":
        """The same for so many sequences that read nothing."""
        rows = torch.zeros(batch, dtype=torch.long, device=self.voted.device)
        everyone = list(range(batch))
        return self.select(rows).replaced(everyone, None)


def joined(own: Present | None, num_own: int, new: Present | None, num_new: int) -> Present | None:
    """What two batches read, one behind the other; None stands for a batch that has read nothing yet."""
    if own is None and new is None:
        return None
    own = own if own is not None else _some(new).silent(num_own)
    new = new if new is not None else own.silent(num_new)
    width = max(own.voted.shape[-1], new.voted.shape[-1])
    own, new = own._widened(width), new._widened(width)
    memories = {
        layer: Memory(
            torch.cat([memory.keys, new.memories[layer].keys]),
            torch.cat([memory.values, new.memories[layer].values]),
            torch.cat([memory.is_token, new.memories[layer].is_token]),
            torch.cat([memory.likeness, new.memories[layer].likeness]),
        )
        for layer, memory in own.memories.items()
    }
    keys = None
    if own.keys is not None and new.keys is not None:
        keys = torch.cat([own.keys, new.keys])
    return Present(memories, keys, torch.cat([own.voted, new.voted]), torch.cat([own.is_voter, new.is_voter]))


def _some(present: Present | None) -> Present:
    assert present is not None
    return present
