"""Batches of questions: pure functions of their number, whole epochs, honest about what is left out."""

from collections import Counter

import pytest
import torch

from retro.errors import DataError
from retro.questions.batches import QuestionBatches
from retro.questions.examples import Question
from retro.questions.format import Format
from retro.retrieval.retriever import Passage
from retro.run import make_model
from retro.training.batches import Batches
from retro.workspace import Workspace
from tests.model.models import small_config

ROWS = [
    Question(f"number {n}?", ("one", "two"), tuple(Passage(f"passage {p} of {n}") for p in range(n)))
    for n in range(7)
]


@pytest.fixture(scope="module")
def form(workspace: Workspace) -> Format:
    return Format(workspace.datastore().tokenizer, 8)


def test_an_epoch_shows_every_question_once_and_either_answer(form: Format) -> None:
    batches = QuestionBatches(ROWS, form, batch_size=7, num_passages=2, seed=3)
    assert isinstance(batches, Batches)
    epochs = [batches.documents(number) for number in range(20)]
    assert all(Counter(epoch) == Counter(repr(row.text) for row in ROWS) for epoch in epochs)
    assert epochs[0] != epochs[1]
    drawn = Counter(
        form.tokenizer.decode(row[row != 0].tolist())
        for number in range(20)
        for row in batches.rows(number, 0, 7).targets
    )
    assert drawn.keys() == {" one", " two"}
    named = QuestionBatches([Question("?", ("one", "two"), (), "two")], form, 8, 2)
    assert {form.tokenizer.decode(row[row != 0].tolist()) for row in named.rows(0, 0, 8).targets} == {" two"}


def test_rows_are_a_pure_function_and_parts_of_the_batch(form: Format) -> None:
    batches, again = (QuestionBatches(ROWS, form, 4, 2, seed=1) for _ in range(2))
    batches.rows(5, 0, 4)
    for number in (0, 1, 9):
        whole, part = batches.rows(number, 0, 4), again.rows(number, 2, 4)
        width = part.targets.shape[1]
        assert torch.equal(whole.targets[2:, -width:][part.targets != 0], part.targets[part.targets != 0])


def test_the_first_passages_are_shown_and_missing_ones_masked(form: Format) -> None:
    batches = QuestionBatches(ROWS, form, 7, num_passages=3)
    batch = batches.rows(0, 0, 7)
    assert batch.neighbours is not None
    assert batch.neighbour_mask is not None
    for row, name in enumerate(batches.documents(0)):
        number = int(name.split()[1].rstrip("?'"))
        assert batch.neighbour_mask[row, -1].sum() == min(number, 3)
        for place in range(min(number, 3)):
            assert f"passage {place} of {number}".startswith(
                form.tokenizer.decode(batch.neighbours[row, -1, place].tolist()).removeprefix(
                    "title: , source: "
                )
            )
    assert QuestionBatches(ROWS, form, 7, num_passages=0).rows(0, 0, 7).neighbours is None


def test_what_cannot_be_learned_is_left_out(form: Format) -> None:
    rows = [Question("short?", ("yes",)), Question("long? " * 99, ("yes",)), Question("unanswered?")]
    batches = QuestionBatches(rows, form, 2, 1, seq_len=64)
    assert [row.text for row in batches.questions] == ["short?"]
    assert batches.num_long == 1
    assert batches.rows(0, 0, 2).tokens.shape[1] == batches.seq_len <= 64
    with pytest.raises(DataError, match="none of 1 question has an answer"):
        QuestionBatches(rows[2:], form, 2, 1)


@pytest.mark.parametrize("place", range(4))
def test_the_whole_batch_decides_whether_there_are_neighbours(form: Format, place: int) -> None:
    """Under torchrun each process has some of the rows, and all of them must run the encoder, or none."""
    rows = [
        Question(f"number {n}?", ("one",), (Passage("it is one"),) if n == place else ()) for n in range(4)
    ]
    batches = QuestionBatches(rows, form, 4, num_passages=2)
    for number in range(3):
        parts = [batches.rows(number, 0, 2), batches.rows(number, 2, 4)]
        assert all(part.neighbours is not None for part in parts)
        assert sum(int(part.neighbour_mask.any(dim=(1, 2)).sum()) for part in parts) == 1
    closed = QuestionBatches([Question("number?", ("one",))], form, 4, num_passages=2)
    assert closed.rows(0, 0, 2).neighbours is None


def test_masked_neighbours_change_no_logit(form: Format) -> None:
    """What stands for the passages that a row does not have is as good as none."""
    rows = [Question("number 0?", ("one",)), Question("number 1?", ("one",), (Passage("it is one"),))]
    batches = QuestionBatches(rows, form, 2, num_passages=2)
    place = next(place for place in range(2) if "0" in batches.documents(0)[place])
    batch = batches.rows(0, place, place + 1)
    model = make_model(small_config(vocab_size=form.tokenizer.vocab_size, chunk_len=8)).eval()
    alone = model(batch.tokens)
    torch.testing.assert_close(model(batch.tokens, batch.neighbours, batch.neighbour_mask), alone)
