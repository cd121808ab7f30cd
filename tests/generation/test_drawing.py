import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from retro.generation.drawing import candidates, draw, penalise, penalise_counted
from retro.generation.request import Choice

LOGITS = st.lists(st.floats(-5, 5), min_size=2, max_size=12).map(
    lambda values: torch.tensor(values, dtype=torch.float64)
)


def probabilities(logits: torch.Tensor, choice: Choice) -> torch.Tensor:
    """The whole distribution that is drawn from."""
    kept, tokens = candidates(logits, choice)
    return torch.zeros_like(logits).scatter(-1, tokens, kept / kept.sum(-1, keepdim=True))


@settings(deadline=None)
@given(LOGITS, st.floats(0.05, 1.0))
def test_top_p_keeps_the_fewest_most_probable_tokens_that_hold_p(logits: torch.Tensor, p: float) -> None:
    """Nucleus sampling keeps the head; an inverted one would keep the tail."""
    plain = logits.softmax(-1)
    found = probabilities(logits, Choice(temperature=1.0, top_p=p))
    kept = found > 0
    assert plain[kept].min() >= plain[~kept].max() if (~kept).any() else True
    mass = plain[kept].sum()
    assert mass >= p - 1e-9
    assert mass - plain[kept].min() < p + 1e-9
    torch.testing.assert_close(found[kept], plain[kept] / mass)


@settings(deadline=None)
@given(LOGITS, st.integers(1, 5))
def test_top_k_keeps_k(logits: torch.Tensor, k: int) -> None:
    found = probabilities(logits, Choice(temperature=1.0, top_k=k))
    assert (found > 0).sum() == min(k, len(logits))
    assert found.sum() == pytest.approx(1.0)
    plain = logits.softmax(-1)
    assert found[plain == plain.max()].max() == found.max()


@settings(deadline=None)
@given(LOGITS, st.integers(1, 5), st.floats(0.05, 1.0))
def test_top_p_is_of_the_mass_that_top_k_leaves(logits: torch.Tensor, k: int, p: float) -> None:
    both = probabilities(logits, Choice(temperature=1.0, top_k=k, top_p=p))
    first = probabilities(logits, Choice(temperature=1.0, top_k=k))
    expected = probabilities(first.log(), Choice(temperature=1.0, top_p=p))
    torch.testing.assert_close(both.sort().values, expected.sort().values)  # among equals either may be kept


@settings(deadline=None)
@given(LOGITS, st.floats(0, 1, exclude_max=True), st.integers(0, 3), st.floats(0.05, 0.99))
def test_a_uniform_number_picks_its_place_in_the_cumulated_distribution(
    logits: torch.Tensor, u: float, k: int, p: float
) -> None:
    """Most probable first, as soon as anything is cut off."""
    choice = Choice(temperature=0.7, top_k=k, top_p=p)
    token = int(draw(logits, torch.tensor(u, dtype=torch.float64), choice))
    ordered, tokens = probabilities(logits, choice).sort(descending=True)
    place = tokens.tolist().index(token)
    assert ordered[place] > 0
    # Tokens of equal probability may stand in another order.
    assert ordered[ordered > ordered[place]].sum() <= u + 1e-9
    assert u <= ordered[ordered >= ordered[place]].sum() + 1e-9


def test_draws_follow_the_distribution() -> None:
    logits = torch.tensor([0.0, 1.0, -1.0, 3.0])
    uniforms = (torch.arange(10_000) + 0.5) / 10_000
    drawn = draw(logits.expand(10_000, 4), uniforms, Choice(temperature=1.0))
    torch.testing.assert_close(drawn.bincount(minlength=4) / 10_000, logits.softmax(-1), rtol=0, atol=2e-4)


def test_a_forbidden_token_is_never_drawn() -> None:
    logits = torch.tensor([-torch.inf, 0.0, -torch.inf, 0.0])
    choice = Choice(temperature=1.0)
    for u, expected in ((0.0, 1), (0.5, 3), (1 - 2**-53, 3)):
        assert int(draw(logits, torch.tensor(u, dtype=torch.float64), choice)) == expected


def test_rows_of_a_batch_are_drawn_alone() -> None:
    logits, uniforms = torch.randn(5, 9, generator=torch.Generator().manual_seed(0)), torch.rand(5)
    choice = Choice(temperature=1.3, top_p=0.8)
    assert draw(logits, uniforms, choice).tolist() == [
        int(draw(*row, choice)) for row in zip(logits, uniforms, strict=True)
    ]


def test_temperature() -> None:
    logits = torch.tensor([1.0, 2.0, 0.0])
    assert probabilities(logits, Choice(temperature=0.0)).tolist() == [0.0, 1.0, 0.0]
    torch.testing.assert_close(probabilities(logits, Choice(temperature=2.0)), (logits / 2).softmax(-1))
    assert probabilities(1e9 * logits, Choice(temperature=1e-30)).tolist() == [0.0, 1.0, 0.0]


@settings(deadline=None)
@given(LOGITS, st.floats(1.01, 3.0))
def test_a_repetition_penalty_lowers_what_was_seen_and_nothing_else(
    logits: torch.Tensor, penalty: float
) -> None:
    seen = torch.arange(len(logits)) % 2 == 0
    found = penalise(logits, seen, penalty)
    assert torch.equal(found[~seen], logits[~seen])
    assert (found[seen] <= logits[seen]).all()
    positive = seen & (logits > 0)
    torch.testing.assert_close(found[positive], logits[positive] / penalty)


def test_counted_tokens_are_penalised_as_openai_defines_it() -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])
    counts = torch.tensor([[0.0, 1.0, 4.0], [2.0, 0.0, 0.0]])
    frequency, presence = torch.tensor([[0.5], [0.0]]), torch.tensor([[1.0], [2.0]])
    expected = torch.tensor([[1.0, 2.0 - 0.5 - 1.0, 3.0 - 4 * 0.5 - 1.0], [1.0 - 2.0, 2.0, 3.0]])
    torch.testing.assert_close(penalise_counted(logits, counts, frequency, presence), expected)
