"""Keys and values of the tokens read so far, for every layer's self-attention."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from retro.model.attention import RelativeAttention
from retro.model.positions import falling_distances

SMALLEST = 64
"""Slots of a new cache."""


class TokenCache:
    """The past of a batch of sequences.

    All sequences end at the same slot and a shorter one begins later, so that one slice of slots and one row of distances serve
    the whole batch, whatever the lengths. With a `window` a token attends to that many last tokens, itself among them; 0 is all.
    """

    def __init__(
        self, attentions: Sequence[RelativeAttention], batch: int, window: int, like: Tensor
    ) -> None:
        self.attentions, self.window = attentions, window
        self.lengths = [0] * batch
        """Tokens of each sequence."""
        self.end = self.shifted = 0
        self.capacity = 0
        self.has_padding = False
        heads, head_dim = attentions[0].num_heads, attentions[0].head_dim
        self.keys = [like.new_zeros(batch, heads, 0, head_dim) for _ in attentions]
        self.values = [like.new_zeros(batch, heads, 0, head_dim) for _ in attentions]
        self.bias = like.new_zeros(batch, 0)
        """Added to the logits: 0 at tokens, very negative at padding and before a sequence begins."""
        self.distance_keys: list[Tensor] = []

    @property
    def start(self) -> int:
        """The first slot that anyone attends to."""
        reach = max(self.lengths, default=0)
        return max(0, self.end - (min(reach, self.window) if self.window else reach))

    @property
    def turn(self) -> int:
        """Slots ever used: a clock that all sequences share."""
        return self.end + self.shifted

    def append(self, is_token: Sequence[bool]) -> None:
        """Open the slot of each sequence's next token."""
        self._make_room(1)
        if not all(is_token):
            self.bias[:, self.end] = mask_bias(torch.tensor(is_token), self.bias)
            self.has_padding = True
        self.end += 1
        self.lengths = [length + 1 for length in self.lengths]

    def fill(self, lengths: Sequence[int], is_token: Bool[Tensor, "batch seq"]) -> None:
        """Open the slots of whole prompts, padded at their ends, in an empty cache."""
        self._make_room(is_token.shape[1])
        self.end, self.lengths = is_token.shape[1], list(lengths)
        for row, length in enumerate(lengths):
            self.bias[row, : self.end] = mask_bias(is_token[row].roll(self.end - length), self.bias)
        self._look_for_padding()

    def store(
        self,
        layer: int,
        key: Float[Tensor, "batch heads seq head_dim"],
        value: Float[Tensor, "batch heads seq head_dim"],
    ) -> None:
        """Keep what prompts that were padded at their ends have in one layer."""
        for row, length in enumerate(self.lengths):
            slots = slice(self.end - length, self.end)
            self.keys[layer][row, :, slots] = key[row, :, :length]
            self.values[layer][row, :, slots] = value[row, :, :length]

    def attend(self, layer: int, normed: Float[Tensor, "batch width"]) -> Float[Tensor, "batch width"]:
        """What the newest token of each sequence reads in one layer; its own key and value are kept."""
        attention, seen, batch = self.attentions[layer], slice(self.start, self.end), len(normed)
        keys, values = self.keys[layer], self.values[layer]
        shape = (batch, attention.num_heads, attention.head_dim)
        keys[:, :, self.end - 1] = attention.key(normed).view(shape)
        values[:, :, self.end - 1] = attention.value(normed).view(shape)
        query = attention.scale(attention.query(normed)).view(shape)
        # The distances are the same for all sequences: the batch takes the place of the queries.
        positional = attention.distance_logits(
            query.transpose(0, 1), self.distance_keys[layer][:, self.start - self.end :]
        )
        if self.has_padding:
            positional = positional + self.bias[:, seen]
        logits = attention.content_logits(query.unsqueeze(2), keys[:, :, seen]) + positional.transpose(
            0, 1
        ).unsqueeze(2)
        read: Tensor = attention.out((logits.softmax(-1) @ values[:, :, seen]).view(batch, -1))
        return read

    def select(self, rows: Sequence[int]) -> None:
        """Go on with these sequences only; one that is named twice goes on twice."""
        index = torch.tensor(rows, dtype=torch.long, device=self.bias.device)
        self.lengths = [self.lengths[row] for row in rows]
        self.keys, self.values = (
            [tensor[index] for tensor in tensors] for tensors in (self.keys, self.values)
        )
        self.bias = self.bias[index]
        self._look_for_padding()

    def _look_for_padding(self) -> None:
        self.has_padding = bool((self.bias[:, self.start : self.end] < 0).any())

    def _make_room(self, extra: int) -> None:
        """Move what is still attended to the front of a cache with room for as much again."""
        if self.end + extra <= self.capacity:
            return
        start, live = self.start, self.end - self.start
        capacity = max(SMALLEST, 2 * (live + extra))
        self.keys, self.values = (
            [_moved(tensor, start, self.end, capacity) for tensor in tensors]
            for tensors in (self.keys, self.values)
        )
        self.bias = _moved(self.bias.unsqueeze(-1), start, self.end, capacity).squeeze(-1)
        self.end, self.shifted = live, self.shifted + start
        if capacity != self.capacity:
            distances = falling_distances(1, capacity, capacity - 1, like=self.bias)
            self.distance_keys = [attention.distance_keys(distances) for attention in self.attentions]
            self.capacity = capacity


def mask_bias(is_token: Bool[Tensor, "*batch"], like: Tensor) -> Float[Tensor, "*batch"]:
    """What is added to logits so that only tokens are attended; finite, so that even a row without any stays a number."""
    return like.new_zeros(is_token.shape).masked_fill_(
        ~is_token.to(like.device), torch.finfo(like.dtype).min / 2
    )


def _moved(
    tensor: Float[Tensor, "*batch old width"], start: int, stop: int, capacity: int
) -> Float[Tensor, "*batch new width"]:
    """Slots `start` to `stop` at the front of a tensor with more of them; zeros behind, as even masked values are multiplied."""
    moved = tensor.new_zeros(*tensor.shape[:-2], capacity, tensor.shape[-1])
    moved[..., : stop - start, :] = tensor[..., start:stop, :]
    return moved
