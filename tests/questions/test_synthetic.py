"""Synthetic questions ask for what their passages hold; a small RETRO solves the probe by passages alone."""

from dataclasses import replace
from pathlib import Path

import pytest

from retro.corpus.documents import Document
from retro.questions.answering import Answerer, own_passages
from retro.questions.format import Format
from retro.questions.scoring import CLOSED, OPEN, SHUFFLED, holds_answer
from retro.questions.synthetic import (
    cloze_questions,
    make_questions,
    make_tokenizer,
    probe_model,
    probe_training,
    run_probe,
)
from retro.run import Run

TEXT = (
    "The river rises in the hills above Great Milton and flows east past the old mill to the sea.\n"
    "A bridge was built across it near the village in 1823 after the ferry had sunk in a storm.\n"
    "The market was held every week by permission of King Henry until the great fire took the hall.\n"
)


def test_the_answer_stands_in_the_passage_and_not_in_the_question() -> None:
    questions = list(cloze_questions([Document(str(n), TEXT, "test", "The river") for n in range(20)]))
    assert {answer for question in questions for answer in question.answers} >= {
        "Great Milton",
        "1823",
        "King Henry",
    }
    for question in questions:
        assert holds_answer(question.passages[0], question.answers)
        assert question.answers[0].lower() not in question.text
        assert question.passages[0].title == "The river"


def test_text_without_names_asks_nothing_and_a_seed_decides() -> None:
    assert not list(
        cloze_questions([Document("a", "nothing here is a name, and nothing is a number.", "test")])
    )
    documents = [Document("a", TEXT * 3, "test")]
    assert list(cloze_questions(documents, seed=1)) == list(cloze_questions(documents, seed=1))
    assert list(cloze_questions(documents, seed=1)) != list(cloze_questions(documents, seed=2))


def test_one_passage_tells_the_code_and_it_fits(tmp_path: Path) -> None:
    questions, tokenizer = make_questions(300, seed=0), make_tokenizer(tmp_path / "tokenizer")
    form = Format(tokenizer, probe_model(tokenizer).chunk_len)
    for question in questions:
        [told] = [passage for passage in question.passages if holds_answer(passage, question.answers)]
        assert question.text == f"what is the code of {told.title}?"
        assert len(form.prompt(question.text)) == form.chunk_len
    assert form.num_cut(questions, 4) == 0
    assert (
        len({question.answers for question in questions if question.text == questions[0].text}) > 1
    )  # paired anew each time


@pytest.mark.slow
def test_the_passages_carry_the_answer(tmp_path: Path) -> None:
    scores = run_probe(tmp_path / "probe").scores
    assert scores[OPEN].all.exact_match.low > 0.9
    assert scores[CLOSED].all.exact_match.high < 0.15
    assert scores[SHUFFLED].all.exact_match.high < 0.15


def test_the_run_of_the_probe_can_be_opened(tmp_path: Path) -> None:
    """It has a tokenizer of its own, in its folder."""
    config = replace(probe_training(), num_steps=2, batch_size=2, warmup_steps=1, validate_batches=1)
    run_probe(tmp_path / "probe", config, num_test=2)
    run = Run(tmp_path / "probe")
    assert run.tokenizer.vocab_size == run.load().facts.vocab_size
    assert run.tokenizer.fingerprint == run.trained_on["tokenizer"]
    assert Answerer(run.load(), run.tokenizer, own_passages(4)).answer(make_questions(1, 5))
