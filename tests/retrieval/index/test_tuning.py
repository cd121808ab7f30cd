from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retro.retrieval.index import Entries, make_index, open_index
from retro.retrieval.index.exact import DenseIndex
from retro.retrieval.index.tuning import tune

KEYS = np.random.default_rng(0).normal(size=(3000, 24)).astype(np.float16)


def built(kind: str, keys: np.ndarray = KEYS) -> DenseIndex:
    index: Any = make_index(kind, keys.shape[1], len(keys))
    index.add(Entries(keys))
    return index


@pytest.mark.parametrize("kind", ["HNSW4", "IVF32,Flat", "IVF32,PQ12x4"])
def test_the_least_effort_that_reaches_the_target(kind: str) -> None:
    index = built(kind)
    easy, hard = tune(index, target=0.6, num_queries=200), tune(index, target=0.95, num_queries=200)
    assert easy.reached
    assert hard.reached
    assert hard.recall_at_10 >= 0.96
    assert index.effort == hard.effort > easy.effort
    assert min(hard.queries_per_second, hard.latency_ms) > 0
    rows = np.arange(200, 400)
    others = [
        np.argsort(((KEYS[row].astype(np.float32) - KEYS.astype(np.float32)) ** 2).sum(1))[1:11]
        for row in rows
    ]
    found = index.search(Entries(KEYS[rows]), 11)[1]
    assert np.mean([np.isin(other, row).mean() for other, row in zip(others, found, strict=True)]) > 0.93


def test_a_target_out_of_reach_is_told() -> None:
    index = built("PQ1x4")
    report = tune(index, target=0.999, num_queries=100)
    assert not report.reached
    assert report.recall_at_10 < 0.999
    assert report.effort == index.effort == index.efforts()[-1]


def test_equal_keys_count_whichever_is_found() -> None:
    assert tune(built("HNSW24", np.repeat(KEYS[:50], 20, axis=0)), num_queries=50).recall_at_10 > 0.9


@pytest.mark.parametrize("num_keys", [0, 1, 2, 3000])
def test_exact_search_needs_no_effort(num_keys: int) -> None:
    report = tune(built("exact", KEYS[:num_keys]), num_queries=50)
    assert (report.recall_at_10, report.reached, report.num_queries) == (1.0, True, min(50, num_keys))


def test_the_report_is_kept_with_the_index(tmp_path: Path) -> None:
    index = built("HNSW8")
    index.remove(np.arange(10))
    tune(index, num_queries=50)
    index.save(tmp_path)
    reopened: Any = open_index(tmp_path, KEYS)
    assert reopened.report == index.report
    assert reopened.effort == index.effort
