import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from retro.comparators import cache as continuous_cache
from retro.comparators.cache import cache_log_probs, fill_cache
from retro.comparators.token_states import TokenStates, mix, write_states
from retro.config import EvaluationConfig
from retro.errors import ConfigError
from retro.model.retro import Retro
from retro.workspace import Workspace
from tests.workspaces import small_run

WINDOWS = EvaluationConfig(window=32, stride=16, batch_size=3)


@pytest.fixture
def model(workspace: Workspace, bert: str) -> Retro:
    torch.manual_seed(1)
    vocab_size = workspace.store("test").artifact.counts["vocab_size"]
    return Retro(dataclasses.replace(small_run(bert).model.baseline(), vocab_size=vocab_size)).eval()


@pytest.fixture
def states(workspace: Workspace, model: Retro, tmp_path: Path) -> TokenStates:
    return write_states(model, "a model", workspace.store("test"), tmp_path / "states", WINDOWS)


@pytest.mark.parametrize("block", [7, 256])
def test_the_cache_by_hand(
    states: TokenStates, tmp_path: Path, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(continuous_cache, "BLOCK", block)
    length, theta = 20, 0.25
    found = fill_cache(states, tmp_path / "cache", length).log_probs(theta)
    keys, values = states.keys.astype(np.float64), states.values
    ends = np.append(states.firsts[1:], len(values))
    for first, end in zip(states.firsts, ends, strict=True):
        assert found[first] == pytest.approx(-states.bits[first], rel=1e-6)
        for row in range(first + 1, end, 11):
            votes = {
                place: math.exp(theta * keys[row] @ keys[place])
                for place in range(max(first, row - length), row)
            }
            hits = sum(vote for place, vote in votes.items() if values[place] == values[row])
            expected = math.log2(hits / sum(votes.values())) if hits else -math.inf
            assert found[row] == pytest.approx(expected, rel=1e-4)
    assert (mix(states.bits, found, 0.0) == states.bits).all()


def test_probabilities_sum_to_one() -> None:
    torch.manual_seed(0)
    keys, values, total = torch.randn(12, 4), torch.randint(5, (12,)), 0.0
    for token in range(5):
        asked = torch.cat([values[:11], torch.tensor([token])])
        total += float(2.0 ** cache_log_probs(keys, asked, 11, 6, torch.tensor([0.5]))[0, 0])
    assert total == pytest.approx(1.0, rel=1e-5)


def test_the_cache_never_sees_the_future(
    workspace: Workspace, states: TokenStates, model: Retro, tmp_path: Path
) -> None:
    """Other tokens from a place on: what was said about the tokens before it stays."""
    store = workspace.store("test")
    document = int(np.argmax(store.ends - store.starts))
    change = int(store.starts[document]) + 50
    tokens = np.array(store.tokens)
    tokens[change : store.ends[document] - 1] = (tokens[change : store.ends[document] - 1] + 17) % 200 + 20
    store.tokens = tokens
    changed = write_states(model, "a model", store, tmp_path / "changed", WINDOWS)
    before, after = (
        mix(own.bits, fill_cache(own, tmp_path / name, 64).log_probs(0.25), 0.5)
        for name, own in (("cache", states), ("changed-cache", changed))
    )
    row = change - document - 1  # the row that predicts the first changed token
    np.testing.assert_allclose(after[:row], before[:row], atol=1e-4)
    later = slice(row, int(store.ends[document]) - document - 2)
    assert not np.isclose(after[later], before[later], atol=1e-4).any()


def test_only_what_was_computed_can_be_asked_for(states: TokenStates, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="was not computed with θ"):
        fill_cache(states, tmp_path / "cache", 20).log_probs(0.3)
