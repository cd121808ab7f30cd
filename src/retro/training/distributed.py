"""The processes of a run.

A run has one process by default. Under `torchrun` the weights, gradients and moments are
sharded over all processes (FSDP2, ZeRO in the paper).
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn

from retro.config import TrainingConfig
from retro.errors import ConfigError
from retro.model.protocol import TrainableModel
from retro.stages.stage import Artifact, Stage, is_finished, open_artifact, partial_of, run_stage

PATIENCE = timedelta(hours=1)
"""How long processes wait for each other; writing a large checkpoint takes long."""


@dataclass(frozen=True)
class World:
    """This process among those of the run. Only process 0 writes what is not sharded."""

    rank: int
    size: int
    device: torch.device

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def share(self, config: TrainingConfig) -> tuple[int, int]:
        """The start and stop of this process's rows in every batch."""
        if config.batch_size % (self.size * config.accumulate):
            raise ConfigError(
                f"batch_size is {config.batch_size}; expected a multiple of processes times accumulate, "
                f"{self.size} · {config.accumulate}"
            )
        rows = config.batch_size // self.size
        return self.rank * rows, (self.rank + 1) * rows

    def sum(self, *values: int | float) -> list[float]:
        """Each value summed over the processes."""
        # In double precision, so that counts of tokens stay exact.
        total = torch.tensor(values, dtype=torch.float64, device=self.device)
        if self.size > 1:
            distributed.all_reduce(total)
        summed: list[float] = total.tolist()
        return summed

    def wait(self) -> None:
        """Wait until every process is here."""
        if self.size > 1:
            distributed.barrier()

    def shard(self, module: nn.Module, model: TrainableModel) -> None:
        """Bring the module to this process's device; of several processes each gets its shards.

        The parameters of each operator, and of the rest of the module, are sharded together. The values are
        those of process 0: the others may have built the model without memory.
        """
        if self.size == 1:
            module.to(self.device)
            return
        from torch.distributed.fsdp import fully_shard

        # What is not in the state, such as the tables of a Hugging Face base, could not be sent.
        is_sent = {name for name, _ in model.named_buffers()} <= model.state_dict().keys()
        values = dict(model.state_dict()) if self.leads and is_sent else {}
        module.to("meta" if is_sent else self.device)
        for part in (*model.operators(), module):
            # Resharded after the forward pass, so that between two steps every parameter is a shard.
            fully_shard(part, reshard_after_forward=True)
        if is_sent:
            module.to_empty(device=self.device)
            for name, tensor in model.state_dict().items():
                # Taken out, so that process 0 holds less and less of the whole.
                scatter(values.pop(name, None), tensor.detach())

    def gather(self, tensor: Tensor) -> Tensor:
        """The whole of a tensor, on process 0 alone; every process must call this."""
        return gather(tensor.detach())

    def run_stage(
        self,
        path: Path,
        kind: str,
        config: dict[str, Any],
        inputs: dict[str, str],
        work: Callable[[Stage], None],
        command: str,
        renew: bool = False,
    ) -> Artifact:
        """`stage.run_stage` with all processes: process 0 alone writes plan and manifest, and
        all do the work."""
        finished = is_finished(path, kind, config, inputs, command, renew)
        self.wait()  # nobody makes the folder before everybody has looked

        def together(stage: Stage) -> None:
            self.wait()  # the plan is accepted
            work(stage)
            self.wait()  # nothing is written any more

        # A finished stage runs no work, so every process may check it.
        if finished or self.leads:
            artifact = run_stage(path, kind, config, inputs, together, command, renew)
        else:
            together(Stage(partial_of(path)))
        self.wait()
        return artifact if self.leads else open_artifact(path, kind, command)


@contextmanager
def join() -> Iterator[World]:
    """Join the processes that torchrun started, or run alone."""
    size, place = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("LOCAL_RANK", "0"))
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", place) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    if size == 1:
        yield World(0, 1, device)
        return
    distributed.init_process_group("nccl" if on_gpu else "gloo", timeout=PATIENCE)
    try:
        yield World(distributed.get_rank(), size, device)
    finally:
        distributed.destroy_process_group()


@contextmanager
def built_apart() -> Iterator[None]:
    """Build a model within: on process 0 as ever, on the others without memory, as `World.shard` fills it."""
    is_first = int(os.environ.get("WORLD_SIZE", "1")) == 1 or int(os.environ.get("RANK", "0")) == 0
    with nullcontext() if is_first else torch.device("meta"):
        yield


def whole(tensor: Tensor) -> Tensor:
    """The whole tensor, gathered if it is sharded; then every process must call this, and gets it."""
    from torch.distributed.tensor import DTensor

    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def scatter(value: Tensor | None, target: Tensor) -> None:
    """Fill a tensor, sharded or not, on all processes with the value that process 0 has."""
    local, num_rows = _local_rows(target)
    if num_rows is None:
        if value is not None:
            local.copy_(value)
        distributed.broadcast(local, src=0)
        return
    received = local.new_empty((num_rows, *local.shape[1:]))
    parts = None
    if value is not None:
        # Shards are consecutive rows, all of one size but for the last ones, which are padded.
        parts = [torch.zeros_like(received) for _ in range(distributed.get_world_size())]
        for part, rows in zip(parts, value.split(num_rows), strict=False):
            part[: len(rows)] = rows
    distributed.scatter(received, parts, src=0)
    local.copy_(received[: len(local)])


@torch.no_grad()
def gather(tensor: Tensor) -> Tensor:
    """The whole of a tensor, sharded or not, on process 0; the others get what is theirs."""
    local, num_rows = _local_rows(tensor)
    if num_rows is None:
        return local
    sent = local.new_zeros((num_rows, *local.shape[1:]))
    sent[: len(local)] = local
    is_first = distributed.get_rank() == 0
    parts = [torch.empty_like(sent) for _ in range(distributed.get_world_size())] if is_first else None
    distributed.gather(sent, parts, dst=0)
    return torch.cat(parts)[: len(tensor)] if parts is not None else local


def _local_rows(tensor: Tensor) -> tuple[Tensor, int | None]:
    """What this process has of a tensor, and how many rows a full shard has; none if it is not sharded."""
    from torch.distributed.tensor import DTensor, Shard

    if not isinstance(tensor, DTensor):
        return tensor, None
    assert tensor.placements == (Shard(0),)
    return tensor.to_local(), -(-tensor.shape[0] // distributed.get_world_size())
