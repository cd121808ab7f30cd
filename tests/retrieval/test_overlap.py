import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from retro.retrieval import overlap
from retro.retrieval.overlap import longest_common_prefix, longest_common_substring


def contains(haystack: list[int], needle: list[int]) -> bool:
    return any(
        haystack[start : start + len(needle)] == needle for start in range(len(haystack) - len(needle) + 1)
    )


def literal_prefix(tokens: list[int], others: list[list[int]]) -> list[int]:
    """For each token the longest run that ends at it and stands in one of the others."""
    return [
        max(
            length
            for length in range(end + 2)
            if length == 0 or any(contains(o, tokens[end + 1 - length : end + 1]) for o in others)
        )
        for end in range(len(tokens))
    ]


TOKENS = st.integers(1, 4)


@given(
    hnp.arrays(np.int64, st.integers(1, 12), elements=TOKENS), hnp.arrays(np.int64, (3, 9), elements=TOKENS)
)
def test_against_the_definition(tokens: np.ndarray, others: np.ndarray) -> None:
    expected = literal_prefix(tokens.tolist(), others.tolist())
    assert longest_common_prefix(tokens, others, 0).tolist() == expected
    assert longest_common_substring(tokens[None], others[None], 0).tolist() == [max(expected)]


@given(
    hnp.arrays(np.int64, st.integers(1, 12), elements=st.integers(0, 3)),
    hnp.arrays(np.int64, st.tuples(st.integers(1, 3), st.integers(1, 9)), elements=st.integers(0, 3)),
)
def test_a_small_table_at_once_is_as_token_by_token(tokens: np.ndarray, others: np.ndarray) -> None:
    at_once = longest_common_prefix(tokens, others, 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(overlap, "TABLE", 0)
        one_by_one = longest_common_prefix(tokens, others, 0)
    assert at_once.tolist() == one_by_one.tolist()
    assert at_once.dtype == one_by_one.dtype


PADDED = st.integers(0, 3)
"""Few tokens, of which 0 is padding, so that runs are long and padding is everywhere."""


@st.composite
def chunks_and_neighbours(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Some chunks with k neighbours each; masked ones are all padding, as `Neighbours.values` gives them."""
    num_chunks, k, m, r = (draw(st.integers(low, high)) for low, high in ((1, 4), (0, 3), (1, 7), (1, 9)))
    mask = draw(hnp.arrays(bool, (num_chunks, k)))
    retrieved = draw(hnp.arrays(np.int64, (num_chunks, k, r), elements=PADDED)) * mask[..., None]
    return draw(hnp.arrays(np.int64, (num_chunks, m), elements=PADDED)), retrieved


def runs_of(tokens: list[int]) -> list[list[int]]:
    """All substrings without padding."""
    spans = ((start, stop) for start in range(len(tokens)) for stop in range(start + 1, len(tokens) + 1))
    return [tokens[start:stop] for start, stop in spans if 0 not in tokens[start:stop]]


@pytest.mark.parametrize("places", [1, overlap.PLACES])
def test_substrings_with_padding_and_masked_neighbours_by_brute_force(
    monkeypatch: pytest.MonkeyPatch, places: int
) -> None:
    monkeypatch.setattr(overlap, "PLACES", places)

    @settings(deadline=None)  # a busy machine is no failure
    @given(chunks_and_neighbours())
    def check(pair: tuple[np.ndarray, np.ndarray]) -> None:
        chunks, retrieved = pair
        expected = [
            max(
                (len(run) for run in runs_of(chunk) for neighbour in neighbours if contains(neighbour, run)),
                default=0,
            )
            for chunk, neighbours in zip(chunks.tolist(), retrieved.tolist(), strict=True)
        ]
        assert longest_common_substring(chunks, retrieved, 0).tolist() == expected

    check()


def test_long_runs_and_large_tokens() -> None:
    text = np.arange(65_000, 66_000)
    assert longest_common_substring(text[None, :700], text[None, None, 50:], 0).tolist() == [650]
    assert longest_common_prefix(text[:700], text[None, 100:], 0).max() == 600
    assert longest_common_substring(text[:4].reshape(2, 1, 2), text[:4].reshape(2, 1, 1, 2), 0).shape == (
        2,
        1,
    )


def test_padding_matches_nothing() -> None:
    assert longest_common_substring(np.array([[7, 0, 0, 0]]), np.array([[[7, 0, 0, 0]]]), 0).tolist() == [1]
    assert longest_common_prefix(np.array([3, 0, 0]), np.zeros((0, 4), dtype=np.int64), 0).tolist() == [
        0,
        0,
        0,
    ]
