"""A gate over kNN-LM: constant it is kNN-LM, and it learns where the memory is right."""

import numpy as np
import pytest
import torch

from retro.comparators.mixtures import Mixture, ReadWindow
from retro.comparators.spalm import Gate, learn_gate
from retro.comparators.token_states import mix

WIDTH = 6


def windows(count: int, told: bool, seed: int = 0) -> tuple[list[ReadWindow], dict[int, np.ndarray]]:
    """Windows, and log2 p of their tokens by a memory that knows a third of them.

    If `told`, the third number of a state says which.
    """
    rng = np.random.default_rng(seed)
    reads, others = [], {}
    for _ in range(count):
        states = rng.normal(size=(200, WIDTH))
        knows = rng.random(200) < 1 / 3
        if told:
            states[:, 2] = np.where(knows, 2.0, -2.0) + rng.normal(size=200)
        keys = torch.from_numpy(states).float()
        reads.append(ReadWindow(keys, torch.zeros(200, dtype=torch.long), rng.uniform(2, 8, size=200)))
        others[id(reads[-1])] = np.where(knows, -0.5, -np.inf)[:, None]
    return reads, others


@pytest.mark.parametrize("weight", [0.0, 0.3, 0.98])
def test_a_constant_gate_is_knn_lm(weight: float) -> None:
    (read,), others = windows(1, told=True)
    other = others[id(read)]
    expected = Mixture(0, weight).bits(read, lambda _: other)
    np.testing.assert_allclose(
        Gate.constant(weight, WIDTH).bits(read, other[:, 0]), expected, rtol=1e-12, atol=1e-12
    )


def test_it_opens_where_states_say_that_the_memory_knows() -> None:
    reads, others = windows(12, told=True)
    gate = learn_gate(reads, lambda read: others[id(read)], Mixture(0, 0.3))
    new, found = windows(4, told=True, seed=1)
    bits = sum(gate.bits(read, found[id(read)][:, 0]).sum() for read in new)
    constant = min(
        sum(mix(read.bits, found[id(read)][:, 0], weight).sum() for read in new)
        for weight in np.arange(0.0, 1.0, 0.02)
    )
    assert bits < 0.9 * constant
    opened = gate.of(new[0].keys)
    knows = np.isfinite(found[id(new[0])][:, 0])
    assert opened[knows].mean() > 0.8
    assert opened[~knows].mean() < 0.2


def test_where_states_say_nothing_one_weight_is_as_good() -> None:
    reads, others = windows(8, told=False)
    best = Mixture.chosen(reads, lambda read: others[id(read)])
    gate = learn_gate(reads, lambda read: others[id(read)], best)
    np.testing.assert_allclose(gate.of(reads[0].keys), best.weight, atol=0.03)
    alone = learn_gate(reads[:1], lambda read: others[id(read)], Mixture(0, 0.2))
    np.testing.assert_allclose(alone.of(reads[0].keys), 0.2)
