import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from retro.retrieval.overlap import longest_common_prefix, longest_common_substring


def contains(haystack: list[int], needle: list[int]) -> bool:
    return any(haystack[start : start + len(needle)] == needle for start in range(len(haystack) - len(needle) + 1))


def literal_prefix(tokens: list[int], others: list[list[int]]) -> list[int]:
    """For each token the longest run that ends at it and stands in one of the others."""
    return [
        max(length for length in range(end + 2) if length == 0 or any(contains(o, tokens[end + 1 - length : end + 1]) for o in others))
        for end in range(len(tokens))
    ]


TOKENS = st.integers(1, 4)


@given(hnp.arrays(np.int64, st.integers(1, 12), elements=TOKENS), hnp.arrays(np.int64, (3, 9), elements=TOKENS))
def test_against_the_definition(tokens: np.ndarray, others: np.ndarray) -> None:
    expected = literal_prefix(tokens.tolist(), others.tolist())
    assert longest_common_prefix(tokens, others, 0).tolist() == expected
    assert longest_common_substring(tokens[None], others[None], 0).tolist() == [max(expected)]


def test_padding_matches_nothing() -> None:
    assert longest_common_substring(np.array([[7, 0, 0, 0]]), np.array([[[7, 0, 0, 0]]]), 0).tolist() == [1]
    assert longest_common_prefix(np.array([3, 0, 0]), np.zeros((0, 4), dtype=np.int64), 0).tolist() == [0, 0, 0]
