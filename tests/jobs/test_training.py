"""Runs of a workspace: where they may be written, and what they need."""

import dataclasses
from pathlib import Path

import pytest
import torch

from retro.cli.main import main
from retro.config import CorpusConfig
from retro.corpus.documents import Document
from retro.corpus.ingest import ingest
from retro.errors import ConfigError
from retro.jobs.retrieval import find_neighbours
from retro.jobs.training import fit_run, train_run
from retro.model.weights import load_tensors
from retro.training.metrics import METRICS, read_metrics
from retro.workspace import Workspace
from tests.workspaces import small_run, small_workspace


@pytest.fixture(scope="module")
def tokens_alone(tmp_path_factory: pytest.TempPathFactory, text_folder: Path) -> Workspace:
    """A workspace that has been ingested, and nothing else."""
    work = Workspace(tmp_path_factory.mktemp("tokens") / "work")
    ingest(work, [str(text_folder)], CorpusConfig(vocab_size=320, valid_fraction=0.15, test_fraction=0.15))
    return work


def test_a_baseline_samples_during_training_without_a_datastore(tokens_alone: Workspace) -> None:
    run = small_run("")
    training = dataclasses.replace(run.training, sample_every=3, sample_tokens=4, sample_prompt="The licence")
    artifact = train_run(tokens_alone, "baseline", run.model.baseline(), training)
    samples = [row["sample"] for row in read_metrics(artifact.path / METRICS) if "sample" in row]
    assert len(samples) == 2
    assert all(str(sample).startswith("The licence") for sample in samples)


@pytest.mark.parametrize("name", ["../evil", "/tmp/evil", "a/b", "a\\b", "..", ".hidden", "-x", "x.partial"])
def test_a_name_that_leads_out_of_the_runs_is_refused(tokens_alone: Workspace, name: str) -> None:
    run = small_run("")
    before = sorted(tokens_alone.path.parent.rglob("*"))
    with pytest.raises(ConfigError, match="expected a plain name") as caught:
        train_run(tokens_alone, name, run.model.baseline(), run.training)
    assert repr(name) in str(caught.value)
    assert sorted(tokens_alone.path.parent.rglob("*")) == before


def test_the_commands_refuse_such_a_name_in_one_line(
    workspace: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in (
        ["train", str(workspace.path), "--name", "../evil"],
        ["fit", str(workspace.path), "--name", "../evil"],
        ["fit", str(workspace.path), "--task", "qa", "--from", "x", "--name", "../evil"],
    ):
        assert main(arguments) == 1
        error = capsys.readouterr().err
        assert "'../evil'; expected a plain name" in error
        assert error.count("\n") == 1
    assert not (workspace.path / "evil.partial").exists()


def test_a_fit_refuses_the_name_before_it_opens_the_baseline(workspace: Workspace, bert: str) -> None:
    run = small_run(bert)
    assert run.model.retrieval is not None
    with pytest.raises(ConfigError, match="plain name"):
        fit_run(workspace, "../evil", "absent", run.model.retrieval, run.training)


def test_a_run_goes_on_with_the_neighbours_it_began_with(
    tmp_path: Path, text_folder: Path, static_encoder: str
) -> None:
    """A document that is added meanwhile, and neighbours that are found anew, do not stop it or change it."""
    run = small_run(static_encoder)
    work = small_workspace(tmp_path / "work", text_folder, static_encoder)

    def stop(done: int, total: int, step: str = "", note: str = "") -> None:
        if done == 4:
            raise KeyboardInterrupt

    train_run(work, "unbroken", run.model, run.training)
    with pytest.raises(KeyboardInterrupt):
        train_run(work, "broken", run.model, run.training, stop)
    work.datastore().add([Document("new", "The licence permits anyone to use this software.", "more")])
    for split in ("train", "valid"):
        find_neighbours(work, split)
    train_run(work, "broken", run.model, run.training)
    weights = [load_tensors(work.run_path(name) / "model.safetensors") for name in ("unbroken", "broken")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    # A finished run is opened, not refused.
    steps: list[int] = []
    train_run(
        work, "broken", run.model, run.training, lambda done, total, step="", note="": steps.append(done)
    )
    assert steps == []
