"""Training as a stage: one loop for the baseline, for RETRO and for RETROfit, on
one process or many.

While a run trains, `NAME.partial` holds its metrics and checkpoints; when it is finished,
`NAME` is the run's folder. Batches and random numbers are pure functions of the seed and the
step, so a resumed run gives the same weights as an unbroken one.
"""

import math
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from retro.config import TrainingConfig
from retro.config.as_json import to_dict
from retro.errors import ConfigError, DataError
from retro.machine import best_device, keep_freed_memory, product_dtype
from retro.model.protocol import LanguageModel, TrainableModel
from retro.model.safetensors_file import file_order
from retro.run import Origin, write_run
from retro.stages.files import link_or_copy
from retro.stages.hints import quoted
from retro.stages.progress import Progress, no_progress
from retro.stages.stage import CHECKPOINT, Artifact, Stage
from retro.training.batches import Batch, Batches, prefetch
from retro.training.checkpoints import Checkpoints, keep_checkpoint, read_checkpoint
from retro.training.distributed import World, join, whole
from retro.training.memory import expect_memory
from retro.training.metrics import METRICS, TENSORBOARD, MetricsLog, Value
from retro.training.objective import TokenLoss, learning_rate, make_optimizer, recompute_activations

Sampling = Callable[[LanguageModel], str]
"""Continues a prompt with the model in its current state."""


def train(
    model: TrainableModel,
    batches: Batches,
    config: TrainingConfig,
    path: Path,
    inputs: dict[str, str],
    validation: Batches | None = None,
    progress: Progress = no_progress,
    sample: Sampling | None = None,
    origin: Origin | None = None,
    begin: Callable[[Stage], None] | None = None,
    extend: bool = False,
) -> Artifact:
    """Train the weights that require gradients, and leave a run with all weights at `path`.

    `inputs` are the fingerprints of its data, and `origin` is what else the run's record and
    card say. `begin` stores in the unfinished stage what a resumed run will need. With
    `extend`, the finished run at `path` goes on to the last step of the config. Do not use
    the model afterwards: under torchrun its weights are sharded.
    """
    if best_device().type == "cpu":
        expect_memory(model, config)
    keep_freed_memory()
    settings = {"model": model.settings(), "training": training_settings(config)}
    origin = replace(origin or Origin(), trained_on=inputs, training=settings["training"])
    with join() as world:

        def work(stage: Stage) -> None:
            if begin is not None and world.leads:
                begin(stage)
            if extend and world.leads:
                take_over(path, stage)
            world.wait()
            Training(model, batches, config, stage, world, validation, progress, sample, origin).finish()

        artifact = world.run_stage(
            path,
            "run",
            settings,
            inputs,
            work,
            _command(path, inputs),
            extend,
        )
        if world.leads:
            keep_checkpoint(path)
        return artifact


def _command(path: Path, inputs: dict[str, str]) -> str:
    """What makes the run at `path`, by what it was made from."""
    work = quoted(path.parent.parent)
    name = quoted(path.name)
    if "questions" in inputs:
        return f"retro fit {work} --task qa --from RUN --name {name}"
    command = "fit" if {"base", "baseline"} & inputs.keys() else "train"
    return f"retro {command} {work} --name {name}"


def training_settings(config: TrainingConfig) -> dict[str, Any]:
    """What the run's record and fingerprint hold of the config."""
    settings = to_dict(config)
    # A schedule that ends with the run is what all runs had before it was a setting.
    if config.schedule_steps in (0, config.num_steps):
        del settings["schedule_steps"]
    # It trains nothing, so runs are the same with it and without.
    del settings["validate_first"]
    # What came later is named only where it is used.
    for name in ("leave_out", "vary_neighbours", "longest_run"):
        if not settings[name]:
            del settings[name]
    return settings


def take_over(finished: Path, stage: Stage) -> None:
    """Begin a stage with the metrics and the last checkpoint of a finished run."""
    folder = stage.scratch("checkpoints")
    if folder.exists():
        return  # it was begun before
    for name in (METRICS, TENSORBOARD):
        if (finished / name).is_dir():
            shutil.copytree(finished / name, stage.file(name), dirs_exist_ok=True)
        elif (finished / name).exists():
            shutil.copyfile(finished / name, stage.file(name))
    # Under another name until all files are there: a part of a checkpoint must not be taken for one.
    entry = read_checkpoint(finished)
    copy = folder.with_name("copy") / f"step-{entry.step:09d}"
    shutil.rmtree(copy.parent, ignore_errors=True)
    shutil.copytree(entry.path, copy, copy_function=link_or_copy)
    copy.parent.replace(folder)


