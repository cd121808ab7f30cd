"""What a step minimises, and how: the loss as one module, AdamW, and the paper's schedule."""

import math
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from retro.config import TrainingConfig
from retro.machine import products_in
from retro.model.protocol import TrainableModel


class TokenLoss(nn.Module):
    """Cross-entropy in nats, summed over the tokens that are predicted.

    This module is what is sharded, compiled and run in lower precision. The loss is a sum, so
    that it can be divided by the number of predicted tokens in all processes together.
    """

    def __init__(self, model: TrainableModel, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.model = model
        self.dtype = dtype

    def forward(
        self,
        tokens: Int[Tensor, "batch seq"],
        targets: Int[Tensor, "batch seq"],
        neighbours: Int[Tensor, "batch chunk neighbour retrieved"] | None = None,
        neighbour_mask: Bool[Tensor, "batch chunk neighbour"] | None = None,
    ) -> Float[Tensor, ""]:
        with products_in(self.dtype, tokens.device):
            return -self.model.score(tokens, targets, neighbours, neighbour_mask).log_probs.sum()


def recompute_activations(model: TrainableModel) -> None:
    """Trade time for memory: keep only the inputs of the operators, and recompute the rest in
    the backward pass."""
    for module in model.operators():
        # The method is replaced, as wrapping the module would rename its parameters.
        module.forward = partial(checkpoint, module.forward, use_reentrant=False)


def make_optimizer(model: nn.Module, config: TrainingConfig) -> torch.optim.AdamW:
    """AdamW over the trained weights; gains and biases do not decay."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    # Gains are vectors, and attention's biases have three axes.
    matrices = [parameter for parameter in trained if parameter.ndim == 2]
    vectors = [parameter for parameter in trained if parameter.ndim != 2]
    groups = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    betas = (config.beta1, config.beta2)
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=betas, eps=1e-8, fused=True)


def learning_rate(step: int, config: TrainingConfig) -> float:
    """The learning rate of a step, counted from 0.

    It rises linearly from `warmup_start`, then falls along a cosine to the minimum, which it
    reaches at the end of the schedule. There it stays.
    """
    if step < config.warmup_steps:
        rise = config.learning_rate - config.warmup_start
        return config.warmup_start + rise * step / config.warmup_steps
    end = config.schedule_steps or config.num_steps
    part = (step - config.warmup_steps) / max(1, end - config.warmup_steps)
    cosine = 0.5 * (1.0 + math.cos(math.pi * min(1.0, part)))
    return config.min_learning_rate + (config.learning_rate - config.min_learning_rate) * cosine
