import copy
import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retro.corpus.mixture import BLOCK, PERIOD, Mixture, permuted
from retro.errors import ConfigError

MASSIVE_TEXT = {"web": 0.55, "books": 0.25, "news": 0.10, "wikipedia": 0.05, "code": 0.05}
"""The weights of the paper's Table 1."""
DRAWS = [
    ("web", 103, 0),
    ("web", 364, 0),
    ("web", 144, 0),
    ("web", 898, 0),
    ("code", 0, 10),
    ("web", 325, 550_000_000),
]
WEIGHTS = st.lists(st.one_of(st.just(0.0), st.floats(1e-5, 1.0)), min_size=1, max_size=6).filter(any)


def mixture(weights: list[float], size: int = 17, seed: int = 0) -> Mixture:
    names = "abcdef"[: len(weights)]
    return Mixture(dict(zip(names, weights, strict=True)), dict.fromkeys(names, size), seed)


def test_massive_text() -> None:
    assert math.fsum(MASSIVE_TEXT.values()) == pytest.approx(1.0)
    made = Mixture(MASSIVE_TEXT, dict.fromkeys(MASSIVE_TEXT, 10), 0)
    assert made.observed(0, BLOCK) == pytest.approx(MASSIVE_TEXT)
    assert made.observed(7 * BLOCK, 8 * BLOCK) == pytest.approx(MASSIVE_TEXT)


def test_these_draws_stay_as_they_are() -> None:
    """Runs of old are resumed by new versions: a change here breaks them."""
    made = Mixture(MASSIVE_TEXT, {"web": 1000, "books": 500, "news": 100, "wikipedia": 50, "code": 5}, 42)
    assert [tuple(made[step]) for step in (0, 1, 2, 999, 1000, 10**12)] == DRAWS


@given(WEIGHTS, st.integers(0, 2**70), st.integers(0, 10**15))
@settings(max_examples=25, deadline=None)
def test_a_step_depends_on_the_seed_and_itself_alone(weights: list[float], seed: int, start: int) -> None:
    steps = range(start, start + 40)
    walked = mixture(weights, seed=seed)
    in_order = [walked[step] for step in steps]
    fresh = mixture(weights, seed=seed)
    assert [fresh[step] for step in reversed(steps)] == in_order[::-1]
    assert [mixture(weights, seed=seed)[step] for step in steps[::20]] == in_order[::20]
    assert [copy.deepcopy(walked)[step] for step in steps[::20]] == in_order[::20]


def test_the_order_of_the_mappings_means_nothing() -> None:
    backwards = dict(reversed(MASSIVE_TEXT.items()))
    one, other = (Mixture(weights, dict.fromkeys(weights, 9), 3) for weights in (MASSIVE_TEXT, backwards))
    assert [one[step] for step in range(50)] == [other[step] for step in range(50)]


def test_other_seeds_and_blocks_have_other_orders() -> None:
    made, other = mixture([0.5, 0.5], 10**6), mixture([0.5, 0.5], 10**6, seed=1)
    first = [made[step].source for step in range(BLOCK)]
    assert first != [made[step].source for step in range(BLOCK, 2 * BLOCK)]
    assert first != [other[step].source for step in range(BLOCK)]
    assert 400 < sum(a != b for a, b in pairwise(first)) < 600  # shuffled, not in runs or in turns


@given(WEIGHTS, st.integers(0, 10**6), st.integers(1, 5000))
@settings(max_examples=50, deadline=None)
def test_frequencies_stay_near_the_weights(weights: list[float], block: int, blocks: int) -> None:
    made = mixture(weights)
    total = math.fsum(weights)
    for length, bound in ((1, 1.0), (blocks, 8.0 + blocks / PERIOD)):
        observed = made.observed(block * BLOCK, (block + length) * BLOCK)
        assert math.fsum(observed.values()) == pytest.approx(1.0)
        for source, weight in zip(made.sources, weights, strict=True):
            assert abs(observed[source] - weight / total) * length * BLOCK <= bound + 1e-6
            assert weight > 0.0 or observed[source] == 0.0


def test_rare_sources_come_at_all() -> None:
    made = mixture([0.9998, 0.0002])
    assert made.observed(0, 100 * BLOCK)["b"] == pytest.approx(0.0002, rel=0.2)


@given(st.integers(0, 5 * BLOCK), st.integers(1, 3 * BLOCK))
@settings(max_examples=15, deadline=None)
def test_observed_counts_what_is_drawn(start: int, length: int) -> None:
    made = mixture([0.2, 0.0, 0.7, 0.1])
    counts = Counter(made[step].source for step in range(start, start + length))
    assert made.observed(start, start + length) == {
        source: counts[source] / length for source in made.sources
    }


def test_each_index_comes_once_an_epoch() -> None:
    made = Mixture({"a": 0.7, "b": 0.3, "c": 0.0}, {"a": 333, "b": 64, "c": 5}, 5)
    epochs: dict[tuple[str, int], list[int]] = {}
    for step in range(4 * BLOCK):
        source, document, epoch = made[step]
        epochs.setdefault((source, epoch), []).append(document)
    assert {source for source, _ in epochs} == {"a", "b"}
    for (source, epoch), indices in epochs.items():
        assert len(set(indices)) == len(indices)
        if (source, epoch + 1) in epochs:
            assert sorted(indices) == list(range(made.sizes[source]))
    assert epochs["a", 0] != epochs["a", 1]
    assert epochs["a", 0] != sorted(epochs["a", 0])


@given(st.integers(1, 600), st.tuples(*[st.integers(0, 2**64 - 1)] * 6))
@settings(max_examples=50, deadline=None)
def test_permuted_is_a_permutation(size: int, keys: tuple[int, ...]) -> None:
    assert sorted(permuted(position, size, keys) for position in range(size)) == list(range(size))


def test_permutations_are_even() -> None:
    """Over many keys the first of 20 positions holds each index equally often, by a chi-square test."""
    rng = np.random.default_rng(0)
    keys = rng.integers(0, 2**63, (4000, 6)).tolist()
    counts = np.bincount([permuted(0, 20, tuple(row)) for row in keys], minlength=20)
    assert ((counts - 200) ** 2 / 200).sum() < 44  # exceeded once in a thousand


@pytest.mark.parametrize(
    ("weights", "sizes", "message"),
    [
        ({"a": 1.0, "x": 1.0}, {"a": 5}, "'x', which is no source"),
        ({"a": 1.0}, {"a": 5, "b": 5}, "no weight for source 'b'"),
        ({"a": 1.0, "b": -0.1}, {"a": 5, "b": 5}, "weight -0.1 for 'b'"),
        ({"a": math.nan}, {"a": 5}, "weight nan"),
        ({"a": math.inf}, {"a": 5}, "weight inf"),
        ({"a": 0.0}, {"a": 5}, "all 0"),
        ({}, {}, "all 0"),
        ({"a": 1.0}, {"a": 0}, "has 0 documents"),
    ],
)
def test_impossible_mixtures_are_refused(
    weights: dict[str, float], sizes: dict[str, int], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Mixture(weights, sizes, 0)


def test_impossible_steps_are_refused() -> None:
    made = mixture([1.0])
    with pytest.raises(IndexError):
        made[-1]
    for start, stop in ((-1, 5), (5, 5), (6, 5)):
        with pytest.raises(ConfigError, match="start < stop"):
            made.observed(start, stop)
