"""The synthetic task: what it asks, and that a small RETRO solves it through its passages alone."""

from pathlib import Path

import pytest

from retro.questions.experiment import CLOSED, OPEN, SHUFFLED
from retro.questions.format import Format
from retro.questions.probe import make_questions, make_tokenizer, probe_model, run_probe
from retro.questions.scoring import holds_answer


def test_one_passage_tells_the_code_and_it_fits() -> None:
    questions, tokenizer = make_questions(300, seed=0), make_tokenizer()
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
