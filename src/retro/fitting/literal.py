"""What a base reads beside its text, computed once more by its own attention over both together."""

from typing import Any

import torch
from torch import Tensor

from retro.fitting.beside import PREFIX, Memory
from retro.fitting.fitted import FittedModel
from retro.fitting.interface import Asked, own_attention
from retro.fitting.whole import WholeReading


class Literal(WholeReading):
    """Compares what is read with the base's own attention over the neighbours' keys and its own together."""

    def __init__(self, model: FittedModel, retrieved: Any, tokens: Tensor) -> None:
        super().__init__(model, retrieved, torch.ones_like(tokens, dtype=torch.bool))
        self.off = 0.0
        self.worst = 0
        self.near = 0.0

    def attend(self, layer: int, asked: Asked) -> Tensor:
        mixed = super().attend(layer, asked)
        for chunk in range(self.num_chunks):
            first = (chunk + 1) * self.chunk_len - 1
            rows = slice(first, min(first + self.chunk_len, asked.query.shape[2]))
            joint = _joint(asked, self.retrieved.memories[layer], chunk, rows)
            # Against what the neighbours change: a fault must not hide behind a small change.
            effect = (joint - asked.own[:, rows]).abs().max().double()
            noise = 30 * torch.finfo(joint.dtype).eps * joint.abs().max().double()
            off = float((mixed[:, rows] - joint).abs().max().double() / (effect + noise))
            if off > self.off:
                self.off = off
                self.worst = layer
        self.near = 0.01 if mixed.dtype in (torch.float32, torch.float64) else 0.5
        return mixed


def _joint(asked: Asked, memory: Memory, chunk: int, rows: slice) -> Tensor:
    """The base's own attention of some rows, over the neighbours of a chunk and the text."""
    key = torch.cat([memory.keys[:, chunk], asked.key], 2)
    value = torch.cat([memory.values[:, chunk], asked.value], 2)
    query = asked.query[:, :, rows]
    batch, past, read = len(key), asked.key.shape[2], memory.keys.shape[3]
    seen = asked.mask
    if seen is None:
        causal = torch.ones(asked.query.shape[2], past, dtype=torch.bool, device=key.device).tril()
        seen = (
            causal
            if _takes_bool(asked)
            else torch.zeros_like(causal, dtype=key.dtype).masked_fill(~causal, -1e9)
        )
        seen = seen.expand(batch, 1, -1, -1)
    seen = seen[..., rows, :past].expand(batch, -1, -1, -1)
    is_read = memory.is_token[:, chunk, None, None].expand(*seen.shape[:3], -1)
    if seen.dtype != torch.bool:
        is_read = torch.zeros_like(is_read, dtype=seen.dtype).masked_fill(~is_read, -1e9)
    mask = torch.cat([is_read, seen], -1)
    options = dict(asked.options)
    if asked.position_bias is not None:
        bias = asked.position_bias[..., rows, :]
        options["position_bias"] = torch.cat([bias.new_zeros(*bias.shape[:-1], read), bias], -1)
    function = own_attention(asked.module, PREFIX)
    return function(asked.module, query, key, value, mask, **options)[0]


def _takes_bool(asked: Asked) -> bool:
    config: Any = asked.module.config
    return bool(config._attn_implementation == PREFIX + "sdpa")
