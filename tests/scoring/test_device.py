"""Scoring with a model that is elsewhere: all that it reads goes there, and all that is kept comes back.

There is no GPU here, so the other device is made up: tensors that were moved to it belong to a class of
their own, the model refuses any other, and none of them can become an array before it is back on the CPU.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from retro.comparators.token_states import write_states
from retro.config import EvaluationConfig
from retro.model.protocol import Decoding, ModelFacts, Scored
from retro.model.retro import Retro
from retro.retrieval.retriever import Retriever
from retro.scoring.bits_per_byte import score
from retro.scoring.inspection import inspect_document
from retro.scoring.targets import Prompted, score_targets
from retro.workspace import Workspace
from tests.scoring.runs import workspace_with_run
from tests.workspaces import small_run

CONFIG = EvaluationConfig(window=32, stride=16, batch_size=3)
ELSEWHERE = torch.device("xla", 7)


class Remote(Tensor):
    """A tensor on the made-up device."""

    def numpy(self, *, force: bool = False) -> Any:
        raise TypeError("a tensor of another device has no array; expected .cpu() first")

    def cpu(self, *_args: Any, **_kwargs: Any) -> Tensor:
        return self.as_subclass(Tensor)


class RemoteModel:
    """Our own model, as if it were on the made-up device."""

    def __init__(self, model: Retro) -> None:
        self.model = model
        self.num_calls = 0

    @property
    def facts(self) -> ModelFacts:
        return self.model.facts

    @property
    def device(self) -> torch.device:
        return ELSEWHERE

    @property
    def key_width(self) -> int:
        return self.model.key_width

    def __call__(self, *inputs: Tensor) -> Tensor:
        return self.model(*self._here(*inputs)).as_subclass(Remote)

    def score(self, *inputs: Tensor, greedy: bool = False) -> Scored:
        scored = self.model.score(*self._here(*inputs), greedy=greedy)
        hits = None if scored.greedy is None else scored.greedy.as_subclass(Remote)
        return Scored(scored.log_probs.as_subclass(Remote), hits)

    def keys(self, tokens: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        given = (tokens,) if targets is None else (tokens, targets)
        keys, log_probs = self.model.keys(*self._here(*given))
        return keys.as_subclass(Remote), None if log_probs is None else log_probs.as_subclass(Remote)

    def begin(self, window: int = 0) -> Decoding:
        return self.model.begin(window)

    def _here(self, *inputs: Tensor) -> list[Tensor]:
        self.num_calls += 1
        assert all(isinstance(tensor, Remote) for tensor in inputs), "a tensor was left on the CPU"
        return [tensor.as_subclass(Tensor) for tensor in inputs]


@pytest.fixture
def model(workspace: Workspace, bert: str) -> Retro:
    torch.manual_seed(1)
    return Retro(small_run(bert).model).eval()


@pytest.fixture
def remote(model: Retro, monkeypatch: pytest.MonkeyPatch) -> RemoteModel:
    move = Tensor.to

    def to(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return self.as_subclass(Remote) if args == (ELSEWHERE,) else move(self, *args, **kwargs)

    monkeypatch.setattr(Tensor, "to", to)
    return RemoteModel(model)


@pytest.mark.parametrize("k", [0, 2])
def test_documents_are_scored_where_the_model_is(
    workspace: Workspace, model: Retro, remote: RemoteModel, k: int
) -> None:
    neighbours = workspace.neighbours("test")
    found = score(remote, neighbours.store, CONFIG, neighbours, k).bits
    np.testing.assert_array_equal(found, score(model, neighbours.store, CONFIG, neighbours, k).bits)
    assert remote.num_calls


def test_targets_are_scored_where_the_model_is(
    workspace: Workspace, model: Retro, remote: RemoteModel
) -> None:
    store, retriever = workspace.store("test"), Retriever(workspace.datastore())
    items = [Prompted(store.document(number)[:-1].astype(np.int64), 5, 1) for number in range(3)]
    found = score_targets(remote, items, CONFIG, (0, 2), retriever)
    expected = score_targets(model, items, CONFIG, (0, 2), retriever)
    for k in (0, 2):
        np.testing.assert_array_equal(found[k].bits, expected[k].bits)
        np.testing.assert_array_equal(found[k].greedy, expected[k].greedy)


@pytest.mark.parametrize("scored", [False, True])
def test_states_are_made_where_the_model_is(
    workspace: Workspace, model: Retro, remote: RemoteModel, scored: bool, tmp_path: Path
) -> None:
    store = workspace.store("test")
    found = write_states(remote, "a", store, tmp_path / "remote", CONFIG, scored)
    expected = write_states(model, "a", store, tmp_path / "here", CONFIG, scored)
    np.testing.assert_array_equal(found.keys, expected.keys)
    np.testing.assert_array_equal(found.bits, expected.bits)


def test_a_document_is_inspected_where_the_model_is(workspace: Workspace, remote: RemoteModel) -> None:
    assert inspect_document(remote, workspace.neighbours("test"), 0, 2, CONFIG).on > 0


def test_a_run_is_opened_on_the_best_device(
    tmp_path: Path, text_folder: Path, static_encoder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = workspace_with_run(tmp_path / "work", text_folder, static_encoder)
    assert work.run("retro").model.device.type == ("cuda" if torch.cuda.is_available() else "cpu")
    monkeypatch.setattr("retro.workspace.best_device", lambda: torch.device("meta"))
    assert work.run("retro").model.device.type == "meta"
