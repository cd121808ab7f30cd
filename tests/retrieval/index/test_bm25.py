"""BM25 against its formula, and the hybrid against both of its parts."""

from pathlib import Path

import numpy as np
import pytest

from retro.errors import ArtifactError, ConfigError
from retro.retrieval.index import Entries, Index, make_index, open_index
from retro.retrieval.index.hybrid import HybridIndex

pytest.importorskip("bm25s")

RNG = np.random.default_rng(0)
TOKENS = [(RNG.zipf(1.5, RNG.integers(5, 30)) % 5000 + 70_000).astype(np.uint32) for _ in range(300)]
KEYS = RNG.normal(size=(300, 8)).astype(np.float16)
QUERIES = Entries(KEYS[:20], TOKENS[:20])


def built(kind: str) -> Index:
    index = make_index(kind, 8, len(TOKENS))
    index.add(Entries(KEYS, TOKENS))
    return index


def formula(query: np.ndarray) -> np.ndarray:
    """Lucene's BM25, term by term."""
    mean = np.mean([len(tokens) for tokens in TOKENS])
    scores = np.zeros(len(TOKENS))
    for token in query:
        counts = np.array([np.count_nonzero(tokens == token) for tokens in TOKENS])
        idf = np.log(1 + (len(TOKENS) - np.count_nonzero(counts) + 0.5) / (np.count_nonzero(counts) + 0.5))
        lengths = np.array([len(tokens) for tokens in TOKENS])
        scores += idf * counts / (counts + 1.5 * (0.25 + 0.75 * lengths / mean))
    return scores


def test_against_the_formula() -> None:
    distances, rows = built("bm25").search(QUERIES, 10)
    for number, query in enumerate(QUERIES.tokens):
        scores = formula(query)
        assert np.allclose(-distances[number], np.sort(scores)[::-1][:10], rtol=1e-4)
        assert np.allclose(scores[rows[number]], -distances[number], rtol=1e-4)


def test_masks_and_removal(tmp_path: Path) -> None:
    index = built("bm25")
    index.remove(np.arange(20))
    allowed = np.arange(300) % 2 == 0
    index.save(tmp_path)
    for each in (index, open_index(tmp_path, KEYS)):
        rows = each.search(QUERIES, 5, allowed)[1]
        assert np.all(rows[rows >= 0] % 2 == 0)
        assert rows[rows >= 0].min() >= 20


def test_no_token_in_common_is_no_neighbour() -> None:
    index = built("bm25")
    unseen, empty = np.array([3, 4], dtype=np.uint32), np.zeros(0, dtype=np.uint32)
    distances, rows = index.search(Entries(KEYS[:2], [unseen, empty]), 5)
    assert np.all(rows == -1)
    assert np.all(np.isinf(distances))


def test_equal_scores_come_by_row_and_fewer_than_k_are_padded() -> None:
    index = make_index("bm25", 8, 4)
    index.add(
        Entries(KEYS[:4], [np.array([1, 2]), np.array([5]), np.array([1, 2]), np.zeros(0, dtype=np.int64)])
    )
    for k, expected in ((1, [0]), (2, [0, 2]), (6, [0, 2, -1, -1, -1, -1])):
        assert index.search(Entries(KEYS[:1], [np.array([2])]), k)[1].tolist() == [expected]


@pytest.mark.parametrize("kind", ["bm25", "hybrid"])
@pytest.mark.parametrize("tokens", [[], [np.zeros(0, dtype=np.int64)], [np.array([70_000])]])
def test_nothing_and_one_chunk(kind: str, tokens: list[np.ndarray], tmp_path: Path) -> None:
    index = make_index(kind, 8, len(tokens))
    index.add(Entries(KEYS[: len(tokens)], tokens))
    index.save(tmp_path)
    for each in (index, open_index(tmp_path, KEYS[: len(tokens)])):
        assert each.search(QUERIES, 3)[1].shape == (20, 3)
        assert len(each) == len(tokens)


@pytest.mark.parametrize("kind", ["bm25", "hybrid"])
def test_saved_and_opened(kind: str, tmp_path: Path) -> None:
    index = built(kind)
    index.save(tmp_path)
    reopened = open_index(tmp_path, KEYS)
    for mine, theirs in zip(index.search(QUERIES, 10), reopened.search(QUERIES, 10), strict=True):
        assert np.array_equal(mine, theirs)
    with pytest.raises(ConfigError, match="takes no more chunks"):
        reopened.add(Entries(KEYS, TOKENS))


@pytest.mark.parametrize(
    "name",
    [
        "data.csc.index.npy",
        "indices.csc.index.npy",
        "indptr.csc.index.npy",
        "vocabulary.npy",
        "params.index.json",
    ],
)
def test_a_truncated_file_is_one_clear_line(name: str, tmp_path: Path) -> None:
    built("bm25").save(tmp_path)
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(ArtifactError, match="is not a readable index"):
        open_index(tmp_path, KEYS)


def test_the_hybrid_orders_dense_candidates_by_score() -> None:
    index = built("hybrid")
    assert isinstance(index, HybridIndex)
    candidates = index.dense.search(QUERIES, 100)[1]
    distances, rows = index.search(QUERIES, 10)
    for number, query in enumerate(QUERIES.tokens):
        assert np.isin(rows[number], candidates[number]).all()
        best = np.sort(formula(query)[candidates[number]])[::-1][:10]
        assert np.allclose(-distances[number], best, rtol=1e-4)


def test_the_hybrid_masks_and_removes() -> None:
    index = built("hybrid")
    index.remove(np.array([0, 1]))
    rows = index.search(QUERIES, 10, np.arange(300) < 6)[1]
    assert np.array_equal(np.unique(rows), [-1, 2, 3, 4, 5])
