"""Compressed keys: trained on a sample, tuned on others, the same however they are added."""

from functools import cache
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest

from retro.errors import ConfigError
from retro.retrieval.index import Entries, exact, make_index, open_index, quantiser, tuning
from retro.retrieval.index.compressed import CompressedIndex, compressed_kind
from retro.retrieval.index.exact import nearest
from retro.retrieval.index.factory import FactoryIndex
from retro.retrieval.index.keys import Allowed, KeyParts
from retro.retrieval.index.tuning import tune

WIDTH = 32


def clustered(num_keys: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(num_keys // 20 + 1, WIDTH))
    keys = centres[rng.integers(0, len(centres), num_keys)] + 0.4 * rng.normal(size=(num_keys, WIDTH))
    return keys.astype(np.float16)


KEYS = clustered(4000)
QUERIES = Entries(KEYS[5:3000:60])
KIND = compressed_kind(WIDTH, len(KEYS))


def built(keys: np.ndarray = KEYS, kind: str = KIND) -> CompressedIndex:
    index: Any = make_index(kind, keys.shape[1], len(keys))
    assert isinstance(index, CompressedIndex)
    index.add(Entries(keys))
    return index


@cache
def over_all() -> CompressedIndex:
    """For tests that do not change it."""
    return built()


def test_it_is_tuned_to_the_target_with_keys_it_was_not_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[np.ndarray] = []
    measure = tuning.measure_recall
    monkeypatch.setattr(
        tuning,
        "measure_recall",
        lambda index, queries, rows, limits: (asked.append(rows), measure(index, queries, rows, limits))[1],
    )
    index = built(clustered(20_000))
    report = tune(index, target=0.9, num_queries=100)
    assert report.reached
    assert report.recall_at_10 >= 0.9
    # What is reported was measured with others than those that chose, and neither were trained on.
    assert not np.isin(asked[0], asked[-1]).any()
    trained = quantiser._sample(20_000, 1 << 20)
    assert len(trained) > 19_000
    assert not np.isin(np.concatenate(asked), trained).any()
    easy = tune(index, target=0.3, num_queries=100)
    assert index._cost({"effort": easy.effort, "candidates": index.candidates}) < index._cost(
        {"effort": report.effort, "candidates": 20}
    )


def test_no_setting_is_tried_that_cannot_be_good_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the lists that are visited hold too few, ranking more of them is of no use."""
    index = built()
    tried: list[tuple[int, int]] = []
    monkeypatch.setattr(
        tuning,
        "measure_recall",
        lambda index, *_: (tried.append((index.effort, index.candidates)), 0.0)[1],
    )
    tuning.choose(index, QUERIES, np.arange(len(QUERIES)), 1.0)
    assert len(tried) <= 2 * len(index.efforts()) + 1
    assert (index.effort, index.candidates) == (index.num_lists, 800)


def test_encoded_anywhere_and_added_in_order_it_is_the_same(tmp_path: Path) -> None:
    whole = over_all()
    whole.save(tmp_path / "whole")
    parts = [KEYS[:1000], KEYS[1000:1001], KEYS[1001:]]
    index = whole.emptied()
    for codes in [whole.encode(part) for part in parts]:
        index.add_codes(codes)
    index.attach(KeyParts(parts))
    index.effort, index.candidates = whole.effort, whole.candidates
    index.save(tmp_path / "parts")
    for name in ("index.faiss", "index.json"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "parts" / name).read_bytes()
    assert np.array_equal(whole.codes(), whole.encode(KEYS))
    for mine, theirs in zip(whole.search(QUERIES, 10), index.search(QUERIES, 10), strict=True):
        assert np.array_equal(mine, theirs)


def test_adding_as_faiss_does_gives_the_same_index(tmp_path: Path) -> None:
    index = over_all()
    plain = index.emptied()
    plain._index.add(KEYS.astype(np.float32))
    faiss.write_index(plain._index, str(tmp_path / "plain"))
    faiss.write_index(index._index, str(tmp_path / "ours"))
    assert (tmp_path / "plain").read_bytes() == (tmp_path / "ours").read_bytes()


def test_training_does_not_depend_on_the_number_of_threads() -> None:
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(3)
    try:
        assert np.array_equal(built().codes(), over_all().codes())
        assert faiss.omp_get_max_threads() == 3
    finally:
        faiss.omp_set_num_threads(threads)


@pytest.mark.parametrize("num_keys", [1, 100, 255])
def test_too_few_keys_to_train_on_are_searched_exactly(num_keys: int, tmp_path: Path) -> None:
    index = built(KEYS[:num_keys])
    assert not index.efforts()
    index.save(tmp_path)
    for each in (index, open_index(tmp_path, KEYS[:num_keys])):
        assert np.array_equal(
            each.search(QUERIES, num_keys)[1],
            nearest(KEYS[:num_keys], QUERIES.keys.astype(np.float32), num_keys, None)[1],
        )


def test_all_keys_are_alike() -> None:
    keys = np.repeat(KEYS[:3], 400, axis=0)
    distances, rows = built(keys).search(Entries(KEYS[:1]), 20)
    assert (distances == 0).all()
    assert len(set(rows[0].tolist())) == 20


@pytest.mark.parametrize("k", [100, 1500, 4000])
def test_more_neighbours_than_a_few_lists_hold(k: int) -> None:
    """No query is left with fewer than there are."""
    index = built()
    index.effort, index.candidates = 1, 20
    _, rows = index.search(Entries(QUERIES.keys[:3]), k)
    assert (rows >= 0).all()
    assert all(len(set(row)) == k for row in rows.tolist())


def test_more_lists_are_visited_before_all_keys_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    index = over_all()
    monkeypatch.setattr(index, "_lists_for", lambda k, share: 1)
    monkeypatch.setattr(exact, "nearest", None)
    assert max(np.bincount(index.codes()[:, 0])) < 300
    assert (index.search(QUERIES, 300)[1] >= 0).all()


def test_keys_in_parts_are_searched_as_those_in_one_piece() -> None:
    parts = KeyParts([KEYS[:7], KEYS[7:7], KEYS[7:2000], KEYS[2000:]])
    assert np.array_equal(parts[5:2003], KEYS[5:2003])
    rows = np.array([[0, 6, 7], [1999, 2000, 3999]])
    assert np.array_equal(parts[rows], KEYS[rows])
    queries = QUERIES.keys.astype(np.float32)
    mask = np.random.default_rng(0).random(len(KEYS)) < 0.3
    for allowed in (None, Allowed(mask)):
        for mine, theirs in zip(
            nearest(parts, queries, 40, allowed), nearest(KEYS, queries, 40, allowed), strict=True
        ):
            assert np.array_equal(mine, theirs)


def test_an_index_from_before_candidates_were_tuned_is_searched_as_then(tmp_path: Path) -> None:
    old = FactoryIndex(WIDTH, "OPQ16_32,IVF16_HNSW32,PQ16")
    assert quantiser.train(old._index, KEYS[:600])  # FAISS's own training takes a minute
    old.add(Entries(KEYS[:600]))
    old.save(tmp_path)
    reopened = open_index(tmp_path, KEYS[:600])
    assert type(reopened) is FactoryIndex
    for mine, theirs in zip(old.search(QUERIES, 10), reopened.search(QUERIES, 10), strict=True):
        assert np.array_equal(mine, theirs)


def test_lists_stay_as_long_however_many_keys_there_are() -> None:
    for num_keys in (10**6, 10**7, 10**9):
        index = compressed_kind(256, num_keys)
        num_lists = int(index.split("IVF")[1].split("_")[0])
        assert 64 <= num_keys / num_lists <= 256
    assert compressed_kind(384, 5_000_000) == "OPQ32_128,IVF32768_HNSW32,PQ32"
    with pytest.raises(ConfigError, match="no index of keys of 16 numbers"):
        make_index("OPQ32_128,IVF64_HNSW32,PQ31", 16, 10)
