"""A finished run goes on: weights, moments, data, learning rate and metrics."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from retro.errors import ArtifactError
from retro.model.retro import Retro
from retro.run import Run
from retro.stages.progress import Progress, no_progress
from retro.training.loop import train
from retro.training.metrics import METRICS, read_metrics
from tests.model.models import small_config
from tests.training.runs import CONFIG, RandomBatches, losses, start


class StopRunError(Exception):
    pass


def extend(path: Path, told: Progress = no_progress, **changes: Any) -> None:
    torch.manual_seed(7)  # other weights, which the checkpoint must replace
    config = dataclasses.replace(CONFIG, **changes)
    model = Retro(small_config())
    train(model, RandomBatches(), config, path, {}, RandomBatches(10_000), told, extend=True)


def weights(path: Path) -> bytes:
    return (path / "model.safetensors").read_bytes()


def test_an_extended_run_is_the_unbroken_run_of_the_same_schedule(tmp_path: Path) -> None:
    start(tmp_path / "unbroken", num_steps=12)
    start(tmp_path / "grown", num_steps=8, schedule_steps=12)
    assert weights(tmp_path / "grown") != weights(tmp_path / "unbroken")
    steps: list[int] = []
    extend(
        tmp_path / "grown",
        lambda done, total, step="", note="": steps.append(done),
        num_steps=12,
        schedule_steps=12,
    )
    assert steps == [9, 10, 11, 12]  # nothing is trained again
    assert weights(tmp_path / "grown") == weights(tmp_path / "unbroken")
    assert Run(tmp_path / "grown").fingerprint == Run(tmp_path / "unbroken").fingerprint
    # The shorter run also validated after its last step.
    assert set(losses(tmp_path / "unbroken")) <= set(losses(tmp_path / "grown"))
    assert {path.name for path in tmp_path.iterdir()} == {
        "unbroken",
        "unbroken.checkpoint",
        "grown",
        "grown.checkpoint",
    }
    # It can be extended again.
    extend(tmp_path / "grown", num_steps=14, schedule_steps=12)
    assert read_metrics(tmp_path / "grown" / METRICS)[-1]["step"] == 14


def test_where_the_schedule_has_ended_the_learning_rate_stays_at_its_minimum(tmp_path: Path) -> None:
    start(tmp_path / "run", num_steps=8)
    before = read_metrics(tmp_path / "run" / METRICS)
    extend(tmp_path / "run", num_steps=12, schedule_steps=8)
    after = read_metrics(tmp_path / "run" / METRICS)
    assert after[: len(before)] == before
    rates = [row["learning_rate"] for row in after if row["step"] > 8 and "learning_rate" in row]
    assert rates == [CONFIG.min_learning_rate] * 4
    assert Run(tmp_path / "run").record["training"]["num_steps"] == 12


def test_a_kill_leaves_the_run_as_it_was_and_the_rest_is_done_later(tmp_path: Path) -> None:
    settings = {"num_steps": 16, "schedule_steps": 8}
    start(tmp_path / "run", num_steps=8)
    for name in ("run", "run.checkpoint"):
        shutil.copytree(tmp_path / name, tmp_path / name.replace("run", "unbroken"))
    extend(tmp_path / "unbroken", **settings)
    before = weights(tmp_path / "run")

    def stop(done: int, total: int, step: str = "", note: str = "") -> None:
        if done == 14:
            raise StopRunError

    with pytest.raises(StopRunError):
        extend(tmp_path / "run", stop, **settings)
    assert weights(tmp_path / "run") == before
    steps: list[int] = []
    extend(tmp_path / "run", lambda done, total, step="", note="": steps.append(done), **settings)
    assert steps == [13, 14, 15, 16]  # behind the checkpoint of step 12
    assert weights(tmp_path / "run") == weights(tmp_path / "unbroken")
    extend(tmp_path / "run", stop, **settings)  # it is finished, and only opened


def test_a_kill_before_the_checkpoint_is_moved_out_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("retro.training.loop.keep_checkpoint", lambda path: None)
        start(tmp_path / "run", num_steps=8)
    assert (tmp_path / "run" / "checkpoint").exists()
    extend(tmp_path / "run", num_steps=10, schedule_steps=8)
    assert {path.name for path in tmp_path.iterdir()} == {"run", "run.checkpoint"}
    assert not (tmp_path / "run" / "checkpoint").exists()


def test_without_its_checkpoint_a_run_is_not_extended(tmp_path: Path) -> None:
    start(tmp_path / "run", num_steps=8)
    before = weights(tmp_path / "run")
    shutil.rmtree(tmp_path / "run.checkpoint")
    with pytest.raises(ArtifactError, match=r"run.checkpoint does not exist; expected the last checkpoint"):
        extend(tmp_path / "run", num_steps=10, schedule_steps=8)
    assert weights(tmp_path / "run") == before
