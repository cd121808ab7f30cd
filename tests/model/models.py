"""Small random models and inputs for the tests of this folder."""

import dataclasses
from typing import Any

import torch
from torch import Tensor

from retro.config import EncoderConfig, ModelConfig, RetrievalConfig
from retro.model.retro import Retro

VOCAB = 31


RETRIEVAL_FIELDS = {entry.name for entry in dataclasses.fields(RetrievalConfig)}


def small_config(**changes: Any) -> ModelConfig:
    """Changes may name fields of the model and of its retrieval; without cross-attention layers it is a
    baseline."""
    encoder = EncoderConfig(
        d_model=6, num_layers=2, num_heads=2, head_dim=5, ffw_dim=12, cross_attention_layers=(1,)
    )
    settings: dict[str, Any] = {
        "vocab_size": VOCAB,
        "d_model": 8,
        "num_layers": 3,
        "num_heads": 2,
        "head_dim": 3,
        "ffw_dim": 16,
        "chunk_len": 4,
        "cross_attention_layers": (2, 3),
        "encoder": encoder,
    }
    settings |= changes
    chosen = {name: settings.pop(name) for name in RETRIEVAL_FIELDS & settings.keys()}
    retrieval = RetrievalConfig(**chosen) if chosen["cross_attention_layers"] else None
    return ModelConfig(**settings, retrieval=retrieval)


def small_model(seed: int = 0, dtype: torch.dtype = torch.float64, **changes: Any) -> Retro:
    """A model whose every parameter is random, the biases and gains too, so that none can be forgotten
    unseen."""
    torch.manual_seed(seed)
    model = Retro(small_config(**changes)).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim != 2:
                parameter.add_(0.5 * torch.randn_like(parameter))
        if model.pointer is not None:
            # They start at zero, and would hide what they multiply.
            for weight in (model.pointer.gate.weight, model.pointer.state.weight):
                weight.copy_(torch.randn_like(weight))
    return model.eval()


def random_inputs(
    config: ModelConfig, batch: int, seq_len: int, k: int, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, neighbours with padded ends, and a mask with some neighbours missing."""
    generator = torch.Generator().manual_seed(seed)
    num_chunks, r = seq_len // config.chunk_len, config.retrieved_len
    tokens = torch.randint(1, VOCAB, (batch, seq_len), generator=generator)
    neighbours = torch.randint(1, VOCAB, (batch, num_chunks, k, r), generator=generator)
    lengths = torch.randint(1, r + 1, (batch, num_chunks, k, 1), generator=generator)
    neighbours = torch.where(torch.arange(r) < lengths, neighbours, config.pad_id)
    mask = torch.rand((batch, num_chunks, k), generator=generator) < 0.7
    return tokens, neighbours, mask
