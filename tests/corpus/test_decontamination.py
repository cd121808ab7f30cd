import random
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from retro.corpus.decontamination import (
    BATCH_TOKENS,
    find_contaminated,
    find_pairs,
    matches_names,
    names_of,
    ngrams,
    read_names,
    title_key,
)
from retro.corpus.documents import Document
from retro.errors import ConfigError, DataError


def test_ngrams_of_a_short_text_are_itself() -> None:
    def grams(*tokens: int) -> set[tuple[int, ...]]:
        return {
            tuple(np.frombuffer(gram, dtype=np.uint32).tolist())
            for gram in ngrams(np.array(tokens, dtype=np.uint32), 3)
        }

    assert grams(1, 2, 3, 4, 1, 2, 3) == {(1, 2, 3), (2, 3, 4), (3, 4, 1), (4, 1, 2)}
    assert grams(1, 2, 3) == {(1, 2, 3)}
    assert grams(1, 2) == {(1, 2)}
    assert grams() == {()}


def similarity(a: list[int], b: list[int], n: int) -> float:
    x = {tuple(a[i : i + n]) for i in range(len(a) - n + 1)}
    y = {tuple(b[i : i + n]) for i in range(len(b) - n + 1)}
    return len(x & y) / len(x | y)


@pytest.mark.parametrize("threshold", [0.02, 0.3, 0.8])
def test_finds_exactly_the_documents_at_or_above_the_threshold(threshold: float) -> None:
    rng = random.Random(0)
    held_out = [[rng.randrange(50) for _ in range(200)] for _ in range(5)]
    documents = []
    for original in held_out:
        for cut in (
            0,
            5,
            20,
            22,
            23,
            60,
            170,
            184,
        ):  # 20 to 23 tokens of 200 lie around a Jaccard similarity of 0.8
            documents.append(original[cut:] + [rng.randrange(50) for _ in range(cut // 4)])
    expected = {
        number
        for number, document in enumerate(documents)
        if max(similarity(document, original, 13) for original in held_out) >= threshold
    }
    found = find_contaminated(documents, held_out, 13, threshold)
    assert {entry.document for entry in found} == expected
    assert 0 < len(expected) < len(documents)
    for entry in found:
        assert entry.similarity == similarity(documents[entry.document], held_out[entry.held_out], 13)
        assert entry.held_out == entry.document // 8


def planted(rng: np.random.Generator, num_ngrams: int, common: int) -> tuple[list[int], list[int]]:
    """Two documents with `num_ngrams` distinct 13-grams each; `common` are shared, anywhere in both."""
    tokens = rng.choice(
        1 << 20, 4 * num_ngrams, replace=False
    ).tolist()  # no token twice: no n-gram by accident
    shared, rest = tokens[: common + 12], tokens[common + 12 :]
    documents = []
    for _ in range(2):
        fresh, rest = rest[: num_ngrams - common], rest[num_ngrams - common :]
        before = int(rng.integers(len(fresh) + 1))
        documents.append(fresh[:before] + shared + fresh[before:])
    return documents[0], documents[1]


def test_near_duplicates_from_070_to_095_are_found_from_the_threshold_on() -> None:
    rng = np.random.default_rng(0)
    levels = [level / 100 for level in range(70, 96)]
    pairs, exact = [], []
    for size in (45, 180, 450):
        for level in levels:
            common = round(2 * size * level / (1 + level))
            pairs += [planted(rng, size, common) for _ in range(8)]
            exact += [common / (2 * size - common)] * 8
    assert exact.count(0.8) >= 24  # 8/9 of the n-grams in common is the threshold itself
    assert min(exact) < 0.71
    assert max(exact) > 0.94
    found = find_contaminated([document for document, _ in pairs], [original for _, original in pairs])
    assert [entry.document for entry in found] == [
        number for number, value in enumerate(exact) if value >= 0.8
    ]
    assert all(
        entry.held_out == entry.document and entry.similarity == exact[entry.document] for entry in found
    )


def test_the_closest_held_out_document_is_named() -> None:
    original = list(range(100, 300))
    held_out = [original[:-20], original[:-5], list(range(900, 1000)), original[:-5]]
    (entry,) = find_contaminated([original], held_out)
    assert (entry.document, entry.held_out, entry.similarity) == (0, 1, 183 / 188)


def test_documents_shorter_than_an_ngram_match_their_equals_only() -> None:
    assert [entry.document for entry in find_contaminated([[1, 2], [1, 3], [1, 2, 0], [2]], [[1, 2]])] == [0]
    assert [entry.held_out for entry in find_contaminated([[7] * 13], [[7] * 12, [7] * 13, [7] * 14])] == [
        1
    ]  # one n-gram, twice in the last
    assert [entry.document for entry in find_contaminated([[0], []], [[]])] == [1]


def test_empty_input() -> None:
    assert find_contaminated([[1, 2]], []) == []
    assert find_contaminated([], [[1, 2]]) == []
    assert find_contaminated(iter([]), []) == []


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.int64])
def test_arrays_and_lists_are_the_same(dtype: type) -> None:
    tokens = np.arange(65_000, 65_100)
    (entry,) = find_contaminated([tokens.astype(dtype)], [tokens.tolist()])
    assert entry.similarity == 1.0


def test_documents_are_read_once_and_let_go() -> None:
    rng = np.random.default_rng(0)
    held_out = rng.integers(0, 60_000, (3, 4000)).astype(np.uint32)
    seen: list[weakref.ref[NDArray[np.uint32]]] = []
    alive: list[int] = []

    def stream() -> Iterator[NDArray[np.uint32]]:
        for number in range(150):
            document = (
                held_out[number % 3].copy()
                if number >= 147
                else rng.integers(0, 60_000, 4000).astype(np.uint32)
            )
            seen.append(weakref.ref(document))
            alive.append(sum(reference() is not None for reference in seen))
            yield document

    found = find_contaminated(stream(), list(held_out))
    assert [(entry.document, entry.held_out) for entry in found] == [(147, 0), (148, 1), (149, 2)]
    assert len(seen) == 150
    assert max(alive) <= 2 * (BATCH_TOKENS // 4000 + 1) + 1  # the batch at work and the one being read


def test_impossible_settings_are_refused() -> None:
    for threshold in (0.0, -1.0, 1.5):
        with pytest.raises(ConfigError, match="threshold"):
            find_contaminated([[1]], [[1]], 13, threshold)
    with pytest.raises(ConfigError, match="n-grams"):
        find_contaminated([[1]], [[1]], 0)
    with pytest.raises(ConfigError, match="permutations"):
        find_contaminated([[1]], [[1]], 13, 1e-6)


def test_every_held_out_document_that_one_document_is_close_to_is_found() -> None:
    original = list(range(200))
    pairs = list(find_pairs([original, [7] * 50], [original, original[:-10], original[100:]]))
    assert [(pair.document, pair.held_out) for pair in pairs] == [(0, 0), (0, 1)]
    assert pairs[1].similarity == similarity(original, original[:-10], 13)


def titled(id: str, title: str = "") -> Document:
    return Document(id=id, text="text", source="wikipedia", title=title)


def test_titles_match_in_any_of_their_forms() -> None:
    names = names_of(["Lockheed AC @-@ 130", "Iron_Man", "Cafe\u0301", "Ocean 's 11"])
    for title in (
        "Lockheed AC-130",
        "Iron Man",
        "Iron_Man",
        "Caf\u00e9",
        "Ocean's 11",
        "Lockheed AC @-@ 130",
    ):
        assert matches_names(titled("1", title), names), title
    for title in ("Lockheed AC 130", "Iron man", "Cafe", "Oceans 11", "Iron", ""):
        assert not matches_names(titled("1", title), names), title


def test_ids_match_exactly() -> None:
    names = names_of(["12", "en_7"])
    assert matches_names(titled("12"), names)
    assert matches_names(titled("en_7"), names)
    assert not matches_names(titled("1 2"), names)
    assert not matches_names(titled("en 7"), names)


def test_a_plain_set_of_titles_will_do() -> None:
    assert matches_names(titled("1", "Iron Man"), frozenset({"Iron Man"}))
    assert not matches_names(titled("1"), frozenset())
    assert not matches_names(titled("1"), frozenset({""}))


def test_a_file_has_one_name_a_line(tmp_path: Path) -> None:
    path = tmp_path / "names.txt"
    path.write_text("Robert Boulter\n\n  Du Fu \r\n# 1\n", encoding="utf-8")
    assert read_names(path) == {"Robert Boulter", "RobertBoulter", "Du Fu", "DuFu", "# 1", "#1"}


@pytest.mark.parametrize(
    ("content", "message"), [(None, "does not exist"), (b"\n \n", "no names"), (b"a\n\xff\n", "byte 2")]
)
def test_unusable_files_are_refused(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "names.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_names(path)


def test_title_key_leaves_other_signs_alone() -> None:
    assert title_key("C++") != title_key("C#") != title_key("C")
    assert title_key("me@x@y") == "me@x@y"
