"""Whether a step can fit into the memory of this machine at all, told before anything is computed."""

import os

from retro.config import TrainingConfig
from retro.errors import ConfigError
from retro.model.protocol import TrainableModel

GIGABYTE = 1 << 30
KEPT = 2
"""Hidden states of each layer that the backward pass needs at the very least: those before attention and
before the feed-forward layer."""


def least_bytes(model: TrainableModel, config: TrainingConfig) -> int:
    """What a step holds at the very least for its backward pass; really it is far more."""
    settings = model.settings()
    # Under torchrun each process has its share of the batch, perhaps on another machine.
    parts = config.accumulate * int(os.environ.get("WORLD_SIZE", "1"))
    sequences = max(1, config.batch_size // parts)
    tokens = sequences * config.seq_len
    hidden = 4 * KEPT * tokens * int(settings.get("d_model", 0)) * int(settings.get("num_layers", 0))
    # The weights of one layer's causal attention, half a square for every head, in two bytes each. They grow
    # with the square of the length: with small models they are what is refused first.
    attention = 2 * tokens * config.seq_len // 2 * int(settings.get("num_heads", 0))
    return max(hidden, attention)


def expect_memory(model: TrainableModel, config: TrainingConfig) -> None:
    """Refuse sequences and batches that this machine can never hold."""
    try:
        here = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # not every system tells
        return
    needed = least_bytes(model, config)
    if needed > here:
        raise ConfigError(
            f"seq_len is {config.seq_len} and batch_size {config.batch_size}: a step needs more than "
            f"{needed / GIGABYTE:,.0f} GB of memory, and this machine has {here / GIGABYTE:,.0f}; "
            "expected shorter sequences, fewer of them, or a larger accumulate"
        )