class Training:
    """A run in training, from its last checkpoint on."""

    def __init__(
        self,
        model: TrainableModel,
        batches: Batches,
        config: TrainingConfig,
        stage: Stage,
        world: World,
        validation: Batches | None,
        progress: Progress,
        sample: Sampling | None,
        origin: Origin,
    ) -> None:
        if sample and world.size > 1:
            raise ConfigError(
                f"sample_every is {config.sample_every} with {world.size} processes; "
                "expected 0, as the model is sharded"
            )
        self.model = model
        self.batches = batches
        self.config = config
        self.stage = stage
        self.world = world
        self.validation = validation
        self.progress = progress
        self.sample = sample
        self.origin = origin
        self.validated: dict[str, float] = {}
        """The losses of the last validation."""
        self.dtype = product_dtype(config.precision, world.device)
        self.rows = world.share(config)
        # Before the optimizer, which must see the sharded parameters.
        self.losses = self._prepare()
        self.optimizer = make_optimizer(model, config)
        self.checkpoints = Checkpoints(stage.scratch("checkpoints"), config.keep_checkpoints, world)
        self.first_step = self._resume()
        self.metrics = MetricsLog(stage.path, self.first_step, config.tensorboard) if world.leads else None
        if self.metrics:
            # A resumed run shows them until its own first validation.
            self.validated = self.metrics.last("valid_on", "valid_off")

    def _prepare(self) -> TokenLoss:
        losses = TokenLoss(self.model, self.dtype)
        # Recomputing wraps each operator's forward; sharding and compiling act on
        # what is wrapped.
        if self.config.activation_checkpointing:
            recompute_activations(self.model)
        self.world.shard(losses, self.model)
        if self.config.compile:
            losses.compile()
        return losses

    def _resume(self) -> int:
        """Load the last complete checkpoint, if any, and return the number of steps done."""
        kept = self.checkpoints.kept()
        if not kept:
            return 0
        self.checkpoints.load(kept[-1], self.model, self.optimizer)
        return kept[-1].step

    def finish(self) -> None:
        """Train to the last step, and write the model."""
        # A run that was killed before its first checkpoint has validated already.
        if self.config.validate_first and self.first_step == 0 and not self.validated:
            self._validate_now(0)
        self.model.train()
        started, last = time.perf_counter(), self.config.num_steps
        for step, batch in zip(range(self.first_step, last), self._batches(), strict=True):
            loss, norm = self._step(step, batch)
            done = step + 1
            # Over the steps of this process; those before a resume were not timed.
            per_step = (time.perf_counter() - started) / (done - self.first_step)
            speed = self._tokens(1) / per_step
            if self._due(done, self.config.log_every):
                rate = learning_rate(step, self.config)
                self._log(done, loss=loss, grad_norm=norm, learning_rate=rate, tokens_per_second=speed)
            if self.world.leads:
                self.progress(done, last, note=self._note(loss, speed))
            self._look_around(done)
        self._write_model()

    def _note(self, loss: float, speed: float) -> str:
        """The losses in training and in the last validation, with retrieval on and off if there are both."""
        off, on = self.validated.get("valid_off"), self.validated.get("valid_on")
        valid = "" if off is None else f", valid {off:.3f}"
        if on is not None:
            valid = f", valid {on:.3f} on, {off:.3f} off"
        return f"loss {loss:.3f}{valid}, {speed:,.0f} tokens/s"

    def _batches(self) -> Iterator[Batch]:
        def make(number: int) -> Batch:
            return self.batches.rows(number, *self.rows)

        return prefetch(make, range(self.first_step, self.config.num_steps))

    def _step(self, step: int, batch: Batch) -> tuple[float, float]:
        """Make one update, and return its loss and gradient norm.

        The loss is the mean over all predicted tokens of the batch, however it is divided
        into parts and processes.
        """
        # Dropout depends on seed, step and process alone, so that a resumed run repeats it.
        torch.manual_seed(self.config.seed * 1_000_003 + step + (self.world.rank << 40))
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(step, self.config)
        self.optimizer.zero_grad()
        # A batch may be all padding.
        num_predicted = max(1.0, *self.world.sum(self._num_predicted(batch)))
        total = 0.0
        for part in batch.parts(self.config.accumulate):
            summed = self.losses(*part.inputs(self.world.device))
            # FSDP averages gradients over the processes; the factor makes that a sum.
            (summed * (self.world.size / num_predicted)).backward()
            total += summed.item()
        loss = self.world.sum(total)[0] / num_predicted
        clipped = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip_norm)
        norm = whole(clipped).item()
        if not (math.isfinite(loss) and math.isfinite(norm)):
            # Before the optimizer's step, so that the weights are still good.
            raise DataError(self._explosion(step, loss, norm))
        self.optimizer.step()
        return loss, norm

    def _explosion(self, step: int, loss: float, norm: float) -> str:
        documents, kept = self.batches.documents(step), self.checkpoints.kept()
        return (
            f"loss {loss} and gradient norm {norm} at step {step + 1}; expected finite numbers; "
            f"the batch holds documents {', '.join(documents)}; "
            f"the last good checkpoint is {kept[-1].path if kept else 'none'}; "
            "lower learning_rate and train again"
        )

    def _look_around(self, done: int) -> None:
        """Validate, sample and save after a step, each when due. What is saved
        is validated first.

        The last step is saved, too: if a kill interrupts writing the model, no training is lost.
        """
        save_now = self._due(done, self.config.checkpoint_every)
        loss = None
        # A checkpoint is validated first: without a loss it could never be the best one.
        if save_now or self._due(done, self.config.validate_every):
            loss = self._validate_now(done)
        if self.sample and self.config.sample_every and self._due(done, self.config.sample_every):
            self.model.eval()
            self._log(done, sample=self.sample(self.model))
            self.model.train()
        if save_now:
            self.checkpoints.save(done, self.model, self.optimizer, loss)

    def _validate_now(self, done: int) -> float | None:
        """The validation loss after so many steps, which is logged; None without validation text.

        It is that with retrieval, if the model has any: the best checkpoint is chosen by it.
        """
        if self.validation is None:
            return None
        self.validated = self._validate(self.validation)
        mixture = self.batches.mixture
        seen: dict[str, Value] = {}
        if mixture and done:
            seen["mixture"] = mixture.observed(0, done * self.config.batch_size)
        self._log(done, **self.validated, **seen)
        return self.validated.get("valid_on", self.validated["valid_off"])

    @torch.no_grad()
    def _validate(self, validation: Batches) -> dict[str, float]:
        """Mean loss over the first validation batches, with retrieval and without."""
        self.model.eval()
        # How many of a batch's tensors each mode reads: tokens and targets are two, the
        # neighbours and their mask two more.
        modes = {"valid_on": 4, "valid_off": 2} if self.model.facts.retrieves else {"valid_off": 2}
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
        return int((batch.targets != self.model.facts.pad_id).sum())

    def _due(self, done: int, every: int) -> bool:
        return done % every == 0 or done == self.config.num_steps

    def _tokens(self, steps: int) -> int:
        return steps * self.config.batch_size * self.config.seq_len

    def _log(self, done: int, **values: Value) -> None:
        if self.metrics:
            self.metrics.add(done, tokens=self._tokens(done), **values)

    def _write_model(self) -> None:
        """Write the model as a run; its tensors are gathered one after the other."""
        best = self.checkpoints.best() if self.config.final == "best" else None
        if best is not None:
            self.checkpoints.load(best, self.model, self.optimizer)
        if not self.metrics:
            # Only the first process, which has the metrics, writes; the others send it their shards, in the
            # order of the file.
            tensors = self.model.state_dict()
            for name in file_order(tensors):
                self.world.gather(tensors[name])
            return
        self.metrics.close()
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
            validation=self.validated,
        )
        self._keep_checkpoint()
        if mixture:
            self.stage.counts["mixture"] = mixture.observed(0, steps * self.config.batch_size)
        write_run(self.model, self.stage.path, self.stage.counts, self.origin, self.world.gather)

    def _keep_checkpoint(self) -> None:
        """Keep the last checkpoint, so that the run can be extended; it is moved out of it at the end."""
        kept = self.stage.file(CHECKPOINT)
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(self.checkpoints.kept()[-1].path, kept, copy_function=link_or_copy)
