import numpy as np
import pytest

from retro.corpus.minhash import BandIndex, lsh_parameters, ngram_hashes, permutations_needed, signatures
from retro.errors import ConfigError


def found_with(similarity: float, bands: int, rows: int) -> float:
    return 1 - (1 - similarity**rows) ** bands


@pytest.mark.parametrize("threshold", [0.1, 0.3, 0.5, 0.8, 0.9, 0.99, 1.0])
@pytest.mark.parametrize("num_perm", [64, 128, 250, 256])
def test_the_most_rows_that_still_find_the_threshold_are_taken(threshold: float, num_perm: int) -> None:
    if permutations_needed(threshold, 0.999) > num_perm:
        with pytest.raises(ConfigError, match="permutations"):
            lsh_parameters(threshold, num_perm, 0.999)
        return
    bands, rows = lsh_parameters(threshold, num_perm, 0.999)
    assert bands * rows <= num_perm
    assert found_with(threshold, bands, rows) >= 0.999
    for more in range(rows + 1, num_perm + 1):
        assert found_with(threshold, num_perm // more, more) < 0.999


def test_the_usual_parameters() -> None:
    assert lsh_parameters(0.8, 128, 0.999) == (25, 5)
    assert lsh_parameters(0.8, 256, 0.999) == (36, 7)


@pytest.mark.parametrize(("threshold", "probability"), [(0.0, 0.9), (1.1, 0.9), (0.5, 0.0), (0.5, 1.0)])
def test_impossible_parameters_are_refused(threshold: float, probability: float) -> None:
    with pytest.raises(ConfigError, match="expected"):
        lsh_parameters(threshold, 128, probability)


@pytest.mark.parametrize("n", [1, 2, 4, 13])
def test_equal_ngrams_and_only_they_have_equal_hashes(n: int) -> None:
    rng = np.random.default_rng(n)
    documents = [
        rng.integers(0, 3, length).astype(np.uint32) for length in (40, 0, 2, 4, 1, 3, 60, 13, 12, 1, 0)
    ]
    hashes, offsets = ngram_hashes(documents, n)
    assert offsets.tolist() == [0, 40, 40, 42, 46, 47, 50, 110, 123, 135, 136, 136]
    pairs: set[tuple[tuple[int, ...], int]] = set()
    for document, begin in zip(documents, offsets.tolist(), strict=False):
        for start in range(len(document)):
            first = max(0, min(start, len(document) - n))  # the last tokens stand for the last n-gram
            pairs.add((tuple(document[first : first + n].tolist()), int(hashes[begin + start])))
    assert (
        len(pairs)
        == len({gram for gram, _ in pairs})
        == len({value for _, value in pairs})
        <= len(hashes)
        == 136
    )


@pytest.mark.parametrize("union", [10, 50, 400])
def test_bands_meet_as_often_as_the_formula_says(union: int) -> None:
    """With parameters that find a pair of similarity 0.8 about half the time, over 3,000 pairs."""
    rng = np.random.default_rng(union)
    pairs, bands, rows = 3000, 6, 10
    sets = rng.integers(0, 2**32, (pairs, union), dtype=np.uint32)
    common, half = round(0.8 * union), union // 10
    index = BandIndex(signatures(list(sets[:, : common + half]), 1, 64), bands, rows)
    others = np.delete(sets, np.s_[common : common + half], axis=1)
    met = sum(row in candidates for row, candidates in index.query(signatures(list(others), 1, 64)))
    assert met / pairs == pytest.approx(found_with(0.8, bands, rows), abs=0.04)


def test_a_query_gives_rows_and_candidates_in_order() -> None:
    known = [np.arange(first, first + 30, dtype=np.uint32) for first in (0, 100, 0)]
    asked = [np.arange(first, first + 30, dtype=np.uint32) for first in (500, 0, 700, 100)]
    index = BandIndex(signatures(known, 13, 128), 25, 5)
    assert list(index.query(signatures(asked, 13, 128))) == [(1, [0, 2]), (3, [1])]
    assert list(index.query(signatures(asked[:1], 13, 128))) == []
    assert list(index.query(signatures([], 13, 128))) == []
