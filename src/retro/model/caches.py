"""What decoding remembers: the tokens read so far, and the neighbours now being read."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from retro.model.attention import RelativeAttention, falling_distances
from retro.model.chunked_cross_attention import ChunkedCrossAttention

SMALLEST = 64
"""The fewest slots that a cache is given."""


class TokenCache:
    """Keys and values of the past tokens of a batch of sequences.

    All sequences end at the same slot, and shorter ones begin later. One slice of slots and
    one row of distances therefore serve the whole batch, whatever the lengths. With a
    `window`, a token attends to the last `window` tokens, itself included; 0 means all.
    """

    def __init__(
        self, attentions: Sequence[RelativeAttention], batch: int, window: int, like: Tensor
    ) -> None:
        self.attentions = attentions
        self.window = window
        self.lengths = [0] * batch
        """Number of tokens in each sequence."""
        self.end = 0
        """The slot after the newest token, the same for all sequences."""
        self.shifted = 0
        """Slots dropped at the front, in all the moves so far."""
        self.capacity = 0
        self.has_padding = False
        heads, head_dim = attentions[0].num_heads, attentions[0].head_dim
        self.keys = [like.new_zeros(batch, heads, 0, head_dim) for _ in attentions]
        self.values = [like.new_zeros(batch, heads, 0, head_dim) for _ in attentions]
        self.bias = like.new_zeros(batch, 0)
        """Added to the logits: 0 at tokens, very negative at padding and before a
        sequence begins."""
        # They depend on distances alone, so they are made once for each capacity.
        self.distance_keys: list[Tensor] = []

    @property
    def start(self) -> int:
        """The first slot that anyone attends to."""
        reach = max(self.lengths, default=0)
        # The longest sequence begins first, so it decides for the batch.
        return max(0, self.end - (min(reach, self.window) if self.window else reach))

    @property
    def turn(self) -> int:
        """Slots used since the start: a clock that all sequences share."""
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
        """Open the slots of whole prompts, padded on the right, in an empty cache."""
        self._make_room(is_token.shape[1])
        self.end = is_token.shape[1]
        self.lengths = list(lengths)
        for row, length in enumerate(lengths):
            # Prompts are padded on the right, but slots are padded on the left: rolling the
            # row moves its padding from one side to the other.
            self.bias[row, : self.end] = mask_bias(is_token[row].roll(self.end - length), self.bias)
        self._look_for_padding()

    def store(
        self,
        layer: int,
        key: Float[Tensor, "batch heads seq head_dim"],
        value: Float[Tensor, "batch heads seq head_dim"],
    ) -> None:
        """Keep one layer's keys and values of prompts that are padded on the right."""
        for row, length in enumerate(self.lengths):
            slots = slice(self.end - length, self.end)
            self.keys[layer][row, :, slots] = key[row, :, :length]
            self.values[layer][row, :, slots] = value[row, :, :length]

    def attend(self, layer: int, normed: Float[Tensor, "batch width"]) -> Float[Tensor, "batch width"]:
        """One layer's self-attention for the newest token of each sequence,
        whose key and value it keeps."""
        attention, batch = self.attentions[layer], len(normed)
        seen = slice(self.start, self.end)
        keys, values = self.keys[layer], self.values[layer]
        shape = (batch, attention.num_heads, attention.head_dim)
        # Written before the keys are read: a token attends to itself, too.
        keys[:, :, self.end - 1] = attention.key(normed).view(shape)
        values[:, :, self.end - 1] = attention.value(normed).view(shape)
        query = attention.scale(attention.query(normed)).view(shape)
        # There is one query a sequence, and all see the same distances. With the batch in the
        # place of the queries, one product of matrices serves them all.
        distances = self.distance_keys[layer][:, self.start - self.end :]
        positional = attention.distance_logits(query.transpose(0, 1), distances)
        if self.has_padding:
            positional = positional + self.bias[:, seen]
        content = attention.content_logits(query.unsqueeze(2), keys[:, :, seen])
        logits = content + positional.transpose(0, 1).unsqueeze(2)
        read: Tensor = attention.out((logits.softmax(-1) @ values[:, :, seen]).view(batch, -1))
        return read

    def select(self, rows: Sequence[int]) -> None:
        """Keep only these sequences; one that is named twice is duplicated."""
        index = torch.tensor(rows, dtype=torch.long, device=self.bias.device)
        self.lengths = [self.lengths[row] for row in rows]
        self.keys = [tensor[index] for tensor in self.keys]
        self.values = [tensor[index] for tensor in self.values]
        self.bias = self.bias[index]
        self._look_for_padding()

    def join(self, other: "TokenCache") -> None:
        """Append the sequences of another cache, so that all end at the same slot."""
        turn, own, new = self.turn, slice(self.start, self.end), slice(other.start, other.end)
        live = max(own.stop - own.start, new.stop - new.start)
        capacity = self.capacity if live < self.capacity else max(SMALLEST, 2 * (live + 1))

        def joined(mine: Tensor, others: Tensor, nothing: float = 0.0) -> Tensor:
            result = mine.new_zeros(len(mine) + len(others), *mine.shape[1:-2], capacity, mine.shape[-1])
            # Before a sequence begins, up to the slot that all end at.
            result[..., :live, :] = nothing
            result[: len(mine), ..., live - (own.stop - own.start) : live, :] = mine[..., own, :]
            result[len(mine) :, ..., live - (new.stop - new.start) : live, :] = others[..., new, :]
            return result

        self.keys = [joined(*pair) for pair in zip(self.keys, other.keys, strict=True)]
        self.values = [joined(*pair) for pair in zip(self.values, other.values, strict=True)]
        masked = torch.finfo(self.bias.dtype).min / 2
        self.bias = joined(self.bias[..., None], other.bias[..., None], masked)[..., 0]
        self.lengths = self.lengths + other.lengths
        # The clock goes on as it did, wherever the slots are now.
        self.end, self.shifted = live, turn - live
        self._measure(capacity)
        self._look_for_padding()

    def _look_for_padding(self) -> None:
        self.has_padding = bool((self.bias[:, self.start : self.end] < 0).any())

    def _make_room(self, extra: int) -> None:
        """Move the slots still in use to the front of a cache twice their size.

        Doubling makes the cost of moving constant per token.
        """
        if self.end + extra <= self.capacity:
            return
        start, live = self.start, self.end - self.start
        # With a window, `live` stays bounded, and so does the capacity.
        capacity = max(SMALLEST, 2 * (live + extra))
        self.keys = [_moved(tensor, start, self.end, capacity) for tensor in self.keys]
        self.values = [_moved(tensor, start, self.end, capacity) for tensor in self.values]
        self.bias = _moved(self.bias.unsqueeze(-1), start, self.end, capacity).squeeze(-1)
        self.end = live
        self.shifted += start
        self._measure(capacity)

    def _measure(self, capacity: int) -> None:
        """Have the distances between so many slots."""
        if capacity != self.capacity:
            # From capacity − 1 down to 0: the last n of them belong to the last n slots.
            distances = falling_distances(1, capacity, capacity - 1, like=self.bias)
            self.distance_keys = [attention.distance_keys(distances) for attention in self.attentions]
            self.capacity = capacity


