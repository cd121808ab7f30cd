"""Relative positions as in Transformer-XL: sinusoids of a distance, and the shift from distances to key positions."""

import torch
from jaxtyping import Float
from torch import Tensor


def sinusoids(distances: Float[Tensor, " distance"], width: int) -> Float[Tensor, "distance width"]:
    """The vector of sines and cosines of each distance, with the frequencies of the original transformer."""
    half = width // 2
    exponents = torch.arange(half, device=distances.device, dtype=distances.dtype) / half
    angles = distances[:, None] * (10_000.0**-exponents)[None, :]
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


def falling_distances(
    num_queries: int, num_keys: int, offset: int, like: Tensor
) -> Float[Tensor, " distance"]:
    """All distances i − j + offset between queries and keys counted from 0, largest first, as `shift` expects them."""
    return torch.arange(num_queries - 1 + offset, offset - num_keys, -1, device=like.device, dtype=like.dtype)


def shift(
    by_distance: Float[Tensor, "*batch query distance"], num_keys: int
) -> Float[Tensor, "*batch query key"]:
    """Turn logits by falling distance into logits by key: query i's window starts at distance column `queries − 1 − i`.

    The result is a view; nothing is copied.
    """
    *batch, num_queries, num_distances = by_distance.shape
    assert num_distances == num_queries + num_keys - 1
    by_distance = by_distance.contiguous()
    return by_distance.as_strided(
        (*batch, num_queries, num_keys),
        (*by_distance.stride()[:-2], num_distances - 1, 1),
        by_distance.storage_offset() + num_queries - 1,
    )
