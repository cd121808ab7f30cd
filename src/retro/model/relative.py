"""Relative attention as one operation with its own gradients: two terms of logits, softmax, values.

What costs beside the products is passes over memory, so there are few: the positional products of all
sequences are one product a head, the logits are added up, masked and turned into weights in place, keys and
values are laid out once, and the gradient of the projections is written where the projections' own backward
pass reads it.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable


@dataclass(frozen=True)
class Shape:
    """How queries and keys of one attention belong together."""

    num_heads: int
    scale: float
    """What queries are multiplied with before their biases are added."""
    groups: int = 1
    """Rows of queries that stand at the same places, one behind another: a chunk's neighbours that ask."""
    repeats: int = 1
    """Rows of keys that stand at the same places, one behind another: a chunk's neighbours that are read."""
    block: int = 0
    """Causal if positive: so many queries are computed together, and keys after the last of them skipped."""


def relative_attention(
    query: Float[Tensor, "batch query projected"],
    memory: Float[Tensor, "batch key projected_too"] | None,
    places: Float[Tensor, "distance inner"] | None,
    content_bias: Float[Tensor, "heads 1 head_dim"],
    position_bias: Float[Tensor, "heads 1 head_dim"] | None,
    is_key: Bool[Tensor, "batch key"] | None,
    shape: Shape,
) -> Float[Tensor, "batch query inner"]:
    """What every query reads.

    `memory` holds keys and values side by side; without it `query` holds queries, keys and values. `places`
    are the vectors of all distances, falling by one, and one more behind the last; without them there is no
    positional term. `is_key` is false at keys that nothing attends to; without it all are attended to. A
    query that may attend to nothing reads something meaningless, which callers discard.
    """
    found: Tensor = _RelativeAttention.apply(
        query, memory, places, content_bias, position_bias, is_key, shape
    )
    return found


@torch.no_grad()
def attention_weights(
    query: Float[Tensor, "batch query projected"],
    memory: Float[Tensor, "batch key projected_too"] | None,
    places: Float[Tensor, "distance inner"] | None,
    content_bias: Float[Tensor, "heads 1 head_dim"],
    position_bias: Float[Tensor, "heads 1 head_dim"] | None,
    is_key: Bool[Tensor, "batch key"] | None,
    shape: Shape,
) -> Float[Tensor, "batch heads query key"]:
    """The weights with which every query reads the keys, where it reads them all at once; no gradients."""
    parts = _Parts(query, memory, places, content_bias, position_bias, is_key, shape)
    return parts.weights(0, parts.queries.shape[1], _by_head(parts.keys)).unflatten(0, (-1, shape.num_heads))