class NeighbourCache:
    """Keys and values of the encoded neighbours that each sequence reads now.

    They are computed once a chunk and read by m tokens. `recent` is a ring of
    the last m activations after self-attention at layer min(P), H_u in the paper.
    """

    def __init__(
        self,
        operators: Sequence[ChunkedCrossAttention],
        chunk_len: int,
        retrieved_len: int,
        batch: int,
        like: Tensor,
    ) -> None:
        self.operators = operators
        self.chunk_len = chunk_len
        self.retrieved_len = retrieved_len
        first = operators[0].attention
        self.recent = like.new_zeros(batch, chunk_len, first.width)
        self.recent_is_token = torch.zeros(batch, chunk_len, dtype=torch.bool, device=like.device)
        self.keys = [like.new_zeros(batch, first.num_heads, 0, first.head_dim) for _ in operators]
        self.values = [like.new_zeros(batch, first.num_heads, 0, first.head_dim) for _ in operators]
        self.is_token = torch.zeros(batch, 0, self.retrieved_len, dtype=torch.bool, device=like.device)
        # Every distance that occurs, from any place in a chunk to any place of [N,
        # F] that is read.
        offset = chunk_len - 1 - operators[0].first_place
        distances = falling_distances(chunk_len, retrieved_len, offset, like)
        self.distance_keys = [
            operator.attention.distance_keys(distances) if operator.attention.has_positions else None
            for operator in operators
        ]
        self.firsts: list[int] = []
        self._refresh()

    def observe(self, turn: int, x: Float[Tensor, "batch d_model"], is_token: Sequence[bool]) -> None:
        """Keep the newest token's activations."""
        self.recent[:, turn % self.chunk_len] = x
        self.recent_is_token[:, turn % self.chunk_len] = torch.tensor(is_token)

    def chunks(
        self, turn: int, rows: Sequence[int]
    ) -> tuple[Float[Tensor, "rows m d_model"], Bool[Tensor, "rows m"]]:
        """The activations of the chunks that these sequences just completed, and
        which are tokens."""
        # In a ring of m slots the oldest follows the newest.
        order = torch.arange(turn + 1, turn + 1 + self.chunk_len, device=self.recent.device) % self.chunk_len
        return self.recent[list(rows)][:, order], self.recent_is_token[list(rows)][:, order]

    def store(
        self,
        rows: Sequence[int],
        encoded: Float[Tensor, "rows neighbour retrieved d_encoder"],
        is_token: Bool[Tensor, "rows neighbour retrieved"],
    ) -> None:
        """Keep the encoded neighbours that these sequences read from now on."""
        k, index = encoded.shape[1], torch.tensor(rows, device=encoded.device)
        self._widen(k)
        # A sequence with fewer neighbours than last time must not see the old ones behind them.
        self.is_token[index] = False
        self.is_token[index, :k] = is_token
        # All neighbours of a chunk lie in one softmax, so they become one row of keys.
        memory = encoded.flatten(1, 2)
        for operator, keys, values in zip(self.operators, self.keys, self.values, strict=True):
            attention = operator.attention
            # Products in bfloat16 give keys in it; a cache stays in the precision it was made in.
            keys[index, :, : memory.shape[1]] = attention.split_heads(attention.key(memory)).to(keys)
            values[index, :, : memory.shape[1]] = attention.split_heads(attention.value(memory)).to(values)
        self._refresh()

    def clear(self, rows: Sequence[int]) -> None:
        """These sequences read nothing from now on."""
        if self.present_rows:
            self.is_token[list(rows)] = False
            self._refresh()

    def place(self, positions: Sequence[int]) -> None:
        """Set each sequence's newest position, from which its distances to the
        retrieved tokens follow."""
        # The attending rows of CCA begin at a chunk's last token, hence position + 1. The
        # distances fall, so a later place in the row starts earlier in them.
        self.firsts = [self.chunk_len - 1 - (position + 1) % self.chunk_len for position in positions]

    def attend(
        self, operator: ChunkedCrossAttention, x: Float[Tensor, "batch width"]
    ) -> Float[Tensor, "batch width"]:
        """CCA for the newest token of each sequence; exactly zero for one without neighbours."""
        number, attention, batch = self.operators.index(operator), operator.attention, len(x)
        shape = (batch, attention.num_heads, attention.head_dim)
        query = attention.scale(attention.query(operator.norm(x))).view(shape)
        logits = query.unsqueeze(2) @ self.keys[number].transpose(-1, -2) + self.bias[number]
        if attention.has_positions:
            by_neighbour = logits.view(batch, attention.num_heads, -1, self.retrieved_len)
            logits = (by_neighbour + self._positional(number, query).unsqueeze(2)).view(logits.shape)
        read: Tensor = attention.out((logits.softmax(-1) @ self.values[number]).view(batch, -1))
        # A softmax over masked keys alone is not zero, so such rows are zeroed here.
        return read if self.present_rows == batch else read * self.present

    def _positional(
        self, number: int, query: Float[Tensor, "batch heads head_dim"]
    ) -> Float[Tensor, "batch heads retrieved"]:
        """Positional logits for each place of [N, F], the same for every
        neighbour of a sequence."""
        attention, keys = self.operators[number].attention, self.distance_keys[number]
        assert keys is not None
        if len(set(self.firsts)) == 1:
            # All sequences are at the same place in their chunks: one slice of
            # distances serves all.
            keys = keys[:, self.firsts[0] : self.firsts[0] + self.retrieved_len]
            return attention.distance_logits(query.transpose(0, 1), keys).transpose(0, 1)
        # Otherwise compute all distances, and gather each sequence's own window of them.
        firsts = torch.tensor(self.firsts, device=query.device)[:, None, None]
        windows = firsts + torch.arange(self.retrieved_len, device=query.device)
        by_distance = attention.distance_logits(query.transpose(0, 1), keys).transpose(0, 1)
        return by_distance.gather(-1, windows.expand(-1, attention.num_heads, -1))

    def select(self, rows: Sequence[int]) -> None:
        """Keep only these sequences; one that is named twice is duplicated."""
        index = torch.tensor(rows, dtype=torch.long, device=self.recent.device)
        self.recent = self.recent[index]
        self.recent_is_token = self.recent_is_token[index]
        self.is_token = self.is_token[index]
        self.keys = [tensor[index] for tensor in self.keys]
        self.values = [tensor[index] for tensor in self.values]
        self._refresh()

    def join(self, other: "NeighbourCache", later: int) -> None:
        """Append the sequences of another cache, whose clock is `later` turns behind this one's."""
        k = max(self.is_token.shape[1], other.is_token.shape[1])
        self._widen(k)
        other._widen(k)
        # What the other clock has put into one place of the ring belongs `later` places further on.
        self.recent = torch.cat([self.recent, other.recent.roll(later, 1)])
        self.recent_is_token = torch.cat([self.recent_is_token, other.recent_is_token.roll(later, 1)])
        self.is_token = torch.cat([self.is_token, other.is_token])
        self.keys = [torch.cat(pair) for pair in zip(self.keys, other.keys, strict=True)]
        self.values = [torch.cat(pair) for pair in zip(self.values, other.values, strict=True)]
        self._refresh()

    def _widen(self, k: int) -> None:
        """Make room for k neighbours in each sequence; the new places are masked."""
        missing = k - self.is_token.shape[1]
        if missing > 0:
            pad = torch.nn.functional.pad
            # `pad` lists the last axis first: nothing there, `missing` at the end
            # of the one before.
            self.is_token = pad(self.is_token, (0, 0, 0, missing))
            width = (0, 0, 0, missing * self.retrieved_len)
            self.keys = [pad(tensor, width) for tensor in self.keys]
            self.values = [pad(tensor, width) for tensor in self.values]

    def _refresh(self) -> None:
        """Compute what stays the same until the next chunk.

        That is which sequences read at all, and the part of the logits that
        does not depend on the query.
        """
        flat = self.is_token.flatten(1)
        mask = mask_bias(flat, self.recent)[:, None, None]
        # (query + bias) · key = query · key + bias · key: the second term is the same
        # for every query.
        self.bias = [
            operator.attention.content_bias @ keys.transpose(-1, -2) + mask
            for operator, keys in zip(self.operators, self.keys, strict=True)
        ]
        present = flat.any(1)
        self.present = present.to(self.recent.dtype)[:, None]
        self.present_rows = int(present.sum())


def mask_bias(is_token: Bool[Tensor, "*batch"], like: Tensor) -> Float[Tensor, "*batch"]:
    """The number to add to logits so that only tokens are attended to.

    It is finite, so that a row without any token gives numbers rather than NaN.
    """
    very_negative = torch.finfo(like.dtype).min / 2
    return like.new_zeros(is_token.shape).masked_fill_(~is_token.to(like.device), very_negative)


def _moved(
    tensor: Float[Tensor, "*batch old width"], start: int, stop: int, capacity: int
) -> Float[Tensor, "*batch new width"]:
    """Slots `start` to `stop`, copied to the front of a tensor with `capacity` slots.

    The rest is zero: masked values are still multiplied, and 0 · NaN would be NaN.
    """
    moved = tensor.new_zeros(*tensor.shape[:-2], capacity, tensor.shape[-1])
    moved[..., : stop - start, :] = tensor[..., start:stop, :]
    return moved
