"""A run that is killed, or goes on with other means, is the unbroken run."""

import os
import random
import time
from pathlib import Path

import pytest
import torch

from retro.errors import ArtifactError
from retro.model.weights import load_tensors
from retro.run import load
from retro.training.checkpoints import Checkpoints
from retro.training.distributed import World
from retro.training.metrics import METRICS, read_metrics
from retro.training.objective import make_optimizer
from tests.model.models import small_model
from tests.training.runs import CONFIG, losses, several_processes, spawn, start, start_fit


def kill_after(path: Path, num_rows: int, seconds: float, **changes: object) -> None:
    """Start a run in its own process and send SIGKILL some time after it has written so many rows of
    metrics."""
    process = spawn(start, path, **changes)
    metrics = path.with_name(path.name + ".partial") / METRICS
    while process.is_alive() and (not metrics.exists() or len(read_metrics(metrics)) < num_rows):
        time.sleep(0.001)
    time.sleep(seconds)
    process.kill()
    process.join()
    assert process.exitcode == -9


def test_a_run_killed_again_and_again_has_the_same_losses(tmp_path: Path) -> None:
    settings = {"num_steps": 60, "checkpoint_every": 3, "model_changes": {"dropout": 0.1}}
    unbroken = spawn(start, tmp_path / "unbroken", **settings)
    rng = random.Random(os.getpid())
    for target in sorted(rng.sample(range(5, 60), 3)):
        kill_after(tmp_path / "killed", target, rng.uniform(0.0, 0.03), **settings)
    last = spawn(start, tmp_path / "killed", **settings)
    for process in (unbroken, last):
        process.join()
        assert process.exitcode == 0
    assert losses(tmp_path / "killed") == losses(tmp_path / "unbroken")
    # Validated before each checkpoint, every third step, and every fourth.
    assert len(losses(tmp_path / "unbroken")) == 2 * 60 + 2 * (20 + 10)
    weights = [load_tensors(tmp_path / name / "model.safetensors") for name in ("killed", "unbroken")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[1])


def assert_close(found: Path, expected: Path) -> None:
    assert [row[:2] for row in losses(found)] == [row[:2] for row in losses(expected)]
    assert [row[2] for row in losses(found)] == pytest.approx([row[2] for row in losses(expected)], abs=1e-5)


def test_two_processes_have_the_losses_of_one(tmp_path: Path) -> None:
    start(tmp_path / "one")
    several_processes(tmp_path / "two", accumulate=2)
    assert_close(tmp_path / "two", tmp_path / "one")
    tokens = torch.arange(1, 12)[None]
    torch.testing.assert_close(
        load(tmp_path / "two")(tokens), load(tmp_path / "one")(tokens), rtol=0, atol=1e-4
    )
    assert {path.name for path in (tmp_path / "two").iterdir()} == {
        "README.md",
        "config.json",
        "manifest.json",
        METRICS,
        "model.safetensors",
        "run.json",
    }


def test_two_processes_train_a_pointer_like_one(tmp_path: Path) -> None:
    settings = {"model_changes": {"pointer": True}, "activation_checkpointing": True}
    start(tmp_path / "one", **settings)
    several_processes(tmp_path / "two", accumulate=2, **settings)
    assert_close(tmp_path / "two", tmp_path / "one")


def test_a_resumed_pointer_is_the_unbroken_one(tmp_path: Path) -> None:
    settings = {"model_changes": {"pointer": True, "dropout": 0.1}}
    start(tmp_path / "unbroken", **settings)
    with pytest.raises(StopRunError):
        start(tmp_path / "broken", told=stop_at(5), **settings)
    start(tmp_path / "broken", **settings)
    assert losses(tmp_path / "broken") == losses(tmp_path / "unbroken")
    weights = [load_tensors(tmp_path / name / "model.safetensors") for name in ("broken", "unbroken")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[1])
    assert "pointer.norm.weight" in weights[0]


class StopRunError(Exception):
    pass


def stop_at(step: int):  # type: ignore[no-untyped-def]
    def told(done: int, total: int, step_name: str = "", note: str = "") -> None:
        if done == step:
            raise StopRunError

    return told


