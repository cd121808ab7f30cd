"""The training loop: one for the baseline and for RETRO.

A run is a stage. While it trains, `NAME.partial` holds its metrics and its last checkpoints; finished, `NAME` is a model folder.
Batches and random numbers are pure functions of the seed and the step, so a resumed run is the unbroken run.
"""

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from retro.artifacts import Artifact, Stage, run_stage, write_json
from retro.config import TrainingConfig, to_dict
from retro.errors import ArtifactError, DataError
from retro.model.checkpoint import load_tensors, restore, save_tensors
from retro.model.retro import Retro
from retro.training.batches import Batch, PackedBatches
from retro.training.memory import keep_freed_memory
from retro.training.metrics import METRICS, MetricsLog
from retro.training.optimizer import learning_rate, make_optimizer

KEPT_CHECKPOINTS = 2


@dataclass(frozen=True)
class Report:
    """What a progress line shows after a step."""

    step: int
    num_steps: int
    loss: float
    tokens_per_second: float
    seconds_left: float


def next_token_loss(model: Retro, batch: Batch, retrieval: bool = True) -> Tensor:
    """Mean cross-entropy in nats over the tokens that are predicted."""
    with_neighbours = retrieval and model.config.uses_retrieval
    logits = model(batch.tokens, *((batch.neighbours, batch.neighbour_mask) if with_neighbours else ()))
    return F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), ignore_index=model.config.pad_id)


def train(
    model: Retro,
    batches: PackedBatches,
    config: TrainingConfig,
    path: Path,
    inputs: dict[str, str],
    validation: PackedBatches | None = None,
    progress: Callable[[Report], None] | None = None,
) -> Artifact:
    """Train the model and leave it, with its metrics, in the folder `path`. `inputs` are the fingerprints of its data."""
    keep_freed_memory()
    settings = {"model": to_dict(model.config), "training": to_dict(config)}

    def work(stage: Stage) -> None:
        _Run(model, batches, config, stage, validation, progress).finish()

    artifact = run_stage(path, "run", settings, inputs, work, f"retro train --out {path}")
    restore(model, path)
    model.eval()
    return artifact


class _Run:
    """One run on its way through the steps."""

    def __init__(
        self,
        model: Retro,
        batches: PackedBatches,
        config: TrainingConfig,
        stage: Stage,
        validation: PackedBatches | None,
        progress: Callable[[Report], None] | None,
    ) -> None:
        self.model, self.batches, self.config, self.stage = model, batches, config, stage
        self.validation, self.progress = validation, progress
        self.optimizer = make_optimizer(model, config)
        self.checkpoints = stage.path / "checkpoints"
        self.first_step = self._resume()
        self.metrics = MetricsLog(stage.path / METRICS, self.first_step)

    def finish(self) -> None:
        self.model.train()
        tokens_per_step = self.config.batch_size * self.config.seq_len
        seconds = 0.0
        for step in range(self.first_step, self.config.num_steps):
            started = time.perf_counter()
            loss, norm = self._step(step)
            seconds += time.perf_counter() - started
            per_step = seconds / (step + 1 - self.first_step)
            done = step + 1
            if done % self.config.log_every == 0 or done == self.config.num_steps:
                self.metrics.add(
                    done, loss=loss, grad_norm=norm, learning_rate=learning_rate(step, self.config), tokens=done * tokens_per_step,
                    tokens_per_second=tokens_per_step / per_step,
                )  # fmt: skip
            if self.validation is not None and (done % self.config.validate_every == 0 or done == self.config.num_steps):
                self.metrics.add(done, tokens=done * tokens_per_step, **self._validate())
            if self.progress:
                left = per_step * (self.config.num_steps - done)
                self.progress(Report(done, self.config.num_steps, loss, tokens_per_step / per_step, left))
            if done % self.config.checkpoint_every == 0 and done < self.config.num_steps:
                self._save(done)
        self.model.save(self.stage.path)
        shutil.rmtree(self.checkpoints, ignore_errors=True)
        self.stage.counts.update(
            steps=self.config.num_steps, tokens=self.config.num_steps * tokens_per_step, parameters=self.model.num_parameters()
        )

    def _step(self, step: int) -> tuple[float, float]:
        torch.manual_seed(self.config.seed * 1_000_003 + step)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(step, self.config)
        loss = next_token_loss(self.model, self.batches[step])
        self.optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip_norm)
        if not (torch.isfinite(loss) and torch.isfinite(norm)):
            kept = self._kept()
            raise DataError(
                f"loss {loss.item()} and gradient norm {norm.item()} at step {step + 1}; expected finite numbers; "
                f"the last good checkpoint is {kept[-1] if kept else 'none'}; lower learning_rate and train again"
            )
        self.optimizer.step()
        return loss.item(), norm.item()

    @torch.no_grad()
    def _validate(self) -> dict[str, float]:
        assert self.validation is not None
        self.model.eval()
        modes = {"valid_on": True, "valid_off": False} if self.model.config.uses_retrieval else {"valid_off": False}
        picked = [self.validation[number] for number in range(self.config.validate_batches)]
        losses = {name: sum(next_token_loss(self.model, batch, on).item() for batch in picked) / len(picked) for name, on in modes.items()}
        self.model.train()
        return losses

    def _kept(self) -> list[Path]:
        return sorted(path for path in self.checkpoints.glob("step-*") if (path / "state.json").exists())

    def _save(self, step: int) -> None:
        """Write a checkpoint; `state.json` comes last and makes it whole."""
        folder = self.checkpoints / f"step-{step:09d}"
        self.model.save(folder)
        state = self.optimizer.state_dict()["state"]
        save_tensors(
            {f"{index}/{name}": torch.as_tensor(value) for index, values in state.items() for name, value in values.items()},
            folder / "optimizer.safetensors",
        )
        write_json(folder / "state.json", {"step": step})
        for old in self._kept()[:-KEPT_CHECKPOINTS]:
            (old / "state.json").unlink()
            shutil.rmtree(old)

    def _resume(self) -> int:
        """Read the last whole checkpoint, if there is one, and return the number of steps that are done."""
        kept = self._kept()
        if not kept:
            return 0
        restore(self.model, kept[-1])
        tensors = load_tensors(kept[-1] / "optimizer.safetensors")
        state: dict[int, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            index, name = key.split("/")
            state.setdefault(int(index), {})[name] = value
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": state})
        try:
            step: int = json.loads((kept[-1] / "state.json").read_text())["step"]
        except (json.JSONDecodeError, KeyError):
            raise ArtifactError(f"{kept[-1]}/state.json is not readable; remove that folder and run again") from None
        return step
