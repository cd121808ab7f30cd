"""Questions out of text ask for something that their passage holds and they themselves do not."""

from retro.corpus.documents import Document
from retro.questions.cloze import cloze_questions
from retro.questions.scoring import holds_answer

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
