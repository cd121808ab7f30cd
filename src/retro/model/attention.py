"""Multi-head attention with relative positions as in Transformer-XL, RMSNorm and
feed-forward."""

import math

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

CAUSAL_BLOCK = 128
"""How many queries causal self-attention computes together. Keys after a block's end are
skipped, which saves nearly half of the products of a long sequence."""


def sinusoids(distances: Float[Tensor, " distance"], width: int) -> Float[Tensor, "distance width"]:
    """Sines and cosines of each distance, at the frequencies of the original transformer."""
    half = width // 2
    # Frequencies fall geometrically from 1 to nearly 1/10,000.
    exponents = torch.arange(half, device=distances.device, dtype=distances.dtype) / half
    angles = distances[:, None] * (10_000.0**-exponents)[None, :]
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


def falling_distances(
    num_queries: int, num_keys: int, offset: int, like: Tensor
) -> Float[Tensor, " distance"]:
    """All distances i − j + offset between queries i and keys j, largest first, as
    `shift` expects them."""
    return torch.arange(num_queries - 1 + offset, offset - num_keys, -1, device=like.device, dtype=like.dtype)


def shift(
    by_distance: Float[Tensor, "*batch query distance"], num_keys: int
) -> Float[Tensor, "*batch query key"]:
    """Turn logits by falling distance into logits by key. The result is a view, not a copy."""
    *batch, num_queries, num_distances = by_distance.shape
    assert num_distances == num_queries + num_keys - 1
    by_distance = by_distance.contiguous()
    # Query i's keys are consecutive columns that start at column `num_queries − 1 − i`, so
    # each row starts one column earlier than the row before. A row stride that is one short
    # of the row's length takes exactly that step.
    return by_distance.as_strided(
        (*batch, num_queries, num_keys),
        (*by_distance.stride()[:-2], num_distances - 1, 1),
        by_distance.storage_offset() + num_queries - 1,
    )


class RMSNorm(nn.RMSNorm):
    """Root-mean-square normalisation with a learned gain."""

    def __init__(self, width: int) -> None:
        super().__init__(width, eps=1e-6)


