"""What training costs: steps of a small model, and what every weight takes whatever is read."""

from dataclasses import replace
from pathlib import Path
from statistics import median

import torch

from retro import recipes
from retro.config import TrainingConfig
from retro.machine import keep_freed_memory
from retro.model.protocol import TrainableModel
from retro.planning.operations import training_operations
from retro.planning.speed import processor_seconds, training_step
from retro.run import make_model
from retro.training.checkpoints import Checkpoints
from retro.training.distributed import join
from retro.training.objective import make_optimizer

STEPS = 3
"""Of which the median counts."""


def measure_training(folder: Path, vocab_size: int) -> dict[str, float]:
    """Coefficients of training, by the batches of a small model's recipe."""
    keep_freed_memory()
    run = recipes.get("tiny")
    config = replace(run.model, vocab_size=vocab_size)
    with torch.random.fork_rng():
        step = training_step(config, run.training, run.training.batch_size)
        step()
        seconds = median(processor_seconds(step) for _ in range(STEPS))
        model = make_model(config)
    updating, saving = _time_weights(model, run.training, folder)
    tokens = run.training.batch_size * run.training.seq_len
    return {
        "train_speed": training_operations(config, run.training) * tokens / (seconds - updating),
        "updating": updating / model.num_parameters(),
        "saving": saving / model.num_parameters(),
    }


def _time_weights(model: TrainableModel, training: TrainingConfig, folder: Path) -> tuple[float, float]:
    """Seconds that all weights take to be updated, and to be saved."""
    optimizer = make_optimizer(model, training)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)

    def update() -> None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), training.clip_norm)
        optimizer.step()

    update()
    updating = median(processor_seconds(update) for _ in range(STEPS))
    with join() as world:
        checkpoints = Checkpoints(folder, 1, world)
        checkpoints.save(1, model, optimizer, None)  # what a library does once must not count
        saving = processor_seconds(lambda: checkpoints.save(2, model, optimizer, None))
    return updating, saving
