"""Reading neighbours for whole sequences at once: in training, in scoring, and for prompts."""

from typing import TYPE_CHECKING, Any

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from retro.fitting.beside import NONE, Memory, own_total, read, rows_of_heads, share
from retro.fitting.interface import Asked
from retro.fitting.readings import Reading
from retro.model.pointer import Vote, in_place, rows_of

if TYPE_CHECKING:
    from retro.fitting.fitted import FittedModel
    from retro.fitting.neighbours import Retrieved


class WholeReading(Reading):
    """Sequences with the neighbours of their complete chunks.

    The last token of a chunk and all but the last of the next read the chunk's neighbours. `pads` counts the
    padding before each sequence, as a batch of prompts has it: chunks are counted from a sequence's own first
    token.
    """

    def __init__(
        self, model: "FittedModel", retrieved: "Retrieved", is_token: Tensor, pads: Tensor | None = None
    ) -> None:
        super().__init__(model.joints)
        self.model = model
        self.retrieved = retrieved
        self.is_token = is_token if pads is None else shifted(is_token[..., None], pads)[..., 0]
        self.pads = pads
        self.num_chunks = retrieved.neighbours.shape[1]
        self.chunk_len = model.config.chunk_len
        self.encoded: Tensor | None = None

    def attend(self, layer: int, asked: Asked) -> Tensor:
        memory = self.retrieved.memories.get(layer)
        query, attended = asked.query, asked.own
        if memory is None or query.shape[2] < self.chunk_len:
            return attended
        m = self.chunk_len
        weighing = self.model.weighing(layer, asked.num_heads)
        own = attended.transpose(1, 2)
        own_sum = own_total(asked)
        if self.pads is not None:
            query, own = (_shifted_heads(tensor, self.pads) for tensor in (query, own))
            own_sum = _shifted_heads(own_sum[..., None], self.pads)[..., 0]
        length = query.shape[2]
        rows = rows_of_heads(query, m, self.num_chunks)
        found, total = read(rows, memory, weighing, asked.scaling, asked.softcap)
        # Back to positions: rows one after the other, from position m − 1 on.
        stop = length - m + 1
        found = rearrange(found, "b h u m d -> b h (u m) d")[:, :, :stop]
        total = rearrange(total, "b h u m -> b h (u m)")[:, :, :stop] + weighing.bias[:, None]
        present = memory.is_token.any(-1).repeat_interleave(m, dim=1)[:, None, :stop]
        mixed = share(found, total, own[:, :, m - 1 :], own_sum[:, :, m - 1 :], present)
        result = torch.cat([own[:, :, : m - 1], mixed], 2)
        if self.pads is not None:
            result = torch.where(
                self._is_padding(), attended.transpose(1, 2), _shifted_heads(result, -self.pads)
            )
        return result.transpose(1, 2).contiguous()

    def _is_padding(self) -> Tensor:
        assert self.pads is not None
        places = torch.arange(self.is_token.shape[1], device=self.pads.device)
        return (places < self.pads[:, None])[:, None, :, None]

    def cross(self, layer: int, x: Tensor) -> Tensor:
        aligned = x if self.pads is None else shifted(x, self.pads)
        if self.encoded is None:
            # At layer min(P): the encoder is conditioned on the states after this layer's self-attention.
            self.encoded = self.model.encode(self.retrieved, aligned, self.is_token)
        assert self.model.cross is not None
        operator = self.model.cross[self.model.config.layers.index(layer + 1)]
        added: Tensor = operator.read(aligned, self.encoded, self.retrieved.is_token)  # type: ignore[operator]
        if self.pads is None:
            return added
        return shifted(added, -self.pads) * ~self._is_padding()[:, 0]

    def vote(self) -> Vote | None:
        """What the neighbours vote for at every position, counted from each sequence's own first token."""
        model, pointer = self.model, self.model.pointer
        if pointer is None:
            return None
        assert self.retrieved.keys is not None
        m = self.chunk_len
        states = self.states[model.config.pointer_layer - 1].detach()
        if self.pads is not None:
            states = shifted(states, self.pads)
        length = states.shape[1]
        queries = rows_of(pointer.standardise(states.to(pointer.mean.dtype)), m, self.num_chunks)
        rows = pointer.vote(queries, self.retrieved.keys, self.retrieved.voted, self.retrieved.is_voter)
        return in_place(rows, m, length)


class WatchedReading(WholeReading):
    """Whole sequences without padding before them, with a look at what their attention reads."""

    def __init__(self, model: "FittedModel", retrieved: "Retrieved", is_token: Tensor) -> None:
        super().__init__(model, retrieved, is_token)
        self.attention: list[Tensor] = []
        """Of each layer, the part of all attention that goes to each neighbour (batch, seq, neighbour)."""

    def attend(self, layer: int, asked: Asked) -> Tensor:
        memory = self.retrieved.memories.get(layer)
        if memory is not None and asked.query.shape[2] >= self.chunk_len:
            self.attention.append(self._attention_to(layer, asked, memory))
        return super().attend(layer, asked)

    def _attention_to(self, layer: int, asked: Asked, memory: Memory) -> Tensor:
        m, (_, _, num_neighbours, length) = self.chunk_len, self.retrieved.neighbours.shape
        weighing = self.model.weighing(layer, asked.num_heads)
        rows = rows_of_heads(asked.query, m, self.num_chunks)
        stop = asked.query.shape[2] - m + 1
        own_sum = own_total(asked)[:, :, m - 1 :]
        parts = []
        for rank in range(num_neighbours):
            # Each neighbour alone: its sum of exponentials beside those of all others and of the text.
            place = slice(rank * length, (rank + 1) * length)
            one = Memory(
                memory.keys[..., place, :],
                memory.values[..., place, :],
                memory.is_token[..., place],
                memory.likeness[..., place, :],
            )
            _, total = read(rows, one, weighing, asked.scaling, asked.softcap)
            total = rearrange(total, "b h u m -> b h (u m)")[:, :, :stop] + weighing.bias[:, None]
            present = one.is_token.any(-1).repeat_interleave(m, dim=1)[:, None, :stop]
            parts.append(torch.where(present, total, NONE))
        sums = torch.stack([own_sum, *parts], -1).softmax(-1)[..., 1:]
        return torch.nn.functional.pad(sums.mean(1), (0, 0, m - 1, 0))

    def cross(self, layer: int, x: Tensor) -> Tensor:
        added = super().cross(layer, x)
        assert self.model.cross is not None
        assert self.encoded is not None
        operator: Any = self.model.cross[self.model.config.layers.index(layer + 1)]
        self.attention.append(operator.attention_to(x, self.encoded, self.retrieved.is_token))
        return added


def shifted(x: Float[Tensor, "batch seq width"] | Tensor, by: Tensor) -> Tensor:
    """Every sequence moved to the left by its own number of places, round the end."""
    length = x.shape[1]
    places = (torch.arange(length, device=x.device) + by[:, None]) % length
    return x.gather(1, places[..., None].expand_as(x))


def _shifted_heads(x: Float[Tensor, "batch heads seq width"], by: Tensor) -> Tensor:
    length = x.shape[2]
    places = (torch.arange(length, device=x.device) + by[:, None]) % length
    return x.gather(2, places[:, None, :, None].expand_as(x))
