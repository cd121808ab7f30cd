import dataclasses
import json
from pathlib import Path

import pytest
import torch

from retro.config import TrainingConfig
from retro.errors import ArtifactError
from retro.model.retro import Retro
from retro.run import load
from retro.training.batches import PackedBatches
from retro.training.loop import train
from retro.training.metrics import METRICS, read_metrics
from retro.training.objective import learning_rate, make_optimizer
from retro.workspace import Workspace
from tests.model.models import small_model
from tests.workspaces import small_run


def test_the_schedule_warms_up_and_ends_at_the_minimum() -> None:
    config = TrainingConfig(
        num_steps=100, warmup_steps=10, learning_rate=1e-3, min_learning_rate=1e-4, warmup_start=1e-7
    )
    rates = [learning_rate(step, config) for step in range(101)]
    assert rates[0] == pytest.approx(1e-7)
    assert rates[5] == pytest.approx((1e-7 + 1e-3) / 2)
    assert max(rates) == rates[10] == pytest.approx(1e-3)
    assert rates[55] == pytest.approx((1e-3 + 1e-4) / 2)
    assert rates[100] == pytest.approx(1e-4)


def test_only_matrices_decay() -> None:
    model = small_model()
    decayed, rest = make_optimizer(model, TrainingConfig()).param_groups
    assert decayed["weight_decay"] == 0.1
    assert rest["weight_decay"] == 0.0
    assert {parameter.ndim for parameter in decayed["params"]} == {2}
    assert len(decayed["params"]) + len(rest["params"]) == len(list(model.parameters()))


def start(
    workspace: Workspace, bert: str, path: Path, stop_at: int | None = None, **changes: object
) -> Retro:
    run = small_run(bert)
    config = dataclasses.replace(run.training, **changes)  # type: ignore[arg-type]
    neighbours = workspace.neighbours("train")
    batches = PackedBatches(workspace.store("train"), 8, config.seq_len, config.batch_size, 0, neighbours, 2)
    torch.manual_seed(0)
    model = Retro(dataclasses.replace(run.model, dropout=0.1))

    def told(done: int, total: int, step: str = "", note: str = "") -> None:
        if done == stop_at:
            raise KeyboardInterrupt

    train(model, batches, config, path, {"tokens": "abc"}, batches, told)
    return load(path)


def test_a_resumed_run_is_the_unbroken_run(workspace: Workspace, bert: str, tmp_path: Path) -> None:
    unbroken = start(workspace, bert, tmp_path / "unbroken")
    for stop in (1, 3, 5):
        with pytest.raises(KeyboardInterrupt):
            start(workspace, bert, tmp_path / "broken", stop_at=stop)
    resumed = start(workspace, bert, tmp_path / "broken")
    for name, weight in unbroken.state_dict().items():
        assert torch.equal(weight, resumed.state_dict()[name]), name

    def losses(name: str) -> list[tuple[int, float]]:
        return [
            (row["step"], row[key])
            for row in read_metrics(tmp_path / name / METRICS)
            for key in row
            if key in ("loss", "valid_on")
        ]

    assert losses("broken") == losses("unbroken")
    assert len(losses("unbroken")) == 6 + 4


def test_a_finished_run_is_a_model_folder(workspace: Workspace, bert: str, tmp_path: Path) -> None:
    model = start(workspace, bert, tmp_path / "run")
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {"README.md", "config.json", "run.json", "manifest.json", METRICS, "model.safetensors"}
    loaded = load(tmp_path / "run")
    assert loaded.config == model.config
    tokens = torch.arange(1, 20)[None]
    assert torch.equal(loaded(tokens), model(tokens))


def test_training_lowers_the_loss(workspace: Workspace, bert: str, tmp_path: Path) -> None:
    start(workspace, bert, tmp_path / "run", num_steps=30, log_every=1)
    losses = [row["loss"] for row in read_metrics(tmp_path / "run" / METRICS) if "loss" in row]
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])


def test_checkpoints_of_another_shape_or_broken_are_refused(
    workspace: Workspace, bert: str, tmp_path: Path
) -> None:
    start(workspace, bert, tmp_path / "run")
    record_path = tmp_path / "run" / "run.json"
    record = json.loads(record_path.read_text())

    def change(**settings: object) -> None:
        record_path.write_text(json.dumps({**record, "model": {**record["model"], **settings}}))

    change(ffw_dim=64)
    with pytest.raises(ArtifactError, match=r"another architecture: .*feed_forward.*expected \(16, 64\)"):
        load(tmp_path / "run")
    change(width=64)
    with pytest.raises(Exception, match="unknown keys"):
        load(tmp_path / "run")
    change()
    weights = tmp_path / "run" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    with pytest.raises(ArtifactError, match="not a whole safetensors file"):
        load(tmp_path / "run")
    with pytest.raises(ArtifactError, match=r"holds no run.json.*retro train"):
        load(tmp_path)


def test_a_run_of_other_settings_is_refused(workspace: Workspace, bert: str, tmp_path: Path) -> None:
    start(workspace, bert, tmp_path / "run")
    with pytest.raises(ArtifactError, match=r"training.learning_rate differ"):
        start(workspace, bert, tmp_path / "run", learning_rate=1.0)
