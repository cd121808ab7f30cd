"""Checkpoints of a run: trained weights and moments, as safetensors, each process
writing its shards.

`torch.distributed.checkpoint` splits and joins the shards, so that a run can resume with
another number of processes. The schedule, the place in the data and the random numbers are
functions of the seed and the step, so only the step is stored.
"""

import json
import logging
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from retro.errors import ArtifactError
from retro.stages.files import write_json
from retro.stages.stage import CHECKPOINT, put_in_place
from retro.training.distributed import World

STATE = "state.json"


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint: its folder, the steps done, and the validation
    loss, if measured."""

    path: Path
    step: int
    validation: float | None


class Checkpoints:
    """The checkpoints below one folder: the last few, and the best by validation loss."""

    def __init__(self, folder: Path, keep: int, world: World) -> None:
        self.folder = folder
        self.keep = keep
        self.world = world

    def kept(self) -> list[Checkpoint]:
        """All complete checkpoints, oldest first."""
        return [_read_state(path) for path in sorted(self.folder.glob(f"step-*/{STATE}"))]

    def best(self) -> Checkpoint | None:
        measured = [entry for entry in self.kept() if entry.validation is not None]
        return min(measured, key=lambda entry: (entry.validation, entry.step), default=None)

    def save(
        self, step: int, model: nn.Module, optimizer: torch.optim.Optimizer, validation: float | None
    ) -> None:
        """Write a checkpoint; `state.json` is written last and makes it complete."""
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
        from torch.distributed.checkpoint.state_dict_saver import save

        path = self.folder / f"step-{step:09d}"
        if self.world.leads:
            # A killed attempt, perhaps with more processes, may have left shards that must
            # not be taken for this checkpoint's.
            shutil.rmtree(path, ignore_errors=True)
            path.mkdir(parents=True)
        self.world.wait()
        # Nobody writes before the folder is empty.
        with _alone_or_not(path):
            writer = HuggingFaceStorageWriter(str(path), save_distributed=True)
            save(training_tensors(model, optimizer), storage_writer=writer, no_dist=self.world.size == 1)
        self.world.wait()
        if self.world.leads:
            write_json(path / STATE, {"step": step, "validation": validation})
            self._prune()
        self.world.wait()

    def _prune(self) -> None:
        # The best checkpoint is kept however old it is.
        best = self.best()
        for entry in self.kept()[: -self.keep]:
            if best is None or entry.step != best.step:
                # First the file that makes it complete: a kill in between leaves nothing to
                # mistake for one.
                (entry.path / STATE).unlink()
                shutil.rmtree(entry.path)

    def load(self, entry: Checkpoint, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Read a checkpoint into a model and an optimizer of the same shape, sharded in any
        way."""
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
        from torch.distributed.checkpoint.state_dict_loader import load

        with _alone_or_not(entry.path), torch.no_grad():
            reader = HuggingFaceStorageReader(str(entry.path))
            load(training_tensors(model, optimizer), storage_reader=reader, no_dist=self.world.size == 1)


def training_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """What a step changes, by name: the trained weights and their moments.

    Frozen weights are left out.
    """
    tensors: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            # An optimizer has no state before its first step, so there would be
            # nothing to load into.
            if parameter not in optimizer.state:
                optimizer.state[parameter] = _no_moments(parameter)
            moments = optimizer.state[parameter]
            tensors[f"model/{name}"] = parameter.detach()
            tensors |= {f"{key}/{name}": value for key, value in moments.items()}
    return tensors


def _no_moments(parameter: Tensor) -> dict[str, Tensor]:
    """AdamW's state before its first step."""
    # AdamW keeps its step beside the parameter on a GPU, and on the CPU otherwise.
    step = torch.zeros((), device=parameter.device if parameter.is_cuda else None)
    return {"step": step, "exp_avg": torch.zeros_like(parameter), "exp_avg_sq": torch.zeros_like(parameter)}


def checkpoint_of(run: Path) -> Path:
    """Where the last checkpoint of a finished run is kept: beside it, as a run is given away without."""
    return run.with_name(f"{run.name}.{CHECKPOINT}")


def keep_checkpoint(run: Path) -> None:
    """Move the last checkpoint out of a run that has just been finished."""
    if (run / CHECKPOINT).exists():
        put_in_place(run / CHECKPOINT, checkpoint_of(run))


def read_checkpoint(run: Path) -> Checkpoint:
    """The last checkpoint of a finished run."""
    keep_checkpoint(run)  # a kill may have come before
    folder = checkpoint_of(run)
    if not (folder / STATE).exists():
        raise ArtifactError(
            f"{folder} does not exist; expected the last checkpoint of the run, which older runs did not "
            "keep and which may have been removed to save space; train a longer run under another name"
        )
    return _read_state(folder / STATE)


def _read_state(path: Path) -> Checkpoint:
    try:
        state = json.loads(path.read_text())
        validation = state["validation"]
        return Checkpoint(path.parent, int(state["step"]), None if validation is None else float(validation))
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError):
        raise ArtifactError(
            f"{path} is not readable; expected the step of a checkpoint; remove {path.parent} and run again"
        ) from None


@contextmanager
def _alone_or_not(path: Path) -> Iterator[None]:
    """Silence torch's log of every tensor and its warning about a single process, and turn
    what cannot be read or written into an error of one line."""
    from torch.distributed.checkpoint.api import CheckpointException

    logging.getLogger("c10d-NullHandler-dcp_logger").setLevel(logging.WARNING)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        try:
            yield
        except CheckpointException as error:
            # One failure a process; the first is as good as any.
            cause = next(iter(error.failures.values()))[0]
            if isinstance(cause, OSError | KeyboardInterrupt):
                raise cause from None
            raise ArtifactError(
                f"{path} is not a whole checkpoint of this run ({cause}); remove that folder and run again"
            ) from None
