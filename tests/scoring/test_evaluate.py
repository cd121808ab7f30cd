import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from retro.config import EvaluationConfig
from retro.errors import ConfigError
from retro.model.protocol import Scored
from retro.model.retro import Retro
from retro.scoring.bits_per_byte import PART, score, score_modes
from retro.scoring.evaluate import OFF, Evaluation, evaluate, on
from retro.stages.files import link_or_copy
from retro.workspace import Workspace
from tests.scoring.stores import alternate_sources
from tests.workspaces import small_run


@pytest.fixture
def model(workspace: Workspace, bert: str) -> Retro:
    torch.manual_seed(0)
    return Retro(
        dataclasses.replace(
            small_run(bert).model, vocab_size=workspace.store("test").artifact.counts["vocab_size"]
        )
    ).eval()


def test_sources_add_up_to_the_whole(workspace: Workspace, bert: str, model: Retro, tmp_path: Path) -> None:
    neighbours, run = workspace.neighbours("test"), small_run(bert)
    alternate_sources(neighbours.store)
    evaluation = evaluate(model, "a model", neighbours, tmp_path / "evaluation", run.evaluation)
    num_bytes = {"even": neighbours.store.num_bytes[::2].sum(), "odd": neighbours.store.num_bytes[1::2].sum()}
    for mode in (OFF, on(2)):
        by_source = evaluation.by_source(mode)
        assert by_source.keys() == num_bytes.keys()
        whole = (
            sum(by_source[source].estimate * size for source, size in num_bytes.items())
            / neighbours.store.num_bytes.sum()
        )
        assert whole == pytest.approx(evaluation.bits_per_byte(mode))
        assert by_source["odd"].estimate == pytest.approx(
            evaluation.document_bits(mode)[1::2].sum() / num_bytes["odd"]
        )
    assert np.isfinite(evaluation.document_bits(OFF)).all()


def test_results_say_how_much_was_seen(workspace: Workspace, bert: str, model: Retro, tmp_path: Path) -> None:
    neighbours = workspace.neighbours("test")
    evaluation = evaluate(model, "a model", neighbours, tmp_path / "evaluation", small_run(bert).evaluation)
    for mode in evaluation.modes:
        points, metrics = evaluation.filtered(mode), evaluation.metrics(mode)
        assert points[-1].alpha == points[-1].share_of_bytes == 1.0
        assert points[-1].bits_per_byte.estimate == pytest.approx(metrics.bits_per_byte.estimate)
        assert (points[-1].bits_per_byte.low, points[-1].bits_per_byte.high) == pytest.approx(
            (metrics.bits_per_byte.low, metrics.bits_per_byte.high)
        )
        assert metrics.perplexity_per_token.estimate < metrics.perplexity_per_word.estimate
    for measure in ("share_of_chunks", "share_of_bytes"):
        assert sum(part[measure] for part in evaluation.results["overlap"]) == pytest.approx(1.0)


