"""Exact match and F1 as in SQuAD, the recall of passages, and what the passages are worth.

For the last, the same model answers closed book, with a question's passages, and with those
of another question.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from retro.errors import DataError
from retro.model.protocol import LanguageModel
from retro.questions.answering import Answer, Answerer, closed_book
from retro.questions.examples import Question
from retro.retrieval.retriever import Passage
from retro.scoring.intervals import Interval, bootstrap_ratio
from retro.stages.progress import Progress, at_step, no_progress
from retro.wording import counted

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)

CLOSED = "closed book"
OPEN = "open book"
SHUFFLED = "shuffled passages"
CLOSED_BASELINE = "closed book, tuned so"
HEADINGS = ["", "exact match", "F1", "recall", "open book gains (EM)"]


def normalise(text: str) -> str:
    """Lower case, without punctuation, articles or extra spaces, in SQuAD's order."""
    # The order matters: "the-best" becomes "thebest", as in SQuAD's own script.
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, right: str) -> float:
    return float(normalise(answer) == normalise(right))


def f1(answer: str, right: str) -> float:
    """The harmonic mean of precision and recall over words; for empty texts, 1 if both are."""
    found, expected = normalise(answer).split(), normalise(right).split()
    if not found or not expected:
        return float(found == expected)
    shared = sum((Counter(found) & Counter(expected)).values())
    # 2 · P · R / (P + R), with P and R over the same shared words.
    return 2 * shared / (len(found) + len(expected))


def best(measure: Callable[[str, str], float], answer: str, answers: Sequence[str]) -> float:
    """The best mark over all right answers."""
    return max(measure(answer, right) for right in answers)


def holds_answer(passage: Passage, answers: Sequence[str]) -> bool:
    """Whether the passage or its title contains one of the answers, word for word."""
    # A space at either end, so that only whole words match.
    words = f" {normalise(passage.title)} {normalise(passage.text)} "
    return any(f" {normalise(answer)} " in words for answer in answers if normalise(answer))


def in_no_passage(answer: Answer) -> bool:
    """Whether no passage that was read, nor its title, contains the answer: it is the model's own, or empty.

    It tells nothing about whether the answer is right, only that nothing that was read says so in its words.
    """
    return not any(holds_answer(passage, [answer.text]) for passage in answer.passages)


def is_silent(text: str) -> bool:
    """Whether an answer says nothing."""
    return not text.strip()


@dataclass(frozen=True)
class Score:
    """How well questions were answered, with intervals over questions."""

    num_questions: int
    exact_match: Interval
    f1: Interval


@dataclass(frozen=True)
class Scores:
    """The scores of all answers, and of those with and without a passage that
    holds the answer."""

    all: Score
    recall: Interval
    """Part of the questions whose passages hold an answer."""
    with_answer: Score | None
    without_answer: Score | None


class Marks:
    """The marks of every answer, in order; questions without known answers are skipped."""

    def __init__(self, answers: Sequence[Answer]) -> None:
        known = [(answer, answer.question.answers) for answer in answers if answer.question.answers]
        if not known:
            raise DataError(
                f"none of {counted(len(answers), 'question')} has a known answer; expected some to score"
            )
        self.exact_match = np.array([best(exact_match, answer.text, right) for answer, right in known])
        self.f1 = np.array([best(f1, answer.text, right) for answer, right in known])
        self.recalled = np.array(
            [any(holds_answer(passage, right) for passage in answer.passages) for answer, right in known]
        )

    def scores(self) -> Scores:
        everything = np.ones(len(self.f1), dtype=bool)
        # Either part may be empty, and then has no score.
        parts = (self._score(part) if part.any() else None for part in (self.recalled, ~self.recalled))
        return Scores(self._score(everything), mean(self.recalled), *parts)

    def _score(self, part: np.ndarray) -> Score:
        return Score(int(part.sum()), mean(self.exact_match[part]), mean(self.f1[part]))


def score(answers: Sequence[Answer]) -> Scores:
    """The scores of answers; questions without known answers are skipped."""
    return Marks(answers).scores()


def mean(values: np.ndarray) -> Interval:
    """The mean, with a bootstrap interval over questions."""
    return bootstrap_ratio(values.astype(np.float64), np.ones(len(values)))


@dataclass(frozen=True)
class Comparison:
    """The scores of each way to answer, and the gain of open book over each other way.

    Gains are paired by question.
    """

    scores: dict[str, Scores]
    gains: dict[str, Interval]
    """Exact match of open book minus that of the other way."""
    f1_gains: dict[str, Interval]

    @property
    def num_questions(self) -> int:
        return self.scores[OPEN].all.num_questions

    def rows(self) -> list[list[str]]:
        """The table below `HEADINGS`: everything in percent, with intervals."""
        rows = []
        for way, found in self.scores.items():
            gain = percent(self.gains[way]) if way in self.gains else ""
            numbers = (found.all.exact_match, found.all.f1, found.recall)
            rows.append([way, *map(percent, numbers), gain])
        return rows


def percent(value: Interval) -> str:
    return f"{100 * value.estimate:.1f} ({100 * value.low:.1f} – {100 * value.high:.1f})"


def compare(
    answerer: Answerer,
    questions: Sequence[Question],
    closed: LanguageModel | None = None,
    progress: Progress = no_progress,
) -> Comparison:
    """Answer questions that bring their passages in all ways.

    `closed` is a model fine-tuned without passages, if there is one.
    """
    ways = {
        CLOSED: (answerer.model, closed_book, questions),
        OPEN: (answerer.model, answerer.source, questions),
        # Passages of the same kind as open book, but about another question.
        SHUFFLED: (answerer.model, answerer.source, with_foreign_passages(questions)),
    }
    if closed is not None:
        ways[CLOSED_BASELINE] = (closed, closed_book, questions)
    answers = {
        way: answerer.having(model, source).answer(asked, at_step(progress, way))
        for way, (model, source, asked) in ways.items()
    }
    return compare_answers(answers)


def compare_answers(answers: Mapping[str, Sequence[Answer]]) -> Comparison:
    """Score the answers to the same questions in several ways, open book among them."""
    marks = {way: Marks(found) for way, found in answers.items()}
    others = [way for way in marks if way != OPEN]
    return Comparison(
        {way: found.scores() for way, found in marks.items()},
        # Paired: first the difference for each question, then its interval.
        {way: mean(marks[OPEN].exact_match - marks[way].exact_match) for way in others},
        {way: mean(marks[OPEN].f1 - marks[way].f1) for way in others},
    )


def with_foreign_passages(questions: Sequence[Question]) -> list[Question]:
    """Every question with the passages of the one half a file away."""
    # Questions about the same passage often follow each other. Of two or more, none keeps its own.
    half = len(questions) // 2
    following = [*questions[half:], *questions[:half]]
    return [
        replace(question, passages=other.passages)
        for question, other in zip(questions, following, strict=True)
    ]
