import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from retro.errors import ConfigError
from retro.sampling.choice import Choice

LOGITS = st.lists(st.floats(-5, 5), min_size=2, max_size=12).map(lambda values: torch.tensor(values, dtype=torch.float64))


@given(LOGITS, st.floats(0.05, 1.0))
def test_top_p_keeps_the_fewest_most_probable_tokens_that_hold_p(logits: torch.Tensor, p: float) -> None:
    """Nucleus sampling keeps the head; an inverted one would keep the tail."""
    plain = logits.softmax(-1)
    found = Choice(temperature=1.0, top_p=p).probabilities(logits)
    kept = found > 0
    assert plain[kept].min() >= plain[~kept].max() if (~kept).any() else True
    mass = plain[kept].sum()
    assert mass >= p - 1e-9
    assert mass - plain[kept].min() < p + 1e-9
    torch.testing.assert_close(found[kept], plain[kept] / mass)


@given(LOGITS, st.integers(1, 5))
def test_top_k_keeps_k(logits: torch.Tensor, k: int) -> None:
    found = Choice(temperature=1.0, top_k=k).probabilities(logits)
    assert (found > 0).sum() == min(k, len(logits))
    assert found.sum() == pytest.approx(1.0)
    plain = logits.softmax(-1)
    assert found[plain == plain.max()].max() == found.max()


def test_temperature() -> None:
    logits = torch.tensor([1.0, 2.0, 0.0])
    assert Choice(temperature=0.0).probabilities(logits).tolist() == [0.0, 1.0, 0.0]
    torch.testing.assert_close(Choice(temperature=2.0).probabilities(logits), (logits / 2).softmax(-1))


@pytest.mark.parametrize("settings", [{"temperature": -1.0}, {"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.5}])
def test_impossible_settings_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="expected"):
        Choice(**settings)  # type: ignore[arg-type]
