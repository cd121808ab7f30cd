"""Exact match and F1 against pairs with known marks."""

import pytest

from retro.errors import DataError
from retro.questions.answering import Answer
from retro.questions.examples import Question
from retro.questions.scoring import (
    CLOSED,
    OPEN,
    best,
    compare_answers,
    exact_match,
    f1,
    holds_answer,
    in_no_passage,
    normalise,
    score,
)
from retro.retrieval.retriever import Passage


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  Beatles", "beatles"),
        ("an apple, a day.", "apple day"),
        ("U.S.A.", "usa"),
        ("Theatre", "theatre"),
        ("rock-a-bye", "rockabye"),  # punctuation goes before articles, as in SQuAD's script
        ("“quoted”", "“quoted”"),  # ASCII punctuation only, as there
        ("the", ""),
    ],
)
def test_the_normalisation_is_squad_s(text: str, normal: str) -> None:
    assert normalise(text) == normal


@pytest.mark.parametrize(
    ("answer", "right", "match", "overlap"),
    [
        ("the Eiffel Tower", "Eiffel tower!", 1.0, 1.0),
        ("Eiffel", "Eiffel Tower", 0.0, 2 / 3),
        ("14 December 1972", "December 14, 1972", 0.0, 1.0),
        ("red red blue", "red green", 0.0, 2 / 5),
        ("London", "Paris", 0.0, 0.0),
        ("", "Paris", 0.0, 0.0),
        ("the", "a", 1.0, 1.0),
    ],
)
def test_known_pairs(answer: str, right: str, match: float, overlap: float) -> None:
    assert exact_match(answer, right) == match
    assert f1(answer, right) == pytest.approx(overlap)


def test_the_closest_of_several_answers_counts() -> None:
    assert best(exact_match, "ada", ["Charles", "Ada"]) == 1.0
    assert best(f1, "ada lovelace", ["Charles", "Ada"]) == pytest.approx(2 / 3)


def test_a_passage_holds_whole_words() -> None:
    passage = Passage("It was the Art of War.", "Sun Tzu")
    assert holds_answer(passage, ["art of war"])
    assert holds_answer(passage, ["x", "sun tzu"])
    assert not holds_answer(passage, ["ar"])
    assert not holds_answer(passage, ["the"])  # nothing is left of it


@pytest.mark.parametrize(
    ("text", "expected"),
    [("the Art", False), ("sun tzu", False), ("peace", True), ("art of", False), ("ar", True), ("", True)],
)
def test_an_answer_that_no_passage_holds(text: str, expected: bool) -> None:
    passages = (Passage("Nothing here."), Passage("It was the Art of War.", "Sun Tzu"))
    assert in_no_passage(Answer(Question("?"), text, passages, 0.0)) is expected
    assert in_no_passage(Answer(Question("?"), text, (), 0.0))


def answers(texts: list[str]) -> list[Answer]:
    """Questions whose answer is `yes`; every other one has a passage that says so."""
    return [
        Answer(Question("?", ("yes",)), text, (Passage("yes indeed"),) if number % 2 else (), 0.0)
        for number, text in enumerate(texts)
    ]


def test_scores_apart_by_whether_a_passage_holds_the_answer() -> None:
    found = score([*answers(["yes", "yes", "no", "yes sir"]), Answer(Question("unknown"), "x", (), 0.0)])
    assert found.all.num_questions == 4
    assert found.all.exact_match.estimate == 0.5
    assert found.all.f1.estimate == pytest.approx((1 + 1 + 0 + 2 / 3) / 4)
    assert found.all.exact_match.low < 0.5 < found.all.exact_match.high
    assert found.recall.estimate == 0.5
    assert found.with_answer is not None
    assert found.without_answer is not None
    assert found.with_answer.f1.estimate == pytest.approx(5 / 6)
    assert found.without_answer.exact_match.estimate == 0.5
    assert score(answers(["yes"])).with_answer is None
    with pytest.raises(DataError, match="none of 1 question"):
        score([Answer(Question("unknown"), "x", (), 0.0)])


def test_gains_are_paired() -> None:
    """Two ways that differ on the same questions by the same amount have no spread between them."""
    found = compare_answers({OPEN: answers(["yes"] * 8), CLOSED: answers(["no"] * 8)})
    assert (found.gains[CLOSED].estimate, found.gains[CLOSED].low, found.gains[CLOSED].high) == (
        1.0,
        1.0,
        1.0,
    )
    assert found.rows()[0][0] == OPEN
    assert found.num_questions == 8
