"""A memory of tokens: searched in blocks as if at once, and no larger than it may be."""

import numpy as np
import pytest
import torch

from retro.comparators import mixtures
from retro.comparators.mixtures import NEAREST, Memory, ReadWindow


def window(num_tokens: int, seed: int) -> ReadWindow:
    generator = torch.Generator().manual_seed(seed)
    keys = torch.randn(num_tokens, 8, generator=generator)
    return ReadWindow(keys, torch.arange(num_tokens) + 1000 * seed, np.zeros(num_tokens))


@pytest.mark.parametrize("block", [7, NEAREST, 1000])
def test_blocks_find_what_one_comparison_finds(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory.of([window(150, seed) for seed in range(3)])
    queries = window(5, 9).keys
    expected = torch.cdist(queries, memory.keys).square().topk(NEAREST, largest=False)
    monkeypatch.setattr(mixtures, "BLOCK", block)
    distances, rows = memory.nearest(queries)
    torch.testing.assert_close(distances, expected.values, rtol=1e-4, atol=1e-4)
    assert torch.equal(rows, expected.indices)


def test_a_memory_takes_no_more_windows_than_it_may() -> None:
    windows = iter([window(10, seed) for seed in range(5)])
    memory = Memory.of(windows, most=15)
    assert len(memory.values) == 20  # whole windows: the second one is over the limit
    assert len(list(windows)) == 3  # the others were not even read


def test_a_memory_with_few_keys_finds_them_all() -> None:
    memory = Memory.of([window(3, 0)])
    _, rows = memory.nearest(window(2, 1).keys)
    assert rows.sort().values.tolist() == [[0, 1, 2], [0, 1, 2]]