def files_of(folder: Path) -> dict[str, bytes]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_another_k_is_added_without_scoring_the_rest_again(
    workspace: Workspace, bert: str, model: Retro, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    neighbours, config = workspace.neighbours("test"), small_run(bert).evaluation

    def scored(name: str, *ks: int) -> list[int]:
        """The values of k that are scored on the way to an evaluation with these."""
        asked: list[int] = []

        def counted(*arguments, **named):  # type: ignore[no-untyped-def]
            asked.extend(arguments[4])
            return score_modes(*arguments, **named)

        with monkeypatch.context() as patch:
            patch.setattr("retro.scoring.evaluate.score_modes", counted)
            chosen = dataclasses.replace(config, num_neighbours=ks)
            evaluate(model, "a model", neighbours, tmp_path / name, chosen)
        return asked

    assert scored("whole", 1, 2, 4) == [0, 1, 2, 4]
    assert scored("grown", 2) == [0, 2]
    assert scored("grown", 1, 2, 4) == [1, 4]
    assert files_of(tmp_path / "grown") == files_of(tmp_path / "whole")
    # What is there already is opened, whichever part of it is asked for.
    assert scored("grown", 4) == []
    assert files_of(tmp_path / "grown") == files_of(tmp_path / "whole")
    # What is not asked for again stays.
    assert scored("joined", 2) == [0, 2]
    assert scored("joined", 4, 1) == [4, 1]
    assert Evaluation.open(tmp_path / "joined").modes == ["off", "on-2", "on-4", "on-1"]
    assert {path.name for path in tmp_path.iterdir()} == {"whole", "grown", "joined"}


def test_a_kill_while_another_k_is_added_leaves_the_old_scores(
    workspace: Workspace, bert: str, model: Retro, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    neighbours, config = workspace.neighbours("test"), small_run(bert).evaluation
    fewer = dataclasses.replace(config, num_neighbours=(1,))
    evaluate(model, "a model", neighbours, tmp_path / "whole", config)
    evaluate(model, "a model", neighbours, tmp_path / "killed", fewer)
    before = files_of(tmp_path / "killed")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("retro.scoring.evaluate._summarise", killed)
        evaluate(model, "a model", neighbours, tmp_path / "killed", config)
    assert files_of(tmp_path / "killed") == before
    monkeypatch.setattr("retro.scoring.parts.PartScorer.__call__", killed)  # all is scored already
    evaluate(model, "a model", neighbours, tmp_path / "killed", config)
    assert files_of(tmp_path / "killed") == files_of(tmp_path / "whole")


@pytest.mark.parametrize("has_links", [True, False])
def test_a_kill_while_neighbours_are_taken_over_loses_none_of_them(
    workspace: Workspace,
    bert: str,
    model: Retro,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    has_links: bool,
) -> None:
    neighbours, config = workspace.neighbours("test"), small_run(bert).evaluation
    fewer = dataclasses.replace(config, num_neighbours=(1,))
    evaluate(model, "a model", neighbours, tmp_path / "whole", config)
    evaluate(model, "a model", neighbours, tmp_path / "killed", fewer)
    before = files_of(tmp_path / "killed"), files_of(workspace.neighbours_path("test"))
    if not has_links:
        monkeypatch.setattr("os.link", lambda *_: (_ for _ in ()).throw(OSError("no links here")))
    taken = []

    def killed_at_the_third(source: str, target: str) -> str:
        taken.append(target)
        if len(taken) == 3:
            Path(target).write_bytes(b"half")
            raise KeyboardInterrupt
        return link_or_copy(source, target)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("retro.scoring.evaluate.link_or_copy", killed_at_the_third)
        evaluate(model, "a model", neighbours, tmp_path / "killed", config)
    assert (files_of(tmp_path / "killed"), files_of(workspace.neighbours_path("test"))) == before
    evaluate(model, "a model", neighbours, tmp_path / "killed", config)
    assert files_of(tmp_path / "killed") == files_of(tmp_path / "whole")
    assert files_of(workspace.neighbours_path("test")) == before[1]


def test_an_interrupted_evaluation_goes_on_where_it_was(
    workspace: Workspace, bert: str, model: Retro, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    neighbours, config = (
        workspace.neighbours("test"),
        dataclasses.replace(small_run(bert).evaluation, batch_size=1),
    )
    whole = evaluate(model, "a model", neighbours, tmp_path / "whole", config)
    score_each, calls = Retro.score_each, 0

    def counted(limit: int):  # type: ignore[no-untyped-def]
        def call(self: Retro, *inputs, **named) -> list[Scored]:  # type: ignore[no-untyped-def]
            nonlocal calls
            if calls == limit:
                raise KeyboardInterrupt
            calls += 1
            return score_each(self, *inputs, **named)

        return call

    monkeypatch.setattr(Retro, "score_each", counted(10**9))
    evaluate(model, "a model", neighbours, tmp_path / "counted", config)
    total, calls = calls, 0
    stopped_at = total // 2 + 1
    assert total > 2 * PART
    monkeypatch.setattr(Retro, "score_each", counted(stopped_at))
    with pytest.raises(KeyboardInterrupt):
        evaluate(model, "a model", neighbours, tmp_path / "broken", config)
    calls = 0
    monkeypatch.setattr(Retro, "score_each", counted(10**9))
    resumed = evaluate(model, "a model", neighbours, tmp_path / "broken", config)
    assert total - stopped_at <= calls < total - stopped_at + PART
    assert resumed.results == whole.results
    assert sorted(path.name for path in (tmp_path / "broken").iterdir()) == [
        "manifest.json",
        "neighbours",
        "results.json",
        "scores.npz",
    ]


def test_more_neighbours_than_are_saved_are_refused(
    workspace: Workspace, bert: str, model: Retro, tmp_path: Path
) -> None:
    neighbours = workspace.neighbours("test")
    config = dataclasses.replace(small_run(bert).evaluation, num_neighbours=(2, 40))
    work = re.escape(str(workspace.path))
    message = (
        rf"num_neighbours is 40, and {work}/neighbours/test has 4 saved for each chunk; expected at most 4; "
        rf"run: retro build {work} --num-neighbours 40, and then: retro neighbours {work}$"
    )
    with pytest.raises(ConfigError, match=message):
        evaluate(model, "a model", neighbours, tmp_path / "evaluation", config)
    assert not list(tmp_path.iterdir())  # refused before anything was scored
    with pytest.raises(ConfigError, match="num_neighbours is 5"):
        score(model, neighbours.store, config, neighbours, 5)
    # A baseline reads no neighbours, and never asks for them.
    baseline = Retro(model.config.baseline()).eval()
    assert evaluate(baseline, "another", neighbours, tmp_path / "evaluation", config).modes == [OFF]


@pytest.mark.parametrize("num_neighbours", [(0,), (2, 0), (-1, 2)])
def test_fewer_than_one_neighbour_is_refused(num_neighbours: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="expected each to be at least 1"):
        EvaluationConfig(num_neighbours=num_neighbours)
