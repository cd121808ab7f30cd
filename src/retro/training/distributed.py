"""The processes of a run.

A run has one process by default. Under `torchrun` the weights, gradients and moments are
sharded over all processes (FSDP2, ZeRO in the paper).
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
        """Shard the parameters of each operator, and of the rest of the module,
        over all processes."""
        if self.size > 1:
            from torch.distributed.fsdp import fully_shard

            for part in (*model.operators(), module):
                # Resharded after the forward pass, so that between two steps every
                # parameter is a shard.
                fully_shard(part, reshard_after_forward=True)

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


def whole(tensor: Tensor) -> Tensor:
    """The whole tensor, gathered if it is sharded; then every process must call this."""
    from torch.distributed.tensor import DTensor

    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
