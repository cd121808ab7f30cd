"""Training without a corpus: random batches, a tiny model, and processes of their own that can be killed or
work together."""

import dataclasses
import multiprocessing
import os
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import torch

from retro.config import RetrievalConfig, TrainingConfig
from retro.corpus.mixture import Mixture
from retro.fitting.baseline import retrofit
from retro.model.retro import Retro
from retro.stages.progress import Progress, no_progress
from retro.training.batches import Batch
from retro.training.loop import train
from retro.training.metrics import METRICS, read_metrics
from tests.model.models import VOCAB, random_inputs, small_config

CONFIG = TrainingConfig(
    seq_len=12,
    batch_size=4,
    num_steps=12,
    warmup_steps=2,
    learning_rate=1e-2,
    min_learning_rate=1e-3,
    log_every=1,
    validate_every=4,
    validate_batches=1,
    checkpoint_every=3,
    precision="float32",
)


class RandomBatches:
    """Batches that depend on their number only; rows end in padding of unequal length, as documents do."""

    mixture: Mixture | None = None

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def rows(self, number: int, start: int, stop: int) -> Batch:
        config = small_config()
        tokens, neighbours, mask = random_inputs(
            config, CONFIG.batch_size, CONFIG.seq_len + 1, 2, seed=self.seed + number
        )
        lengths = torch.randint(
            2, CONFIG.seq_len + 1, (CONFIG.batch_size, 1), generator=torch.Generator().manual_seed(number)
        )
        tokens = torch.where(
            torch.arange(CONFIG.seq_len + 1) < lengths, tokens % (VOCAB // 2 - 1) + 1, config.pad_id
        )
        batch = (tokens[:, :-1], tokens[:, 1:], neighbours, mask)
        return Batch(*(tensor[start:stop].contiguous() for tensor in batch))

    def documents(self, number: int) -> list[str]:
        return [f"document-{number}-{row}" for row in range(CONFIG.batch_size)]


def start(
    path: Path,
    model: Retro | None = None,
    told: Progress = no_progress,
    model_changes: dict[str, Any] | None = None,
    **changes: Any,
) -> Retro:
    """Train from the seed, or the given model; returns the model that was trained."""
    if model is None:
        torch.manual_seed(0)
        model = Retro(small_config(**(model_changes or {})))
    train(
        model, RandomBatches(), dataclasses.replace(CONFIG, **changes), path, {}, RandomBatches(10_000), told
    )
    return model


def start_fit(path: Path, **changes: Any) -> Retro:
    torch.manual_seed(1)
    return start(
        path,
        retrofit(Retro(small_config().baseline()), RetrievalConfig(encoder=small_config().retrieval.encoder)),
        **changes,
    )


def losses(path: Path) -> list[tuple[int, str, float]]:
    rows = read_metrics(path / METRICS)
    return [
        (row["step"], key, row[key])
        for row in rows
        for key in ("loss", "grad_norm", "valid_on", "valid_off")
        if key in row
    ]


def _child(
    environment: dict[str, str], function: Any, arguments: tuple[Any, ...], changes: dict[str, Any]
) -> None:
    os.environ.update(environment)
    torch.set_num_threads(1)
    function(*arguments, **changes)


def spawn(
    function: Any, *arguments: Any, environment: dict[str, str] | None = None, **changes: Any
) -> ForkServerProcess:
    """A process of its own; forked from one that has loaded torch already, it starts at once."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["tests.training.runs", "torch.distributed.fsdp", "torch.distributed.checkpoint"]
    )
    process = context.Process(target=_child, args=(environment or {}, function, arguments, changes))
    process.start()
    return process
