"""Training without a corpus: random batches, a tiny model, and processes of their own that can be killed or
work together."""

import dataclasses
import multiprocessing
import os
import socket
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import torch
from torch import nn

from retro.config import RetrievalConfig, TrainingConfig
from retro.corpus.mixture import Mixture
from retro.fitting.baseline import retrofit
from retro.model.retro import Retro
from retro.model.weights import save_tensors
from retro.stages.progress import Progress, no_progress
from retro.training.batches import Batch
from retro.training.distributed import built_apart, join
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


def start_apart(path: Path, fits: bool = False, **changes: Any) -> None:
    """The same with a model that only the first process builds with memory."""
    is_first = os.environ.get("RANK", "0") == "0"
    with built_apart():
        torch.manual_seed(1 if fits else 0)
        if fits:
            baseline = Retro(small_config().baseline())
            model = retrofit(baseline, RetrievalConfig(encoder=small_config().retrieval.encoder))
        else:
            model = Retro(small_config())
    assert all(parameter.is_meta != is_first for parameter in model.parameters())
    start(path, model, **changes)


def send_there_and_back(path: Path) -> None:
    """Shard a model whose parameters have 1 to 5 rows, and gather it again; what came back is saved."""
    with built_apart():
        torch.manual_seed(0)
        model = Rows()
    with join() as world:
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        world.shard(model, model)  # type: ignore[arg-type]
        assert not any(parameter.is_meta for parameter in model.parameters())
        after = {name: world.gather(tensor) for name, tensor in model.state_dict().items()}
    if world.leads:
        save_tensors({f"before.{name}": tensor for name, tensor in before.items()}, path / "before")
        save_tensors({f"before.{name}": tensor for name, tensor in after.items()}, path / "after")


class Rows(nn.Module):
    """Parameters of 1 to 5 rows in two operators, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(3, rows) for rows in range(1, 6))
        self.register_buffer("mean", torch.randn(4))

    def operators(self) -> list[nn.Module]:
        return list(self.parts[:3])


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


def several_processes(
    path: Path, function: Any = start, finish: bool = True, number: int = 2, **changes: Any
) -> None:
    """Run in processes that find each other as torchrun's would; `finish` unless one of them is to fail."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(number)}
    processes = [
        spawn(function, path, environment={**meeting, "RANK": f"{rank}", "LOCAL_RANK": f"{rank}"}, **changes)
        for rank in range(number)
    ]
    for process in processes:
        process.join()
    assert [process.exitcode == 0 for process in processes] == [finish] * number


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
