"""Every dense index against brute force, and against the others."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from retro.errors import ArtifactError, ConfigError
from retro.retrieval.index import Entries, Index, exact, kind_for_size, make_index, open_index

APPROXIMATE = [
    "HNSW24",
    "HNSW8",
    "IVF16,Flat",
    "IVF16,PQ8x4",
    "OPQ8_16,IVF16_HNSW8,PQ8x4",
    "OPQ8_16,IVF16_HNSW8,PQ8",
    "PQ8x4",
    "scann",
]
KINDS = ["exact", *APPROXIMATE]
WIDTH = 16


def clustered(num_keys: int, seed: int = 0) -> np.ndarray:
    """Multiples of an eighth: their distances are exact in float32, so equal means equal."""
    rng = np.random.default_rng(seed)
    keys = rng.normal(size=(20, WIDTH))[rng.integers(0, 20, num_keys)] + 0.3 * rng.normal(
        size=(num_keys, WIDTH)
    )
    return (np.round(8 * keys) / 8).astype(np.float16)


def built(kind: str, keys: np.ndarray) -> Index:
    if kind == "scann":
        pytest.importorskip("scann")
    index = make_index(kind, keys.shape[1], len(keys))
    index.add(Entries(keys))
    return index


def brute_force(keys: np.ndarray, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    distances = ((queries.astype(np.float64)[:, None] - keys.astype(np.float64)) ** 2).sum(-1)
    rows = np.argsort(distances, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(distances, rows, axis=1), rows


KEYS, QUERIES = clustered(2000), clustered(50, seed=1)


@cache
def over_all(kind: str) -> Index:
    """An index of all keys, for tests that do not change it: training takes its time."""
    return built(kind, KEYS)


@pytest.mark.parametrize("num_queries", [1, 50])
@pytest.mark.parametrize("block", [128, 100_000])
def test_exact_is_brute_force(num_queries: int, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "BLOCK", block)
    distances, rows = over_all("exact").search(Entries(QUERIES[:num_queries]), 10)
    expected, expected_rows = brute_force(KEYS, QUERIES[:num_queries], 10)
    assert rows.dtype == np.int64
    assert distances.dtype == np.float32
    assert np.array_equal(rows, expected_rows)
    assert np.allclose(distances, expected, rtol=1e-5)


@pytest.mark.parametrize("num_queries", [1, 50])
def test_exact_among_keys_far_from_the_origin(num_queries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Norms of thousands beside distances of a few: matrix products alone would be wrong here."""
    monkeypatch.setattr(exact, "SLACK", 1)
    keys, queries = KEYS + np.float16(1000), (QUERIES + np.float16(1000))[:num_queries]
    _, rows = built("exact", keys).search(Entries(queries), 10)
    assert np.array_equal(rows, brute_force(keys, queries, 10)[1])


