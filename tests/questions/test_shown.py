"""Which passages a question is shown in fine-tuning: its own among others, what was found, or none with the
answer."""

from dataclasses import replace

import pytest

from retro.config import ShownConfig
from retro.errors import ConfigError
from retro.questions.examples import Question
from retro.questions.shown import NO_ANSWER, num_without_answer, show_found
from retro.retrieval.retriever import Passage

GOLD = Passage("the answer is blue", "gold")
ASKED = Question("which colour?", ("blue", "azure"), (GOLD,))
OTHERS = [Passage(f"it is number {n}", f"T{n}") for n in range(5)]
FOUND = [OTHERS[0], Passage("perhaps azure", "second"), *OTHERS[1:]]
SEARCH = ShownConfig(search="bm25")


def test_its_own_passage_stands_among_others_without_the_answer() -> None:
    shown = show_found([ASKED] * 40, [FOUND] * 40, SEARCH, 4)
    for question in shown:
        assert set(question.passages) == {GOLD, *OTHERS[:3]}
        assert question.answers == ASKED.answers
    assert {question.passages.index(GOLD) for question in shown} == {0, 1, 2, 3}
    assert show_found([ASKED] * 40, [FOUND] * 40, SEARCH, 4) == shown
    assert show_found([ASKED] * 40, [FOUND] * 40, SEARCH, 4, seed=1) != shown


def test_the_number_of_passages_varies_and_never_leaves_out_its_own() -> None:
    shown = show_found([ASKED] * 40, [FOUND] * 40, SEARCH, 3, vary=True)
    assert {len(question.passages) for question in shown} == {1, 2, 3}
    assert all(GOLD in question.passages for question in shown)


def test_what_was_found_is_shown_as_it_is() -> None:
    config = replace(SEARCH, as_found=True)
    [one], [two] = (show_found([ASKED], [FOUND], config, number) for number in (1, 2))
    assert one.passages == (OTHERS[0],)
    assert one.answers == NO_ANSWER
    assert set(two.passages) == set(FOUND[:2])
    assert two.answers == ASKED.answers
    # The one answer to learn is in neither.
    [other] = show_found([replace(ASKED, target="blue")], [FOUND], config, 2)
    assert (other.answers, other.target) == (NO_ANSWER, "")
    assert num_without_answer([one, two, other]) == 2


def test_a_part_is_shown_no_passage_with_the_answer() -> None:
    shown = show_found([ASKED] * 200, [FOUND] * 200, replace(SEARCH, without_answer=0.25), 3)
    silent = [question for question in shown if question.answers == NO_ANSWER]
    assert 30 < len(silent) < 70
    assert all(set(question.passages) == set(OTHERS[:3]) for question in silent)
    assert all(GOLD in question.passages for question in shown if question not in silent)


def test_without_a_passage_of_its_own_the_best_that_holds_the_answer_stands_for_it() -> None:
    alone = replace(ASKED, passages=())
    [shown] = show_found([alone], [FOUND], SEARCH, 2)
    assert set(shown.passages) == {FOUND[1], OTHERS[0]}
    [nothing] = show_found([alone], [OTHERS], SEARCH, 2)
    assert nothing.answers == NO_ANSWER
    # Its own is taken at its word, however it spells the answer.
    spelled = replace(ASKED, passages=(Passage("it is bleu"),))
    assert show_found([spelled], [OTHERS], SEARCH, 2)[0].answers == ASKED.answers


def test_what_makes_no_sense_is_refused() -> None:
    for options, message in (
        ({"search": "google"}, "search is 'google'"),
        ({"as_found": True}, "--search dense or bm25 or hybrid"),
        ({"without_answer": 0.1}, "--search dense or bm25 or hybrid"),
        ({"search": "dense", "without_answer": 1.0}, "without_answer is 1.0"),
    ):
        with pytest.raises(ConfigError, match=message):
            ShownConfig(**options)
