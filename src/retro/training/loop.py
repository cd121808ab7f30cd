"""The training loop."""

import math
import shutil
import time
from collections.abc import Callable, Iterator

import torch

from retro.config import TrainingConfig
from retro.errors import ConfigError, DataError
from retro.machine import product_dtype
from retro.model.checkpoint import save
from retro.model.retro import Retro
from retro.stages.progress import Progress
from retro.stages.stage import Stage
from retro.training.batches import Batch, Batches
from retro.training.checkpoints import Checkpoints
from retro.training.distributed import World, whole
from retro.training.loss import TokenLoss
from retro.training.metrics import MetricsLog, Value
from retro.training.optimizer import learning_rate, make_optimizer
from retro.training.prefetch import prefetch
from retro.training.recomputation import recompute_activations

Sampling = Callable[[Retro], str]
"""Continues a prompt with the model as it is."""


class Run:
    """One run on its way through the steps, from its last checkpoint on."""

    def __init__(
        self,
        model: Retro,
        batches: Batches,
        config: TrainingConfig,
        stage: Stage,
        world: World,
        validation: Batches | None = None,
        progress: Progress | None = None,
        sample: Sampling | None = None,
    ) -> None:
        self.model, self.batches, self.config, self.stage, self.world = (
            model.to(world.device),
            batches,
            config,
            stage,
            world,
        )
        self.validation, self.progress, self.sample = validation, progress, sample
        if sample and world.size > 1:
            raise ConfigError(
                f"sample_every is {config.sample_every} with {world.size} processes; expected 0, as the model is sharded"
            )
        self.dtype = product_dtype(config.precision, world.device)
        self.rows = world.share(config)
        self.losses = self._prepare()
        self.optimizer = make_optimizer(model, config)
        self.checkpoints = Checkpoints(stage.path / "checkpoints", config.keep_checkpoints, world)
        self.first_step = self._resume()
        self.metrics = MetricsLog(stage.path, self.first_step, config.tensorboard) if world.leads else None

    def _prepare(self) -> TokenLoss:
        losses = TokenLoss(self.model, self.dtype)
        if self.config.activation_checkpointing:
            recompute_activations(self.model)
        self.world.shard(losses)
        if self.config.compile:
            losses.compile()
        return losses

    def _resume(self) -> int:
        """Read the last whole checkpoint, if there is one, and return the number of steps that are done."""
        kept = self.checkpoints.kept()
        if not kept:
            return 0
        self.checkpoints.load(kept[-1], self.model, self.optimizer)
        return kept[-1].step

    def finish(self) -> None:
        """Train to the last step and write the model."""
        self.model.train()
        started, last = time.perf_counter(), self.config.num_steps
        for step, batch in zip(range(self.first_step, last), self._batches(), strict=True):
            loss, norm = self._step(step, batch)
            done = step + 1
            per_step = (time.perf_counter() - started) / (done - self.first_step)
            speed = self._tokens(1) / per_step
            if self._due(done, self.config.log_every):
                rate = learning_rate(step, self.config)
                self._log(done, loss=loss, grad_norm=norm, learning_rate=rate, tokens_per_second=speed)
            if self.progress and self.world.leads:
                minutes = per_step * (last - done) / 60
                self.progress(
                    done, last, note=f"loss {loss:.3f}  {speed:,.0f} tokens/s  {minutes:.1f} min left"
                )
            self._look_around(done)
        self._write_model()

    def _batches(self) -> Iterator[Batch]:
        return prefetch(
            lambda number: self.batches.rows(number, *self.rows),
            range(self.first_step, self.config.num_steps),
        )

    def _step(self, step: int, batch: Batch) -> tuple[float, float]:
        """One update. The loss is the mean over all predicted tokens of the batch, whatever parts and processes it is spread over."""
        torch.manual_seed(self.config.seed * 1_000_003 + step + (self.world.rank << 40))
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(step, self.config)
        self.optimizer.zero_grad()
        num_predicted = max(1.0, *self.world.sum(self._num_predicted(batch)))
        total = 0.0
        for part in batch.parts(self.config.accumulate):
            summed = self.losses(*part.inputs(self.world.device))
            # Sharded gradients are averaged over the processes, hence the factor.
            (summed * (self.world.size / num_predicted)).backward()
            total += summed.item()
        loss = self.world.sum(total)[0] / num_predicted
        norm = whole(torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip_norm)).item()
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise DataError(self._explosion(step, loss, norm))
        self.optimizer.step()
        return loss, norm

    def _explosion(self, step: int, loss: float, norm: float) -> str:
        documents, kept = self.batches.documents(step), self.checkpoints.kept()
        return (
            f"loss {loss} and gradient norm {norm} at step {step + 1}; expected finite numbers; the batch holds documents "
            f"{', '.join(documents)}; the last good checkpoint is {kept[-1].path if kept else 'none'}; lower learning_rate and train again"
        )

    def _look_around(self, done: int) -> None:
        """Validate, sample and save after a step, each when it is due. What is saved is validated."""
        save_now = done % self.config.checkpoint_every == 0 or (
            done == self.config.num_steps and self.config.final == "best"
        )
        loss = None
        if self.validation is not None and (save_now or self._due(done, self.config.validate_every)):
            found = self._validate(self.validation)
            loss = found.get("valid_on", found["valid_off"])
            mixture = self.batches.mixture
            seen: dict[str, Value] = (
                {"mixture": mixture.observed(0, done * self.config.batch_size)} if mixture else {}
            )
            self._log(done, **found, **seen)
        if self.sample and self.config.sample_every and self._due(done, self.config.sample_every):
            self._log(done, sample=self.sample(self.model))
            self.model.train()
        if save_now:
            self.checkpoints.save(done, self.model, self.optimizer, loss)

    @torch.no_grad()
    def _validate(self, validation: Batches) -> dict[str, float]:
        """Mean loss over the predicted tokens of the first validation batches, with retrieval and without."""
        self.model.eval()
        modes = {"valid_on": 4, "valid_off": 2} if self.model.config.uses_retrieval else {"valid_off": 2}
        sums, num_predicted = dict.fromkeys(modes, 0.0), 0
        for number in range(self.config.validate_batches):
            batch = validation.rows(number, *self.rows)
            num_predicted += self._num_predicted(batch)
            for part in batch.parts(self.config.accumulate):
                for name, num_inputs in modes.items():
                    sums[name] += self.losses(*part.inputs(self.world.device)[:num_inputs]).item()
        self.model.train()
        *totals, everywhere = self.world.sum(*sums.values(), num_predicted)
        return {name: total / max(1.0, everywhere) for name, total in zip(modes, totals, strict=True)}

    def _num_predicted(self, batch: Batch) -> int:
        return int((batch.targets != self.model.config.pad_id).sum())

    def _due(self, done: int, every: int) -> bool:
        return done % every == 0 or done == self.config.num_steps

    def _tokens(self, steps: int) -> int:
        return steps * self.config.batch_size * self.config.seq_len

    def _log(self, done: int, **values: Value) -> None:
        if self.metrics:
            self.metrics.add(done, tokens=self._tokens(done), **values)

    def _write_model(self) -> None:
        """Export one model from all shards, and tell what the run was."""
        best = self.checkpoints.best() if self.config.final == "best" else None
        if best is not None:
            self.checkpoints.load(best, self.model, self.optimizer)
        tensors = {name: whole(tensor.detach()).cpu() for name, tensor in self.model.state_dict().items()}
        if not self.metrics:
            return
        self.metrics.close()
        save(self.model, self.stage.path, tensors)
        shutil.rmtree(self.checkpoints.folder, ignore_errors=True)
        steps, mixture = self.config.num_steps, self.batches.mixture
        self.stage.counts.update(
            steps=steps,
            tokens=self._tokens(steps),
            parameters=self.model.num_parameters(),
            trained=sum(
                parameter.numel() for parameter in self.model.parameters() if parameter.requires_grad
            ),
            precision=str(self.dtype).removeprefix("torch."),
            final_step=best.step if best else steps,
            **({"mixture": mixture.observed(0, steps * self.config.batch_size)} if mixture else {}),
        )
