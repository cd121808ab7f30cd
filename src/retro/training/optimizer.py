"""AdamW with decay on matrices only, and the learning-rate schedule of the paper."""

import math

import torch
from torch import nn

from retro.config import TrainingConfig


def make_optimizer(model: nn.Module, config: TrainingConfig) -> torch.optim.AdamW:
    """AdamW over what is trained; gains and biases do not decay."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    matrices = [parameter for parameter in trained if parameter.ndim == 2]
    vectors = [parameter for parameter in trained if parameter.ndim != 2]
    groups = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups, lr=config.learning_rate, betas=(config.beta1, config.beta2), eps=1e-8, fused=True
    )


def learning_rate(step: int, config: TrainingConfig) -> float:
    """The rate of a step counted from 0: linear from `warmup_start`, then a cosine to the minimum at the last step."""
    if step < config.warmup_steps:
        return config.warmup_start + (config.learning_rate - config.warmup_start) * step / config.warmup_steps
    progress = (step - config.warmup_steps) / max(1, config.num_steps - config.warmup_steps)
    cosine = 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress)))
    return config.min_learning_rate + (config.learning_rate - config.min_learning_rate) * cosine
