"""The cache of `generate`: whatever is done to it, the next logits are those of the tokens it holds."""

from pathlib import Path

import pytest
import torch

import retro
from retro.errors import ConfigError
from retro.generation.request import Retrieval
from retro.hugging_face import RetroCache
from retro.retrieval.retriever import Retriever
from tests.hugging_face.parts import M


def filled(fitted: Path, retriever: Retriever, texts: list[str], lengths: tuple[int, ...]) -> RetroCache:
    model = retro.load(fitted).double()
    cache = RetroCache(model, (retriever, Retrieval()))
    rows = [retriever.tokenizer.encode(text)[:n] for text, n in zip(texts, lengths, strict=False)]
    cache.fill(rows, max(lengths))
    cache.read()
    return cache


def check(cache: RetroCache) -> None:
    """Two more tokens give what a new cache gives that has read everything at once."""
    for token in (7, 9):
        logits = cache.feed([token] * len(cache.rows))
        fresh = RetroCache(cache.model, cache.search)
        fresh.fill(cache.rows, cache.slots)
        torch.testing.assert_close(logits.log_softmax(-1), fresh.read().log_softmax(-1), rtol=1e-8, atol=1e-8)
    assert cache.get_seq_length() == cache.slots


@torch.no_grad()
def test_rows_are_reordered_repeated_and_dropped(
    fitted: Path, retriever: Retriever, texts: list[str]
) -> None:
    cache = filled(fitted, retriever, texts, (6, 15, 24))
    cache.reorder_cache(torch.tensor([2, 2, 0]))
    assert [len(row) for row in cache.rows] == [24, 24, 6]
    check(cache)
    cache.batch_repeat_interleave(2)
    assert cache.batch_size == 6
    check(cache)
    cache.batch_select_indices(torch.tensor([5, 0]))
    assert [len(row) for row in cache.rows] == [10, 28]
    check(cache)


@pytest.mark.parametrize("removed", [1, 2, 8, 13])
@torch.no_grad()
def test_what_is_cropped_is_forgotten(
    fitted: Path, retriever: Retriever, texts: list[str], removed: int
) -> None:
    cache = filled(fitted, retriever, texts, (16, 25))
    cache.crop(-removed)
    assert [len(row) for row in cache.rows] == [16 - removed, 25 - removed]
    assert [len(found) for found in cache.neighbours] == [(16 - removed) // M, (25 - removed) // M]
    check(cache)
    # As older versions say it: the length that remains.
    cache.crop(cache.slots - 1)
    assert [len(row) for row in cache.rows] == [17 - removed, 26 - removed]
    check(cache)
    cache.crop(0)
    with pytest.raises(ConfigError, match="40 tokens were to be cropped"):
        cache.crop(-40)


@torch.no_grad()
def test_what_is_reset_begins_anew(fitted: Path, retriever: Retriever, texts: list[str]) -> None:
    cache = filled(fitted, retriever, texts, (16, 25))
    cache.reset()
    assert (cache.get_seq_length(), cache.batch_size, cache.rows) == (0, -1, [])
    cache.fill([[1, 2, 3]], 3)
    check(cache)


@torch.no_grad()
def test_neighbours_are_searched_once_a_chunk(fitted: Path, retriever: Retriever, texts: list[str]) -> None:
    cache = filled(fitted, retriever, texts, (15, 16))
    before = cache.neighbours[1][1]
    assert [len(found) for found in cache.neighbours] == [1, 2]
    cache.feed([7, 7])
    assert [len(found) for found in cache.neighbours] == [2, 2]
    assert cache.neighbours[1][1] is before
