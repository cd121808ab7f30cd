"""Which passages a question is shown in fine-tuning: those that hold its answer, among others that do not.

A model that only ever saw the right passage copies out of any passage. So others come beside it, which a
search of the live datastore has found for the question. A question whose passages hold no answer can be
shown as well: then the right answer is none, and the model learns to say nothing.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from retro.config import ShownConfig
from retro.questions.examples import Question
from retro.questions.scoring import holds_answer
from retro.retrieval.retriever import Passage

NO_ANSWER = ("",)
"""The answers of a question that is shown no passage with an answer."""


def show_found(
    questions: Sequence[Question],
    found: Sequence[Sequence[Passage]],
    config: ShownConfig,
    num_passages: int,
    vary: bool = False,
    seed: int = 0,
) -> list[Question]:
    """The questions with `num_passages` passages each, or between one and so many, in random order.

    The draws for a question depend on the seed and its place alone.
    """
    shown = []
    for place, (question, passages) in enumerate(zip(questions, found, strict=True)):
        rng = np.random.default_rng([seed, place])
        number = int(rng.integers(num_passages)) + 1 if vary else num_passages
        without = rng.random() < config.without_answer
        chosen = _chosen(question, passages, config.as_found, without)[:number]
        shuffled = tuple(chosen[index] for index in rng.permutation(len(chosen)))
        # A question's own passages are taken at their word, however they spell the answer.
        is_own = bool(question.passages) and not (config.as_found or without)
        if not is_own and not any(holds_answer(passage, to_learn(question)) for passage in shuffled):
            question = dataclasses.replace(question, answers=NO_ANSWER, target="")
        shown.append(dataclasses.replace(question, passages=shuffled))
    return shown


def _chosen(question: Question, found: Sequence[Passage], as_found: bool, without: bool) -> list[Passage]:
    """The passages that may be shown, those that have to be first."""
    if as_found and not without:
        return list(found)
    # One that holds the answer as well would make a wrong passage right.
    others = [passage for passage in found if not holds_answer(passage, question.answers)]
    if without:
        return others
    # A file without passages names none: then the best that holds an answer stands for it.
    holding = (passage for passage in found if holds_answer(passage, to_learn(question)))
    return [*(question.passages or list(holding)[:1]), *others]


def to_learn(question: Question) -> tuple[str, ...]:
    """The answers that may be learned."""
    return (question.target,) if question.target else question.answers


def num_without_answer(questions: Sequence[Question]) -> int:
    """How many of the questions are to be answered with nothing."""
    return sum(question.answers == NO_ANSWER for question in questions)
