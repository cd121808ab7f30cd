"""The cache of keys and values that transformers keeps for a base: two put together, and one made shorter."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from retro.errors import ConfigError


def join_caches(cache: Any, other: Any, slots: int) -> None:
    """Append the sequences of another cache; both end at the last of so many slots.

    Slots before a sequence begins hold zeros, and are masked by whoever attends.
    """
    _expect_plain(cache)
    _expect_plain(other)
    for own, new in zip(cache.layers, other.layers, strict=True):
        if not own.is_initialized:
            continue
        # A layer with a window keeps its last tokens only, so it has fewer slots than the sequence.
        kept = max(own.keys.shape[-2], new.keys.shape[-2])
        own.keys = torch.cat([_padded(own.keys, kept), _padded(new.keys, kept)])
        own.values = torch.cat([_padded(own.values, kept), _padded(new.values, kept)])
        if own.is_sliding:
            own.cumulative_length = slots


def crop_front(cache: Any, unused: int) -> bool:
    """Take the first slots away, which no sequence uses; whether that was possible."""
    if not _is_plain(cache):
        return False
    for layer in cache.layers:
        if not layer.is_initialized:
            continue
        length = layer.get_seq_length() - unused
        kept = min(layer.keys.shape[-2], length)
        layer.keys = layer.keys[..., layer.keys.shape[-2] - kept :, :]
        layer.values = layer.values[..., layer.values.shape[-2] - kept :, :]
        if layer.is_sliding:
            layer.cumulative_length = length
    return True


def _padded(tensor: Tensor, slots: int) -> Tensor:
    return pad(tensor, (0, 0, slots - tensor.shape[-2], 0))


def _is_plain(cache: Any) -> bool:
    """Whether all that is kept are keys and values of tokens, the newest last."""
    from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

    return all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in cache.layers)


def _expect_plain(cache: Any) -> None:
    if not _is_plain(cache):
        raise ConfigError(
            "the base keeps more than keys and values of its past tokens; expected a plain cache for "
            "sequences that join a running batch; let one batch end before the next begins"
        )
