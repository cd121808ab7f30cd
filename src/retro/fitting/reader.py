"""Who reads the neighbours: the base itself, or a copy of it in half precision.

Neighbours are two to twenty times as many tokens as the text that reads them, and what is computed of them
is only looked at. Where the hardware multiplies bfloat16 faster, a copy of the base reads them in that, while
the text is still read by the base itself: without neighbours, nothing changes.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from retro.fitting.places import Places
from retro.fitting.readings import Joints, Reading, active


@dataclass(frozen=True)
class Reader:
    """A decoder, and the joints by which a reading follows it."""

    decoder: nn.Module
    joints: Joints

    def read(self, reading: Reading | None, **inputs: Any) -> Any:
        """A forward pass up to the last states."""
        with active(reading):
            return self.decoder(**inputs)


def reader_in(dtype: torch.dtype, decoder: nn.Module, places: Places, watched: tuple[int, ...]) -> Reader:
    """A reader by a copy of the decoder's weights in another precision."""
    names = {id(module): name for name, module in decoder.named_modules()}
    # Hooks are copied, too, and stay silent: they ask for readings of the base.
    copied = copy.deepcopy(decoder)
    change_weights(copied, lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor)

    def same(module: nn.Module | None) -> nn.Module | None:
        return None if module is None else copied.get_submodule(names[id(module)])

    layers = tuple(copied.get_submodule(names[id(layer)]) for layer in places.layers)
    found = replace(places, layers=layers, attentions=tuple(map(same, places.attentions)))
    return Reader(copied, Joints(copied, found, watched, ()))


def change_weights(module: nn.Module, change: Callable[[Tensor], Tensor], recurse: bool = True) -> None:
    """Change all weights, as `nn.Module.to` does.

    What a base computes for itself, such as frequencies of rotations, keeps its precision, as it does in a
    base that is opened in half precision.
    """
    kept = [
        (part, name, buffer)
        for part in module.modules()
        for name, buffer in part._buffers.items()
        if buffer is not None and name in part._non_persistent_buffers_set
    ]
    module._apply(change, recurse)
    for part, name, buffer in kept:
        moved = part._buffers[name]
        if moved is not None and moved.dtype != buffer.dtype:
            part._buffers[name] = buffer.to(moved.device)
