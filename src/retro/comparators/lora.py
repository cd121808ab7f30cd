"""LoRA (Hu et al., 2021): a model tuned on text by small additions to its linear maps.

Hooks add them while the model reads, so that it needs no second copy: outside `attached` it is what it was.
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.module import register_module_forward_hook
from transformers.pytorch_utils import Conv1D

from retro.model.protocol import LanguageModel
from retro.retrieval.chunks import ChunkTable
from retro.scoring.windows import Window, batch_inputs

RANK = 8
SCALE = 2.0
"""What the additions are multiplied by: α / rank, with α = 16."""
LEARNING_RATE = 1e-3


@dataclass(frozen=True)
class LinearMap:
    """A module that multiplies by a matrix."""

    module: nn.Module
    inputs: int
    outputs: int


def linear_maps(model: LanguageModel) -> list[LinearMap]:
    """Those that a model runs through when it reads text without retrieval, but not its output matrix."""
    found: dict[nn.Module, LinearMap] = {}

    def note(module: nn.Module, inputs: tuple[Tensor, ...], output: Any) -> None:
        if isinstance(module, nn.Linear | Conv1D) and output.shape[-1] != model.facts.vocab_size:
            found[module] = LinearMap(module, inputs[0].shape[-1], output.shape[-1])

    # Of all modules, as a model may hide those that it reads with; what is called is what counts.
    handle = register_module_forward_hook(note)
    token = (model.facts.pad_id + 1) % model.facts.vocab_size
    try:
        with torch.no_grad():
            model(torch.full((1, 2), token, device=model.device))
    finally:
        handle.remove()
    return list(found.values())


class Lora:
    """Additions to all linear maps of a model, of low rank, and nothing at first."""

    def __init__(self, model: LanguageModel, seed: int = 0) -> None:
        self.model = model
        self.maps = linear_maps(model)
        generator = torch.Generator().manual_seed(seed)
        self.down: list[Tensor] = []
        self.up: list[Tensor] = []
        for one in self.maps:
            weight: Any = one.module.weight
            # As a linear layer's weights are drawn; the other side is zero, so that nothing changes at first.
            drawn = (2 * torch.rand(RANK, one.inputs, generator=generator) - 1) / math.sqrt(one.inputs)
            self.down.append(drawn.to(weight).requires_grad_(True))
            self.up.append(torch.zeros(one.outputs, RANK).to(weight).requires_grad_(True))

    def arrays(self) -> dict[str, np.ndarray]:
        """What was learned, as it is kept."""
        named = {f"{side}-{i:04}": tensor for side, i, tensor in self._tensors()}
        return {name: tensor.detach().float().cpu().numpy() for name, tensor in named.items()}

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        with torch.no_grad():
            for side, i, tensor in self._tensors():
                tensor.copy_(torch.from_numpy(arrays[f"{side}-{i:04}"]))

    def _tensors(self) -> Iterator[tuple[str, int, Tensor]]:
        for side, tensors in (("down", self.down), ("up", self.up)):
            for i, tensor in enumerate(tensors):
                yield side, i, tensor

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Within this block the model reads with the additions."""
        handles = [
            one.module.register_forward_hook(_adding(down, up))
            for one, down, up in zip(self.maps, self.down, self.up, strict=True)
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def tune(self, table: ChunkTable, windows: Iterable[Window]) -> int:
        """Learn to predict the windows, one after the other; returns how many there were."""
        optimizer = torch.optim.AdamW([*self.down, *self.up], lr=LEARNING_RATE)
        count = 0
        with self.attached(), torch.enable_grad():
            for window in windows:
                tokens = batch_inputs(table, [window])[0].to(self.model.device)
                loss = -self.model.score(tokens[:, :-1], tokens[:, 1:]).log_probs.mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                count += 1
        return count


def _adding(down: Tensor, up: Tensor) -> Any:
    def add(_module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return output + SCALE * F.linear(F.linear(inputs[0], down), up)

    return add