class FeedForward(nn.Module):
    """The residual fully-connected operator, FFW in the paper."""

    def __init__(self, width: int, hidden: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm = RMSNorm(width)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        return x + self.dropout(self.down(F.gelu(self.up(self.norm(x)), approximate="tanh")))


class RelativeAttention(nn.Module):
    """Transformer-XL attention: the logits are a content term plus a positional term. The
    positional term compares the query with a learned map of the distance's sinusoids.

    It has no residual connection and no norm; the operators built on it add both.
    """

    def __init__(
        self,
        width: int,
        memory_width: int,
        num_heads: int,
        head_dim: int,
        positions: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        inner = num_heads * head_dim
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.width = width
        self.query = nn.Linear(width, inner, bias=False)
        self.key = nn.Linear(memory_width, inner, bias=False)
        self.value = nn.Linear(memory_width, inner, bias=False)
        self.out = nn.Linear(inner, width, bias=False)
        # The biases are u and v of Transformer-XL: what every query asks for,
        # whatever its token.
        self.content_bias = nn.Parameter(torch.zeros(num_heads, 1, head_dim))
        if positions:
            self.position = nn.Linear(width, inner, bias=False)
            self.position_bias = nn.Parameter(torch.zeros(num_heads, 1, head_dim))
        self.has_positions = positions
        self.dropout = nn.Dropout(dropout)

    def split_heads(
        self, x: Float[Tensor, "*batch time inner"]
    ) -> Float[Tensor, "*batch heads time head_dim"]:
        return rearrange(x, "... time (heads head_dim) -> ... heads time head_dim", heads=self.num_heads)

    def merge_heads(
        self, x: Float[Tensor, "*batch heads time head_dim"]
    ) -> Float[Tensor, "*batch time width"]:
        merged: Tensor = self.dropout(
            self.out(rearrange(x, "... heads time head_dim -> ... time (heads head_dim)"))
        )
        return merged

    def content_logits(
        self,
        query: Float[Tensor, "*batch heads query head_dim"],
        key: Float[Tensor, "*batch heads key head_dim"],
    ) -> Float[Tensor, "*batch heads query key"]:
        return (query + self.content_bias) @ key.transpose(-1, -2)

    def distance_keys(
        self, distances: Float[Tensor, " distance"]
    ) -> Float[Tensor, "heads distance head_dim"]:
        """The vectors that queries are compared with for their positional logits."""
        return self.split_heads(self.position(sinusoids(distances, self.width)))

    def distance_logits(
        self,
        query: Float[Tensor, "*batch heads query head_dim"],
        keys: Float[Tensor, "heads distance head_dim"],
    ) -> Float[Tensor, "*batch heads query distance"]:
        """Positional logits of every query for every distance."""
        return (query + self.position_bias) @ keys.transpose(-1, -2)

    def scale(self, query: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
        return query / math.sqrt(self.head_dim)


def masked_softmax(
    logits: Float[Tensor, "*batch query key"], mask: Bool[Tensor, "*#batch #query key"]
) -> Float[Tensor, "*batch query key"]:
    """Softmax over the keys that the mask allows.

    A query that may attend to nothing gets meaningless weights; callers discard them.
    The logits are overwritten in place: that saves a copy of the step's largest
    tensor, and no gradient needs them.
    """
    return logits.masked_fill_(~mask, torch.finfo(logits.dtype).min).softmax(dim=-1)


class SelfAttention(nn.Module):
    """The residual operator ATTN of the paper: causal in the decoder,
    bidirectional in the encoder."""

    def __init__(self, width: int, num_heads: int, head_dim: int, causal: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.causal = causal
        self.norm = RMSNorm(width)
        self.attention = RelativeAttention(width, width, num_heads, head_dim, dropout=dropout)

    def forward(
        self, x: Float[Tensor, "*batch time width"], is_token: Bool[Tensor, "*batch time"]
    ) -> Float[Tensor, "*batch time width"]:
        """`is_token` is false at padding, which nothing attends to."""
        attention, length = self.attention, x.shape[-2]
        normed = self.norm(x)
        query = attention.scale(attention.split_heads(attention.query(normed)))
        key = attention.split_heads(attention.key(normed))
        value = attention.split_heads(attention.value(normed))
        # Once for all blocks; each takes a slice.
        distance_keys = attention.distance_keys(falling_distances(length, length, 0, like=x))
        # One mask for all heads and queries.
        mask = is_token[..., None, None, :]

        outputs = []
        for start in range(0, length, CAUSAL_BLOCK if self.causal else length):
            # A causal block of queries needs no keys after its own end.
            stop = min(start + CAUSAL_BLOCK, length) if self.causal else length
            rows = query[..., start:stop, :]
            # All distances fall from length − 1 to 1 − length. Those between this block and
            # its keys run from stop − 1 down to start − stop + 1.
            distances = slice(length - stop, length + stop - start - 1)
            by_distance = attention.distance_logits(rows, distance_keys[:, distances])
            logits = attention.content_logits(rows, key[..., :stop, :]) + shift(by_distance, stop)
            weights = masked_softmax(logits, self._mask(mask[..., :stop], start, stop))
            outputs.append(weights @ value[..., :stop, :])
        return x + attention.merge_heads(torch.cat(outputs, dim=-2))

    def _mask(
        self, is_token: Bool[Tensor, "*batch 1 1 key"], start: int, stop: int
    ) -> Bool[Tensor, "*batch 1 #query key"]:
        if not self.causal:
            return is_token
        # Row r of the block is query start + r, which sees the keys up to itself.
        return is_token & torch.ones(stop - start, stop, dtype=torch.bool, device=is_token.device).tril(start)
