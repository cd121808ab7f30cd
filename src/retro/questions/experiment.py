"""What the passages are worth: the same model closed book, with its passages, and with those of another question."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from retro.config import FineTuningConfig, TrainingConfig
from retro.corpus.tokenizers.tokenizer import Tokenizer
from retro.errors import DataError
from retro.model.protocol import LanguageModel
from retro.questions.answering import Answer, Answerer
from retro.questions.examples import Question
from retro.questions.finetuning import finetune, split
from retro.questions.scoring import Marks, Scores, holds_answer, mean
from retro.questions.sources import Source, closed_book, from_datastore, own_passages
from retro.scoring.intervals import Interval
from retro.stages.files import write_json
from retro.stages.progress import Progress, at_step, no_progress
from retro.workspace import Workspace

CLOSED, OPEN, SHUFFLED, CLOSED_BASELINE = (
    "closed book",
    "open book",
    "shuffled passages",
    "closed book, tuned so",
)


@dataclass(frozen=True)
class Comparison:
    """The scores of each way to answer, and how far open book lies above each other way, paired by question."""

    scores: dict[str, Scores]
    gains: dict[str, Interval]
    """Exact match of open book minus that of the other way."""
    f1_gains: dict[str, Interval]

    @property
    def num_questions(self) -> int:
        return self.scores[OPEN].all.num_questions

    def rows(self) -> list[list[str]]:
        """The table: way, exact match, F1 and recall in percent, with intervals, and what open book gains over it."""
        return [
            [
                way,
                percent(found.all.exact_match),
                percent(found.all.f1),
                percent(found.recall),
                _gain(self.gains, way),
            ]
            for way, found in self.scores.items()
        ]


HEADINGS = ["", "exact match", "F1", "recall", "open book gains (EM)"]


def compare(
    answerer: Answerer,
    questions: Sequence[Question],
    closed: LanguageModel | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Answer questions, which bring their passages, in all ways; `closed` is a model that was tuned without passages, if there is one."""
    ways = {
        CLOSED: (answerer.model, closed_book, questions),
        OPEN: (answerer.model, answerer.source, questions),
        SHUFFLED: (answerer.model, answerer.source, with_foreign_passages(questions)),
    }
    if closed is not None:
        ways[CLOSED_BASELINE] = (closed, closed_book, questions)
    return compare_answers(
        {
            way: answerer.having(model, source).answer(asked, at_step(progress, way) if progress else None)
            for way, (model, source, asked) in ways.items()
        }
    )


def compare_answers(answers: dict[str, Sequence[Answer]]) -> Comparison:
    """Score the answers to the same questions in several ways, open book among them."""
    marks = {way: Marks(found) for way, found in answers.items()}
    others = [way for way in marks if way != OPEN]
    return Comparison(
        {way: found.scores() for way, found in marks.items()},
        {way: mean(marks[OPEN].exact_match - marks[way].exact_match) for way in others},
        {way: mean(marks[OPEN].f1 - marks[way].f1) for way in others},
    )


def with_foreign_passages(questions: Sequence[Question]) -> list[Question]:
    """Every question with the passages of the next one."""
    return [
        replace(question, passages=other.passages)
        for question, other in zip(questions, [*questions[1:], *questions[:1]], strict=True)
    ]


def with_distractors(
    questions: Sequence[Question], source: Source, num_passages: int, seed: int = 0
) -> list[Question]:
    """Questions with `num_passages` each: their own, filled up from a source with passages that do not hold the answer, in random order."""
    rng, filled = np.random.default_rng(seed), []
    for question, found in zip(questions, source(questions), strict=True):
        own = list(question.passages[:num_passages])
        others = [passage for passage in found if not holds_answer(passage, question.answers)]
        passages = own + others[: num_passages - len(own)]
        filled.append(
            replace(question, passages=tuple(passages[place] for place in rng.permutation(len(passages))))
        )
    return filled


@dataclass(frozen=True)
class Experiment:
    """A fine-tuning with its test."""

    num_train: int
    num_valid: int
    num_test: int
    comparison: Comparison


def run_experiment(
    work: Workspace,
    base: str,
    questions: Sequence[Question],
    config: TrainingConfig,
    name: str = "questions",
    tuning: FineTuningConfig | None = None,
    baseline: str = "",
    fractions: tuple[float, float] = (0.2, 0.05),
    progress: Progress = no_progress,
) -> Experiment:
    """Split the questions, fill their passages up from the datastore, fine-tune, and answer the test questions in every way.

    `fractions` go to test and validation. With a `baseline` that model is fine-tuned closed book as well, on the same questions. The
    numbers are left in `evaluations/NAME.json`.
    """
    known = [question for question in questions if question.answers and question.passages]
    parts = split(known, fractions)
    if not all(parts):
        raise DataError(
            f"{len(known)} questions with answers and passages leave a split empty; expected more, or other fractions"
        )
    k = config.num_neighbours
    source = from_datastore(work.datastore(), 2 * k)  # some will hold the answer, and are left out
    test, valid, train = (with_distractors(part, source, k) if k > 1 else part for part in parts)
    model, _ = finetune(work, name, base, train, config, tuning, valid, progress)
    closed = (
        finetune(work, f"{name}-closed", baseline, train, config, FineTuningConfig(closed_book=True), valid)[
            0
        ]
        if baseline
        else None
    )
    answerer = Answerer(model, Tokenizer.open(work.tokenizer_path), own_passages(k))
    found = Experiment(len(train), len(valid), len(test), compare(answerer, test, closed))
    path = work.path / "evaluations" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    write_json(path, asdict(found))
    return found


def percent(value: Interval) -> str:
    return f"{100 * value.estimate:.1f} ({100 * value.low:.1f} – {100 * value.high:.1f})"


def _gain(gains: dict[str, Interval], way: str) -> str:
    return percent(gains[way]) if way in gains else ""
