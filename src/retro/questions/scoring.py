"""Exact match and F1 as SQuAD defined them, the recall of passages, and what both say together."""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from retro.errors import DataError
from retro.questions.answering import Answer
from retro.retrieval.retriever import Passage
from retro.scoring.intervals import Interval, bootstrap_ratio

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    """Lower case without punctuation, articles and doubled spaces, in SQuAD's order."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, right: str) -> float:
    return float(normalise(answer) == normalise(right))


def f1(answer: str, right: str) -> float:
    """The harmonic mean of precision and recall over words; of empty texts, whether both are."""
    found, expected = normalise(answer).split(), normalise(right).split()
    if not found or not expected:
        return float(found == expected)
    shared = sum((Counter(found) & Counter(expected)).values())
    return 2 * shared / (len(found) + len(expected))


def best(measure: Callable[[str, str], float], answer: str, answers: Sequence[str]) -> float:
    """By the answer that it comes closest to."""
    return max(measure(answer, right) for right in answers)


def holds_answer(passage: Passage, answers: Sequence[str]) -> bool:
    """Whether one of the answers stands in the passage or its title, word for word."""
    words = f" {normalise(passage.title)} {normalise(passage.text)} "
    return any(f" {normalise(answer)} " in words for answer in answers if normalise(answer))


@dataclass(frozen=True)
class Score:
    """How well questions were answered, with intervals over questions."""

    num_questions: int
    exact_match: Interval
    f1: Interval


@dataclass(frozen=True)
class Scores:
    """The score of all answers, and apart where a passage that was read holds the answer and where none does."""

    all: Score
    recall: Interval
    """Part of the questions whose passages hold an answer."""
    with_answer: Score | None
    without_answer: Score | None


class Marks:
    """Every answer's marks, in order; only questions whose answers are known can be marked."""

    def __init__(self, answers: Sequence[Answer]) -> None:
        known = [(answer, answer.question.answers) for answer in answers if answer.question.answers]
        if not known:
            raise DataError(f"none of {len(answers)} questions has a known answer; expected some to score")
        self.exact_match = np.array([best(exact_match, answer.text, right) for answer, right in known])
        self.f1 = np.array([best(f1, answer.text, right) for answer, right in known])
        self.recalled = np.array(
            [any(holds_answer(passage, right) for passage in answer.passages) for answer, right in known]
        )

    def scores(self) -> Scores:
        parts = (self._score(part) if part.any() else None for part in (self.recalled, ~self.recalled))
        return Scores(self._score(np.ones(len(self.f1), dtype=bool)), mean(self.recalled), *parts)

    def _score(self, part: np.ndarray) -> Score:
        return Score(int(part.sum()), mean(self.exact_match[part]), mean(self.f1[part]))


def score(answers: Sequence[Answer]) -> Scores:
    """The scores of answers to questions whose right answers are known; the others are passed over."""
    return Marks(answers).scores()


def mean(values: np.ndarray) -> Interval:
    """The mean with an interval over questions drawn with replacement."""
    return bootstrap_ratio(values.astype(np.float64), np.ones(len(values)))
