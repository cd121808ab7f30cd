"""Activation checkpointing: trade time for memory."""

from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint

from retro.model.attention import FeedForward, SelfAttention
from retro.model.chunked_cross_attention import ChunkedCrossAttention
from retro.model.encoder import EncoderCrossAttention

OPERATORS = (SelfAttention, ChunkedCrossAttention, EncoderCrossAttention, FeedForward)
"""The residual operators a block consists of; what lies between two of them is one tensor of the model's width."""


def operators(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if isinstance(module, OPERATORS)]


def recompute_activations(model: nn.Module) -> None:
    """Keep only the inputs of the model's operators in the forward pass, and compute their insides again in the backward pass."""
    for module in operators(model):
        module.forward = partial(checkpoint, module.forward, use_reentrant=False)