@pytest.mark.parametrize("kind", APPROXIMATE)
def test_approximate_indexes_find_what_exact_search_finds(kind: str) -> None:
    distances, rows = over_all(kind).search(Entries(QUERIES), 10)
    expected, expected_rows = over_all("exact").search(Entries(QUERIES), 10)
    found = np.array([np.isin(a, b) for a, b in zip(rows, expected_rows, strict=True)])
    assert found.mean() > 0.9
    same = rows == expected_rows
    assert np.array_equal(distances[same], expected[same])
    assert np.all(np.diff(distances, axis=1) >= 0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_query_alone_finds_what_it_finds_in_a_batch(kind: str) -> None:
    index = over_all(kind)
    distances, rows = index.search(Entries(QUERIES), 10)
    for number in range(5):
        alone = index.search(Entries(QUERIES[number : number + 1]), 10)
        assert np.array_equal(alone[0][0], distances[number])
        assert np.array_equal(alone[1][0], rows[number])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_allowed", [0, 3, 100, 1500])
def test_masks(kind: str, num_allowed: int) -> None:
    allowed = np.zeros(len(KEYS), dtype=bool)
    allowed[np.random.default_rng(2).choice(len(KEYS), num_allowed, replace=False)] = True
    distances, rows = over_all(kind).search(Entries(QUERIES), 10, allowed)
    assert np.all(allowed[rows[rows >= 0]])
    assert np.all((rows >= 0).sum(axis=1) == min(10, num_allowed))
    assert np.array_equal(np.isinf(distances), rows < 0)
    expected_rows = np.flatnonzero(allowed)[brute_force(KEYS[allowed], QUERIES, 10)[1]]
    assert np.mean(rows[:, : expected_rows.shape[1]] == expected_rows) >= 0.8 if num_allowed else True


@pytest.mark.parametrize("kind", KINDS)
def test_removed_rows_stay_away_after_opening(kind: str, tmp_path: Path) -> None:
    index = built(kind, KEYS)
    gone = np.unique(index.search(Entries(QUERIES), 3)[1])
    index.remove(gone)
    index.save(tmp_path / "index")
    reopened = open_index(tmp_path / "index", KEYS)
    for each in (index, reopened):
        rows = each.search(Entries(QUERIES), 10)[1]
        assert not np.isin(rows, gone).any()
        assert np.all(rows >= 0)
    everything = np.ones(len(KEYS), dtype=bool)
    assert not np.isin(reopened.search(Entries(QUERIES), 10, everything)[1], gone).any()


@pytest.mark.parametrize("kind", KINDS)
def test_saved_and_opened_over_a_memory_map(kind: str, tmp_path: Path) -> None:
    np.save(tmp_path / "keys.npy", KEYS)
    index = over_all(kind)
    index.save(tmp_path / "index")
    keys = np.load(tmp_path / "keys.npy", mmap_mode="r")
    reopened = open_index(tmp_path / "index", keys)
    assert (reopened.kind, len(reopened)) == (kind, len(KEYS))
    for mine, theirs in zip(
        index.search(Entries(QUERIES), 10), reopened.search(Entries(QUERIES), 10), strict=True
    ):
        assert np.array_equal(mine, theirs)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_keys", [0, 1, 5, 17])
def test_few_keys(kind: str, num_keys: int, tmp_path: Path) -> None:
    """Fewer than k, fewer than centroids, one, none: all that there are, and −1."""
    index = built(kind, KEYS[:num_keys])
    index.save(tmp_path)
    for each in (index, open_index(tmp_path, KEYS[:num_keys])):
        distances, rows = each.search(Entries(QUERIES), 20)
        expected, expected_rows = brute_force(KEYS[:num_keys], QUERIES, num_keys)
        assert np.array_equal(rows[:, :num_keys], expected_rows)
        assert np.allclose(distances[:, :num_keys], expected, rtol=1e-5)
        assert np.all(rows[:, num_keys:] == -1)
        assert np.all(np.isinf(distances[:, num_keys:]))


@pytest.mark.parametrize("kind", KINDS)
def test_no_queries(kind: str) -> None:
    distances, rows = over_all(kind).search(Entries(KEYS[:0]), 10)
    assert distances.shape == rows.shape == (0, 10)


@pytest.mark.parametrize("num_queries", [1, 50])
def test_equal_keys_come_by_row(num_queries: int) -> None:
    keys = np.concatenate([KEYS[:300], np.repeat(KEYS[7:8], 400, axis=0), KEYS[300:]])
    rows = built("exact", keys).search(Entries(np.repeat(KEYS[7:8], num_queries, axis=0)), 12)[1]
    assert rows.tolist() == [[7, *range(300, 311)]] * num_queries


@pytest.mark.parametrize("kind", APPROXIMATE)
def test_equal_keys_in_approximate_indexes(kind: str) -> None:
    keys = np.repeat(KEYS[:40], 50, axis=0)
    distances, rows = built(kind, keys).search(Entries(QUERIES), 20)
    equal = np.diff(distances, axis=1) == 0
    assert equal.any()
    assert np.all(np.diff(rows, axis=1)[equal] > 0)


@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if kind != "scann"]
)  # whose training has a random start
def test_built_twice_is_the_same(kind: str) -> None:
    first, second = (index.search(Entries(QUERIES), 10) for index in (over_all(kind), built(kind, KEYS)))
    assert np.array_equal(first[0], second[0])
    assert np.array_equal(first[1], second[1])


@pytest.mark.parametrize("kind", KINDS)
def test_added_in_two_parts(kind: str) -> None:
    index = built(kind, KEYS[:1500])
    index.add(Entries(KEYS[1500:].astype(np.float32)))
    rows = index.search(Entries(QUERIES), 10)[1]
    assert len(index) == len(KEYS)
    assert np.mean(np.sort(rows, axis=1) == np.sort(brute_force(KEYS, QUERIES, 10)[1], axis=1)) > 0.8


@pytest.mark.parametrize(
    ("kind", "name"), [("HNSW24", "graph.faiss"), ("IVF16,PQ8x4", "index.faiss"), ("exact", "removed.npy")]
)
@pytest.mark.parametrize("part", [0, 0.5, 0.99])
def test_a_truncated_file_is_one_clear_line(kind: str, name: str, part: float, tmp_path: Path) -> None:
    over_all(kind).save(tmp_path)
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[: int(part * len(content))])
    with pytest.raises(ArtifactError, match="is not a readable index") as caught:
        open_index(tmp_path, KEYS)
    assert "\n" not in str(caught.value)


def test_other_keys_than_it_was_built_from(tmp_path: Path) -> None:
    built("HNSW24", KEYS).save(tmp_path)
    with pytest.raises(ArtifactError, match="indexes 2000 keys but 1999 are stored"):
        open_index(tmp_path, KEYS[:1999])
    with pytest.raises(ArtifactError):
        open_index(tmp_path / "nothing", KEYS)


def test_the_kind_follows_the_number_of_keys() -> None:
    assert [kind_for_size(384, num) for num in (10, 49_999, 50_000, 1_000_000)] == [
        "exact",
        "exact",
        "HNSW24",
        "HNSW24",
    ]
    assert kind_for_size(384, 5_000_000) == "OPQ32_128,IVF32768_HNSW32,PQ32"
    with pytest.raises(ConfigError, match="no index"):
        make_index("IVF16,Nonsense", WIDTH, 10)


def test_the_graph_does_not_hold_the_keys(tmp_path: Path) -> None:
    keys = np.random.default_rng(0).normal(size=(1000, 256)).astype(np.float16)
    built("HNSW24", keys).save(tmp_path)
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 250 * len(keys)
