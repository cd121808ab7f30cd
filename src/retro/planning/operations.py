"""How many floating point operations a token of training takes, by the shape of the model."""

from functools import lru_cache

import torch

from retro.config import ModelConfig, TrainingConfig
from retro.run import make_model

PASSES = 3
"""A backward pass takes twice as many operations as the forward pass."""


@lru_cache(maxsize=8)
def num_weights(config: ModelConfig) -> tuple[int, int]:
    """Weights that read every token, and weights of the encoder, which read every neighbour's; no embeddings.

    The model is built without memory.
    """
    with torch.device("meta"):
        model = make_model(config)
    encoder = decoder = 0
    for name, parameter in model.named_parameters():
        if "embedding" in name:
            continue
        if name.startswith("encoder."):
            encoder += parameter.numel()
        else:
            decoder += parameter.numel()
    return decoder, encoder


def forward_operations(config: ModelConfig, seq_len: int, num_neighbours: int) -> float:
    """Operations of a forward pass for each token: two for every weight, and those of attention."""
    decoder, encoder = num_weights(config)
    heads = config.num_heads * config.head_dim
    # Scores and sums over half of the sequence on the average, in every layer.
    attention = 4 * config.num_layers * heads * seq_len / 2
    logits = 2 * config.vocab_size * config.d_model
    # Each chunk reads k neighbours of r tokens: k·r/m of them for every token.
    retrieved = num_neighbours * config.retrieved_len / config.chunk_len if config.uses_retrieval else 0.0
    return 2 * decoder + attention + logits + 2 * encoder * retrieved


def training_operations(model: ModelConfig, training: TrainingConfig) -> float:
    """Operations of a training step for each token."""
    return PASSES * forward_operations(model, training.seq_len, training.num_neighbours)
