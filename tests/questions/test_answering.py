"""Answers: each question with its own passages, in any batch, and from every source."""

from collections.abc import Sequence

import pytest
import torch

from retro.config import ShownConfig
from retro.errors import ConfigError
from retro.generation.request import Choice, Prompt
from retro.generation.sampler import Sampler
from retro.model.retro import Retro
from retro.questions.answering import (
    Answerer,
    FromBm25,
    closed_book,
    from_datastore,
    given_passages,
    own_passages,
    with_passages,
)
from retro.questions.batches import make_batch
from retro.questions.examples import Question
from retro.questions.finetuning import split
from retro.questions.scoring import with_foreign_passages
from retro.questions.shown import show_found
from retro.retrieval.retriever import Passage
from retro.workspace import Workspace
from tests.workspaces import small_run

ROWS = [
    Question("may I share it?", ("yes",), (Passage("You may share it.", "A"), Passage("Or not.", "B"))),
    Question(
        "who permits anyone to use, copy, modify and share this software without any warranty?",
        ("nobody",),
        (Passage("Nobody."),),
    ),
    Question("why?", ("because",)),
]


@pytest.fixture(scope="module")
def model(bert: str) -> Retro:
    torch.manual_seed(0)
    return Retro(small_run(bert).model).double().eval()


def test_answers_are_the_greedy_choices_of_the_full_forward_with_the_same_passages(
    model: Retro, workspace: Workspace
) -> None:
    """In a batch with other questions, and beyond the next chunk's end, where passages are read again."""
    answerer = Answerer(model, workspace.datastore().tokenizer, own_passages(2))
    form, max_tokens = answerer.form, 20
    prompts = [Prompt(form.prompt(row.text), row.text, form.passages(row.passages)) for row in ROWS]
    choice = Choice(temperature=0.0, min_tokens=max_tokens)
    for row, [sample] in zip(
        ROWS, answerer.sampler.generate_all(prompts, max_tokens=max_tokens, choice=choice), strict=True
    ):
        batch = make_batch(
            [form.prompt(row.text)], [sample.continuation], [form.passages(row.passages)], 8, 0
        )
        logits = model(batch.tokens, batch.neighbours, batch.neighbour_mask)[0, -max_tokens:]
        logits[:, [0, form.tokenizer.end_id]] = -torch.inf
        assert logits.argmax(-1).tolist() == sample.continuation
        assert sample.retrieval == bool(row.passages)
        first = sample.prompt_len // 8 - 1
        assert [len(found) for found in sample.neighbours] == [0] * first + [len(row.passages)] * (
            len(sample.tokens) // 8 - first
        )


def test_the_batch_and_the_order_do_not_matter(model: Retro, workspace: Workspace) -> None:
    tokenizer, told = workspace.datastore().tokenizer, []
    answers = Answerer(model, tokenizer, own_passages(2), batch_size=2).answer(
        ROWS, lambda *at: told.append(at)
    )
    assert told == [(2, 3), (3, 3)]
    assert [answer.question for answer in answers] == ROWS
    for answer in answers:
        [alone] = Answerer(model, tokenizer, own_passages(2)).answer([answer.question])
        assert alone.text == answer.text
        assert alone.log_prob == pytest.approx(answer.log_prob)
        assert alone.passages == answer.passages == answer.question.passages[:2]


def test_closed_book_reads_nothing_and_a_baseline_can_do_no_other(
    model: Retro, workspace: Workspace, bert: str
) -> None:
    tokenizer = workspace.datastore().tokenizer
    [closed] = Answerer(model, tokenizer, closed_book).answer(ROWS[:1])
    assert closed.passages == ()
    baseline = Retro(small_run(bert).model.baseline())
    assert Answerer(baseline, tokenizer, closed_book).answer(ROWS)
    with pytest.raises(ConfigError, match="no cross-attention"):
        Answerer(baseline, tokenizer, own_passages(1)).answer(ROWS)


def test_prompts_with_and_without_passages_share_a_batch(model: Retro, workspace: Workspace) -> None:
    sampler = Sampler(model, tokenizer=workspace.datastore().tokenizer)
    form = Answerer(model, sampler.tokenizer, closed_book).form
    given = Prompt(form.prompt("who?"), "who?", form.passages(ROWS[0].passages))
    fields = {"max_tokens": 20, "choice": Choice(temperature=0.0, min_tokens=20)}
    together = sampler.generate_all(["The licence permits", given], **fields)
    alone = [sampler.generate_all([prompt], **fields)[0][0] for prompt in ("The licence permits", given)]
    assert [sample.tokens for [sample] in together] == [sample.tokens for sample in alone]
    assert [sample.retrieval for sample in alone] == [False, True]


def test_the_datastore_and_bm25_find_the_text_that_was_asked_for(
    workspace: Workspace, texts: list[str]
) -> None:
    """A question that is a sentence of a document finds that document, with its title and a falling score."""
    datastore = workspace.datastore()
    found = datastore.search(["warranty of fitness"], 1)[0][0]
    asked = [Question(found.text), Question("zzz")]
    for source in (from_datastore(datastore, 3), FromBm25(datastore, 3)):
        first = source(asked)[0]
        assert len(first) == 3
        assert first[0].score is not None
        assert [passage.score for passage in first] == sorted(
            (passage.score or 0 for passage in first), reverse=True
        )
        assert all(passage.title for passage in first)
    best = FromBm25(datastore, 1)([Question(" ".join(found.text.split()[:6]))])[0][0]
    assert set(found.text.split()[:6]) & set(best.text.split())
    with pytest.raises(ConfigError, match="k is 0"):
        FromBm25(datastore, 0)
    assert given_passages([Passage("x"), Passage("y")], 1)(asked) == [[Passage("x")], [Passage("x")]]


def test_foreign_passages_and_distractors() -> None:
    foreign = with_foreign_passages(ROWS)
    assert [row.passages for row in foreign] == [ROWS[1].passages, ROWS[2].passages, ROWS[0].passages]
    assert [row.text for row in foreign] == [row.text for row in ROWS]

    def source(questions: Sequence[Question]) -> list[list[Passage]]:
        return [
            [Passage("yes it holds the answer"), Passage("d1"), Passage("d2"), Passage("d3"), Passage("d4")]
            for _ in questions
        ]

    shown = ShownConfig()
    filled = show_found(ROWS, source(ROWS), shown, 4)
    assert [len(row.passages) for row in filled] == [4, 4, 4]
    assert {passage.text for passage in filled[0].passages} == {"You may share it.", "Or not.", "d1", "d2"}
    assert {passage.text for passage in filled[2].passages} == {"yes it holds the answer", "d1", "d2", "d3"}
    again = show_found(ROWS[:1] * 40, source(ROWS[:1] * 40), shown, 4)
    places = {row.passages.index(ROWS[0].passages[0]) for row in again}
    assert places == {0, 1, 2, 3}
    assert with_passages(ROWS, closed_book)[0].passages == ()


def test_a_split_is_by_question_and_stays() -> None:
    rows = [Question(f"question {number}") for number in range(1000)]
    test, valid, train = split(rows, [0.2, 0.1])
    assert 150 < len(test) < 250
    assert 60 < len(valid) < 140
    assert len(test) + len(valid) + len(train) == 1000
    assert split([Question("Question  7 ".strip()), *rows[::-1]], [0.2, 0.1])[0][-5:] == test[:5][::-1]
    twice = split(
        [row for number in range(50) for row in (Question(f"Is {number} it"), Question(f"is {number} IT"))],
        [0.5],
    )
    assert all(len(part) % 2 == 0 for part in twice)