def test_two_processes_go_on_where_one_stopped_and_the_other_way_round(tmp_path: Path) -> None:
    start(tmp_path / "one", activation_checkpointing=True)
    with pytest.raises(StopRunError):
        start(tmp_path / "changing", told=stop_at(5), activation_checkpointing=True)
    several_processes(tmp_path / "changing", start_and_stop, finish=False, activation_checkpointing=True)
    assert len(list(tmp_path.glob("changing.partial/scratch/checkpoints/step-000000006/*.safetensors"))) == 2
    start(tmp_path / "changing", activation_checkpointing=True)
    assert_close(tmp_path / "changing", tmp_path / "one")


def start_and_stop(path: Path, **changes: object) -> None:
    start(path, told=stop_at(8), **changes)


def test_two_processes_fit_like_one(tmp_path: Path) -> None:
    start_fit(tmp_path / "one")
    several_processes(tmp_path / "two", start_fit)
    assert_close(tmp_path / "two", tmp_path / "one")


def test_the_last_checkpoints_and_the_best_are_kept(tmp_path: Path) -> None:
    model = small_model()
    optimizer, checkpoints = (
        make_optimizer(model, CONFIG),
        Checkpoints(tmp_path, 2, World(0, 1, torch.device("cpu"))),
    )
    for step, validation in enumerate((None, 3.0, 1.0, 2.0, 2.5, 1.5), start=1):
        checkpoints.save(step, model, optimizer, validation)
    assert [entry.step for entry in checkpoints.kept()] == [3, 5, 6]
    assert checkpoints.best() == checkpoints.kept()[0]


def test_a_finished_run_can_hold_its_best_weights(tmp_path: Path) -> None:
    changes = {"learning_rate": 0.5, "min_learning_rate": 0.5}
    start(tmp_path / "best", final="best", **changes)
    measured = {
        row["step"]: row["valid_on"] for row in read_metrics(tmp_path / "best" / METRICS) if "valid_on" in row
    }
    best = min((3, 6, 9, 12), key=measured.__getitem__)
    assert best != 12
    start(tmp_path / "short", num_steps=12, final="last", **changes)
    again = load_tensors(tmp_path / "best" / "model.safetensors")
    last = load_tensors(tmp_path / "short" / "model.safetensors")
    assert not torch.equal(again["embedding.weight"], last["embedding.weight"])


@pytest.mark.parametrize("damage", ["cut", "gone", "unreadable"])
def test_a_broken_checkpoint_is_told_in_one_line(tmp_path: Path, damage: str) -> None:
    with pytest.raises(StopRunError):
        start(tmp_path / "run", told=stop_at(7))
    (folder,) = tmp_path.glob("run.partial/scratch/checkpoints/step-000000006")
    (shard,) = folder.glob("*.safetensors")
    if damage == "cut":
        shard.write_bytes(shard.read_bytes()[:-100])
    elif damage == "gone":
        shard.unlink()
    else:
        (folder / "state.json").write_text("{")
    with pytest.raises(ArtifactError, match=r"step-000000006.*remove .*run again") as caught:
        start(tmp_path / "run")
    assert "\n" not in str(caught.value)


def test_a_kill_between_the_weights_and_the_manifest_costs_no_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoints stay until the run has its name: what is trained is not trained again."""

    def killed(path: Path) -> str:
        raise StopRunError

    with monkeypatch.context() as patch:
        patch.setattr("retro.stages.stage.file_checksum", killed)
        with pytest.raises(StopRunError):
            start(tmp_path / "run")
    assert (tmp_path / "run.partial" / "model.safetensors").exists()
    steps: list[int] = []
    start(tmp_path / "run", told=lambda done, total, step="", note="": steps.append(done))
    assert steps == []
    assert not (tmp_path / "run" / "scratch").exists()
    start(tmp_path / "unbroken")
    again, once = (load_tensors(tmp_path / name / "model.safetensors") for name in ("run", "unbroken"))
    assert all(torch.equal(again[name], once[name]) for name in once)


def test_what_a_kill_leaves_after_the_run_has_its_name_is_removed(tmp_path: Path) -> None:
    start(tmp_path / "run")
    (tmp_path / "run" / "scratch" / "checkpoints").mkdir(parents=True)
    start(tmp_path / "run")
    assert not (tmp_path / "run" / "scratch").exists()
