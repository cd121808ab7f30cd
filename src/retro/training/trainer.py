"""Training as a stage: one for the baseline, for RETRO and for RETROfit, on one process or many.

While a run trains, `NAME.partial` holds its metrics and checkpoints; finished, `NAME` is a model folder. Batches and random numbers
are pure functions of the seed and the step, so a resumed run is the unbroken run.
"""

from pathlib import Path

from retro.config import TrainingConfig
from retro.config_json import to_dict
from retro.machine import keep_freed_memory
from retro.model.retro import Retro
from retro.stages.progress import Progress
from retro.stages.stage import Artifact, Stage
from retro.training.batches import Batches
from retro.training.distributed import join
from retro.training.loop import Run, Sampling


def train(
    model: Retro,
    batches: Batches,
    config: TrainingConfig,
    path: Path,
    inputs: dict[str, str],
    validation: Batches | None = None,
    progress: Progress | None = None,
    sample: Sampling | None = None,
) -> Artifact:
    """Train the weights of the model that require it, and leave them all, with the metrics, in the folder `path`.

    `inputs` are the fingerprints of its data. The model itself is used up: under torchrun its weights are sharded afterwards.
    """
    keep_freed_memory()
    settings = {"model": to_dict(model.config), "training": to_dict(config)}
    with join() as world:

        def work(stage: Stage) -> None:
            Run(model, batches, config, stage, world, validation, progress, sample).finish()

        return world.run_stage(path, "run", settings, inputs, work, f"retro train --out {path}")