class _Parts:
    """The operands of an attention, as (batch, time, head, head_dim) and views of what was given."""

    def __init__(
        self,
        query: Tensor,
        memory: Tensor | None,
        places: Tensor | None,
        content_bias: Tensor,
        position_bias: Tensor | None,
        is_key: Tensor | None,
        shape: Shape,
    ) -> None:
        self.queries, self.keys, self.values = _split(query, memory, shape.num_heads)
        self.places = None if places is None else places.unflatten(-1, (shape.num_heads, -1)).transpose(0, 1)
        dtype = query.dtype
        self.content_bias = content_bias.to(dtype)
        self.position_bias = None if position_bias is None else position_bias.to(dtype)
        self.is_key = is_key
        self.shape = shape
        # Two of them can be added up and are still no infinity.
        self.low = torch.finfo(dtype).min / 4

    def blocks(self) -> list[tuple[int, int, int]]:
        """First and last query of each block, and how many keys it sees."""
        length, num_keys = self.queries.shape[1], self.keys.shape[1]
        if not self.shape.block:
            return [(0, length, num_keys)]
        starts = range(0, length, self.shape.block)
        stops = [min(start + self.shape.block, length) for start in starts]
        return [(start, stop, stop) for start, stop in zip(starts, stops, strict=True)]

    def content_queries(self, start: int, stop: int) -> Float[Tensor, "batch_heads query head_dim"]:
        rows = self.queries[:, start:stop]
        batch, length, heads, head_dim = rows.shape
        out = rows.new_empty(batch, heads, length, head_dim)
        _add_into(out, self.content_bias, rows.transpose(1, 2), self.shape.scale)
        return out.flatten(0, 1)

    def position_queries(self, start: int, stop: int) -> Float[Tensor, "heads batch_query head_dim"]:
        """By head first: all sequences are compared with the same places."""
        assert self.position_bias is not None
        rows = self.queries[:, start:stop]
        batch, length, heads, head_dim = rows.shape
        out = rows.new_empty(heads, batch, length, head_dim)
        bias = self.position_bias[:, None]
        _add_into(out, bias, rows.permute(2, 0, 1, 3), self.shape.scale)
        return out.flatten(1, 2)

    def nearby(self, start: int, stop: int) -> Float[Tensor, "heads distance head_dim"]:
        """The places between a block and the keys that it sees, and one more."""
        assert self.places is not None
        if not self.shape.block:
            return self.places
        length = self.queries.shape[1]
        # All distances fall from length − 1. The block's run from stop − 1 down to start − stop + 1.
        return self.places[:, length - stop : length + stop - start]

    def by_key(self, by_distance: Tensor, length: int) -> Float[Tensor, "batch heads group query 1 key"]:
        """A view of (heads, batch · queries, distance) by key, shared by all repeats of the keys.

        A query's keys are consecutive columns, and start one column earlier than those of the query before.
        """
        batch, groups = self.queries.shape[0], self.shape.groups
        heads, _, num_distances = by_distance.shape
        rows = length // groups
        num_keys = num_distances - rows
        by_row = rows * num_distances
        return by_distance.as_strided(
            (batch, heads, groups, rows, 1, num_keys),
            (groups * by_row, batch * groups * by_row, by_row, num_distances - 1, 0, 1),
            by_distance.storage_offset() + rows - 1,
        )

    def logits_as(self, logits: Tensor, length: int) -> Float[Tensor, "batch heads group query repeat key"]:
        """The same logits with all that belongs together."""
        shape = self.shape
        sizes = (-1, shape.num_heads, shape.groups, length // shape.groups, shape.repeats)
        return logits.view(*sizes, logits.shape[-1] // shape.repeats)

    def by_distance(
        self, d_logits: Float[Tensor, "batch_heads query key"], length: int
    ) -> Float[Tensor, "heads batch_query distance"]:
        """The gradient of positional logits by distance, from that by key; zeros elsewhere."""
        grouped = self.logits_as(d_logits, length)
        batch, heads, _, rows, _, num_keys = grouped.shape
        result = d_logits.new_zeros(heads, batch * length, rows + num_keys)
        # What the repeats of the keys share, all of them have a part in.
        shared = grouped.sum(4, keepdim=True) if self.shape.repeats > 1 else grouped
        self.by_key(result, length).copy_(shared)
        return result

    def weights(
        self, start: int, stop: int, keys: Float[Tensor, "batch_heads key head_dim"]
    ) -> Float[Tensor, "batch_heads query key"]:
        """The weights of a block's queries; `keys` are those that it sees."""
        length = stop - start
        logits = self.content_queries(start, stop) @ keys.transpose(-1, -2)
        if self.places is not None:
            by_distance = self.position_queries(start, stop) @ self.nearby(start, stop).transpose(-1, -2)
            if self.shape.block:
                # A key after its query is at a negative distance: the last ones.
                by_distance[..., by_distance.shape[-1] - length :] = self.low
            self.logits_as(logits, length).add_(self.by_key(by_distance, length))
        elif self.shape.block:
            after = torch.ones(length, length, dtype=torch.bool, device=logits.device).triu(1)
            logits[..., start:].masked_fill_(after, self.low)
        if self.is_key is not None:
            barred = torch.zeros(self.is_key.shape, dtype=logits.dtype, device=logits.device)
            barred.masked_fill_(~self.is_key, self.low)
            logits.unflatten(0, (-1, self.shape.num_heads)).add_(barred[:, None, None, : logits.shape[-1]])
        return logits.softmax(-1)


def _split(query: Tensor, memory: Tensor | None, num_heads: int) -> list[Tensor]:
    """Queries, keys and values as (batch, time, head, head_dim)."""
    if memory is None:
        return list(query.unflatten(-1, (3, num_heads, -1)).unbind(2))
    return [
        query.unflatten(-1, (num_heads, -1)),
        *memory.unflatten(-1, (2, num_heads, -1)).unbind(2),
    ]


def _add_into(out: Tensor, left: Tensor, right: Tensor, scale: float) -> None:
    """Write left + scale · right to where it is needed, in its layout."""
    if torch.compiler.is_compiling():  # it takes `out` for a tensor of the operands' layout
        out.copy_(left + scale * right)
    else:
        torch.add(left, right, alpha=scale, out=out)


def _by_head(x: Float[Tensor, "batch time heads head_dim"]) -> Float[Tensor, "batch_heads time head_dim"]:
    return x.transpose(1, 2).reshape(-1, x.shape[1], x.shape[3])


class _RelativeAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        memory: Tensor | None,
        places: Tensor | None,
        content_bias: Tensor,
        position_bias: Tensor | None,
        is_key: Tensor | None,
        shape: Shape,
    ) -> Tensor:
        with torch.autocast(query.device.type, enabled=False):
            places = None if places is None else places.to(query.dtype)
            parts = _Parts(query, memory, places, content_bias, position_bias, is_key, shape)
            keys, values = _by_head(parts.keys), _by_head(parts.values)
            out = torch.empty(parts.queries.shape, dtype=query.dtype, device=query.device)
            kept = []
            for start, stop, seen in parts.blocks():
                weights = parts.weights(start, stop, keys[:, :seen])
                read = (weights @ values[:, :seen]).unflatten(0, (-1, shape.num_heads))
                out[:, start:stop] = read.transpose(1, 2)
                kept.append(weights)
        ctx.shape = shape
        ctx.save_for_backward(query, memory, places, content_bias, position_bias, is_key, keys, values, *kept)
        return out.flatten(2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, memory, places, content_bias, position_bias, is_key, keys, values, *kept = ctx.saved_tensors
        shape: Shape = ctx.shape
        parts = _Parts(query, memory, places, content_bias, position_bias, is_key, shape)
        d_query = torch.empty_like(query)
        d_memory = None if memory is None else torch.empty_like(memory)
        to_queries, to_keys, to_values = _split(d_query, d_memory, shape.num_heads)
        # Sums over all blocks, and biases over all sequences, in float32 at least.
        exact = torch.promote_types(query.dtype, torch.float32)
        d_content = torch.zeros_like(content_bias, dtype=exact)
        d_position = None if position_bias is None else torch.zeros_like(position_bias, dtype=exact)
        d_places = None if parts.places is None else torch.zeros_like(parts.places, dtype=exact)
        gradient = gradient.unflatten(-1, (shape.num_heads, -1)).to(query.dtype)
        d_keys: Tensor | None = None
        d_values: Tensor | None = None
        # The last block first, as it sees all keys.
        for (start, stop, seen), weights in zip(parts.blocks()[::-1], kept[::-1], strict=True):
            length = stop - start
            wanted = _by_head(gradient[:, start:stop])
            d_values = _added(d_values, weights.transpose(-1, -2) @ wanted)
            d_weights = wanted @ values[:, :seen].transpose(-1, -2)
            d_logits = torch._softmax_backward_data(d_weights, weights, -1, weights.dtype)
            d_keys = _added(d_keys, d_logits.transpose(-1, -2) @ parts.content_queries(start, stop))
            d_rows = (d_logits @ keys[:, :seen]).unflatten(0, (-1, shape.num_heads))
            d_content += d_rows.sum((0, 2), dtype=exact)[:, None]
            d_rows = d_rows.transpose(1, 2)
            if d_places is not None:
                nearby = parts.nearby(start, stop)
                by_distance = parts.by_distance(d_logits, length)
                first = (parts.queries.shape[1] - stop) if shape.block else 0
                queries = parts.position_queries(start, stop)
                d_places[:, first : first + nearby.shape[1]] += by_distance.transpose(-1, -2) @ queries
                d_positional = by_distance @ nearby
                assert d_position is not None
                d_position += d_positional.sum(1, dtype=exact)[:, None]
                d_rows = d_rows + d_positional.unflatten(1, (-1, length)).permute(1, 2, 0, 3)
            _add_into(to_queries[:, start:stop], d_rows.new_zeros(()), d_rows, shape.scale)
        assert d_keys is not None
        assert d_values is not None
        to_keys.copy_(d_keys.unflatten(0, (-1, shape.num_heads)).transpose(1, 2))
        to_values.copy_(d_values.unflatten(0, (-1, shape.num_heads)).transpose(1, 2))
        return (
            d_query,
            d_memory,
            None if d_places is None else d_places.transpose(0, 1).flatten(1).to(places.dtype),
            d_content.to(content_bias.dtype),
            None if d_position is None else d_position.to(position_bias.dtype),
            None,
            None,
        )


def _added(total: Tensor | None, more: Tensor) -> Tensor:
    """A sum over blocks whose first part has all keys and whose others have the first of them."""
    if total is None:
        return more
    total[:, : more.shape[1]] += more
    return total
