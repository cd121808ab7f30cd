"""Multi-head attention with relative positions as in Transformer-XL, RMSNorm and
feed-forward."""

import math
from typing import cast

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules import module as module_hooks

from retro.model.gradients import rms_norm
from retro.model.relative import Shape, attention_weights, relative_attention

CAUSAL_BLOCK = 128
"""How many queries causal self-attention computes together. Keys after a block's end are
skipped, which saves nearly half of the products of a long sequence."""
EPSILON = 1e-6
"""Added to the mean of squares that a vector is divided by the root of."""


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
    """All distances i − j + offset between queries i and keys j, largest first."""
    return torch.arange(num_queries - 1 + offset, offset - num_keys, -1, device=like.device, dtype=like.dtype)


class RMSNorm(nn.RMSNorm):
    """Root-mean-square normalisation with a learned gain."""

    def __init__(self, width: int) -> None:
        super().__init__(width, eps=EPSILON)

    def forward(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        return rms_norm(x, self.weight, EPSILON)


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


def joined(x: Float[Tensor, "*batch width"], *maps: nn.Module) -> Float[Tensor, "*batch joined"]:
    """What several linear maps make of the same input, side by side, as one product.

    Each is called by itself where something listens to it or stands in its place, as LoRA does.
    """
    if any(type(one) is not nn.Linear or is_watched(one) for one in maps):
        return torch.cat([one(x) for one in maps], dim=-1)
    return F.linear(x, torch.cat([cast(Tensor, one.weight) for one in maps]))


def is_watched(module: nn.Module) -> bool:
    """Whether a hook would see a call of it, or change what it gives."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks)
    return any(hooks) or bool(module_hooks._has_any_global_hook())


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

    def read(
        self,
        x: Float[Tensor, "batch query width"],
        memory: Float[Tensor, "batch key memory"] | None,
        distances: Float[Tensor, " distance"],
        is_key: Bool[Tensor, "batch key"] | None,
        *,
        groups: int = 1,
        repeats: int = 1,
        block: int = 0,
        is_projected: bool = False,
    ) -> Float[Tensor, "batch query width"]:
        """What the queries of `x` read in a memory, or in `x` itself.

        `distances` has one more than there are; the rest is said in `relative.py`. With `is_projected` the
        memory is what `keys_and_values` has made of it.
        """
        operands = self._operands(x, memory, distances, is_key, is_projected)
        shape = Shape(self.num_heads, 1.0 / math.sqrt(self.head_dim), groups, repeats, block)
        out: Tensor = self.dropout(self.out(relative_attention(*operands, shape)))
        return out

    def weights(
        self,
        x: Float[Tensor, "batch query width"],
        memory: Float[Tensor, "batch key memory_width"] | None,
        distances: Float[Tensor, " distance"],
        is_key: Bool[Tensor, "batch key"] | None,
        *,
        repeats: int = 1,
    ) -> Float[Tensor, "batch heads query key"]:
        """The weights with which they read."""
        operands = self._operands(x, memory, distances, is_key)
        shape = Shape(self.num_heads, 1.0 / math.sqrt(self.head_dim), repeats=repeats)
        return attention_weights(*operands, shape)

    def keys_and_values(
        self, memory: Float[Tensor, "*batch memory_width"]
    ) -> Float[Tensor, "*batch projected"]:
        """Keys and values of a memory side by side: for one that is read more than once."""
        return joined(memory, self.key, self.value)

    def _operands(
        self,
        x: Tensor,
        memory: Tensor | None,
        distances: Tensor,
        is_key: Tensor | None,
        is_projected: bool = False,
    ) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor, Tensor | None, Tensor | None]:
        """Projections, in as few products as there are inputs, and what else the operation takes."""
        if memory is None:
            query = joined(x, self.query, self.key, self.value)
        else:
            query = self.query(x)
            memory = memory if is_projected else self.keys_and_values(memory)
        if not self.has_positions:
            return query, memory, None, self.content_bias, None, is_key
        places = self.position(sinusoids(distances, self.width))
        return query, memory, places, self.content_bias, self.position_bias, is_key

    def scale(self, query: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
        return query / math.sqrt(self.head_dim)


def padding_in(is_token: Bool[Tensor, "batch key"]) -> Bool[Tensor, "batch key"] | None:
    """The mask, or nothing where all are tokens; only where looking costs nothing."""
    looks = is_token.device.type == "cpu" and not torch.compiler.is_compiling()
    return None if looks and bool(is_token.all()) else is_token


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
        read = attention.read(
            self.norm(x).flatten(0, -3),
            None,
            falling_distances(length, length + 1, 0, like=x),
            padding_in(is_token.flatten(0, -2)),
            block=CAUSAL_BLOCK if self.causal else 0,
        )
        return x + read.view(x.shape)
