"""What does not belong together is refused in one line, before a run's folder is made."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from retro.config import RetrievalConfig
from retro.errors import ArtifactError, ConfigError, RetroError
from retro.jobs.training import fit_run, train_run
from retro.model.retro import Retro
from retro.workspace import Workspace
from tests.workspaces import small_run

Start = Callable[[Workspace, str, Path], object]


def trained(work: Workspace, bert: str, model: dict[str, object], **training: object) -> object:
    run = small_run(bert)
    layers = model.pop("cross_attention_layers", run.model.cross_attention_layers)
    retrieval = dataclasses.replace(run.model.retrieval, cross_attention_layers=layers)
    config = dataclasses.replace(run.model, retrieval=retrieval, **model)
    return train_run(work, "wrong", config, dataclasses.replace(run.training, **training))


def fitted(
    work: Workspace, bert: str, folder: Path, vocab_size: int = 320, layers: tuple[int, ...] = (2,)
) -> object:
    run = small_run(bert)
    Retro(dataclasses.replace(run.model.baseline(), vocab_size=vocab_size)).save(folder)
    return fit_run(
        work,
        "wrong",
        str(folder),
        RetrievalConfig(cross_attention_layers=layers, encoder=run.model.retrieval.encoder),
        run.training,
    )


CASES: dict[str, tuple[Start, type[RetroError], str]] = {
    "chunk length of another datastore": (
        lambda work, bert, tmp: trained(work, bert, {"chunk_len": 16}),
        ConfigError,
        r"has chunks of 8 tokens; expected the model's 16",
    ),
    "length off the chunk grid": (
        lambda work, bert, tmp: trained(work, bert, {}, seq_len=36),
        ConfigError,
        "seq_len is 36; expected a multiple",
    ),
    "more neighbours than were saved": (
        lambda work, bert, tmp: trained(work, bert, {}, num_neighbours=9),
        ConfigError,
        "at most the 4",
    ),
    "layers beyond the depth": (
        lambda work, bert, tmp: trained(work, bert, {"cross_attention_layers": (2, 3)}),
        ConfigError,
        "between 1 and the depth, 2",
    ),
    "layers beyond the depth of a fit": (
        lambda work, bert, tmp: fitted(work, bert, tmp, layers=(6,)),
        ConfigError,
        "the depth, 2",
    ),
    "a mixture of other sources": (
        lambda work, bert, tmp: trained(work, bert, {}, mixture={"sea": 1.0}),
        ConfigError,
        "mixture names",
    ),
    "a baseline of another vocabulary": (
        lambda work, bert, tmp: fitted(work, bert, tmp, vocab_size=300),
        ArtifactError,
        r"another tokenizer \(300 tokens\) .*\(320 tokens\)",
    ),
    "no baseline": (
        lambda work, bert, tmp: fit_run(
            work, "wrong", "nothing", RetrievalConfig(), small_run(bert).training
        ),
        ArtifactError,
        "nothing does not exist; expected the folder of a run.*; run: retro train",
    ),
    "parts that do not divide the batch": (
        lambda work, bert, tmp: trained(work, bert, {}, accumulate=3),
        ConfigError,
        "a divisor of",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_it_is_refused_in_one_line(case: str, workspace: Workspace, bert: str, tmp_path: Path) -> None:
    start, error, message = CASES[case]
    with pytest.raises(error, match=message) as caught:
        start(workspace, bert, tmp_path)
    assert "\n" not in str(caught.value)
    assert not list((workspace.path / "runs").glob("wrong*"))


def test_a_baseline_of_another_tokenizer_of_the_same_size_is_refused(
    workspace: Workspace, bert: str, tmp_path: Path
) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps({"inputs": {"tokenizer": "another"}}))
    with pytest.raises(ArtifactError, match="another tokenizer"):
        fitted(workspace, bert, tmp_path)


def test_a_fit_of_another_baseline_does_not_go_on_in_its_folder(
    workspace: Workspace, bert: str, tmp_path: Path
) -> None:
    run = small_run(bert)
    for seed in range(2):
        torch.manual_seed(seed)
        Retro(run.model.baseline()).save(tmp_path / str(seed))
    fit = run.model.retrieval
    fit_run(workspace, "fit-of-0", str(tmp_path / "0"), fit, run.training)
    with pytest.raises(ArtifactError, match=r"other settings or inputs \(baseline differ\)"):
        fit_run(workspace, "fit-of-0", str(tmp_path / "1"), fit, run.training)
