import random

import pytest

from retro.corpus.decontamination import find_contaminated, ngrams


def test_ngrams_of_a_short_text_are_itself() -> None:
    assert ngrams([1, 2, 3, 4], 3) == {(1, 2, 3), (2, 3, 4)}
    assert ngrams([1, 2], 3) == {(1, 2)}


def similarity(a: list[int], b: list[int], n: int) -> float:
    x = {tuple(a[i : i + n]) for i in range(len(a) - n + 1)}
    y = {tuple(b[i : i + n]) for i in range(len(b) - n + 1)}
    return len(x & y) / len(x | y)


@pytest.mark.parametrize("threshold", [0.3, 0.8])
def test_finds_exactly_the_documents_at_or_above_the_threshold(threshold: float) -> None:
    rng = random.Random(0)
    held_out = [[rng.randrange(50) for _ in range(200)] for _ in range(5)]
    documents = []
    for original in held_out:
        for cut in (0, 5, 20, 22, 23, 60, 170):  # 20 to 23 tokens of 200 lie around a Jaccard similarity of 0.8
            documents.append(original[cut:] + [rng.randrange(50) for _ in range(cut // 4)])
    expected = {
        number for number, document in enumerate(documents) if max(similarity(document, original, 13) for original in held_out) >= threshold
    }
    found = find_contaminated(documents, held_out, 13, threshold)
    assert {entry.document for entry in found} == expected
    assert 0 < len(expected) < len(documents)
    for entry in found:
        assert entry.similarity == pytest.approx(similarity(documents[entry.document], held_out[entry.held_out], 13))
        assert entry.held_out == entry.document // 7


def test_equal_short_documents_are_found() -> None:
    assert [entry.document for entry in find_contaminated([[1, 2], [1, 3]], [[1, 2]])] == [0]
    assert find_contaminated([[1, 2]], []) == []
