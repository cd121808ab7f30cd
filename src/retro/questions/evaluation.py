"""Questions answered in many ways, with scores: closed book, from gold passages, from what is searched for.

Each way is a stage of its own, so that ways can be added at any time, and each is kept block by block, so
that an interruption costs minutes. What is searched for is a stage as well: all ways that read the same
search read the same passages.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from retro.comparators.passages import Frame
from retro.config import QuestionsConfig
from retro.config.run import SEARCHED
from retro.errors import DataError
from retro.machine import product_dtype, products_in
from retro.questions.answering import Answer, Answerer, own_passages
from retro.questions.examples import Question
from retro.questions.format import ENDING, written_example
from retro.questions.scoring import (
    best,
    exact_match,
    f1,
    holds_answer,
    in_no_passage,
    is_silent,
    with_foreign_passages,
)
from retro.questions.searching import Found, blocks, passages_of, search_passages
from retro.questions.ways import CLOSED, MARKS, Way, WayScore, model_for, score_way, ways_of
from retro.retrieval.retriever import Passage
from retro.scoring.sets import name_of
from retro.stages.files import make_fingerprint, write_json
from retro.stages.parts import ROWS, Parts
from retro.stages.progress import Progress, no_progress
from retro.stages.stage import Artifact, Stage, run_stage
from retro.wording import counted
from retro.workspace import OpenRun

SOME = 32
"""Questions that an example is the shortest of."""
ANSWERS = "answers"
RESULTS = "results.json"
COMMAND = "retro evaluate WORK RUN --task questions"


def name_of_evaluation(source: str, num_questions: int) -> str:
    """The name of the folder for these questions; a sample has one of its own."""
    return f"questions-{set_name(source, num_questions)}"


def set_name(source: str, num_questions: int) -> str:
    """A name for so many questions of a source."""
    return name_of(source) + (f"-{num_questions}" if num_questions else "")


def stages_of(path: Path, config: QuestionsConfig) -> list[Path]:
    """The folders of what a config asks for, made or not."""
    ways = ways_of(config)
    searches = dict.fromkeys(way.passages for way in ways if way.passages in SEARCHED)
    return [*(_search_path(path, name) for name in searches), *(way_path(path, way) for way in ways)]


def _search_path(path: Path, name: str) -> Path:
    return path / "passages" / name


def way_path(path: Path, way: Way) -> Path:
    """The folder of the answers in one way."""
    return path / "ways" / way.name


def evaluate_questions(
    opened: OpenRun,
    questions: Sequence[Question],
    path: Path,
    config: QuestionsConfig,
    progress: Progress = no_progress,
    command: str = COMMAND,
    examples: Sequence[Question] = (),
) -> list[WayScore]:
    """Answer the questions in every way of the config, and score them; `command` is what a user runs for it.

    Of the `examples` a few stand before every question, as many as the config says. What was searched for and
    answered before is kept, though the datastore may have changed since.
    """
    asked = choose_sample([question for question in questions if question.answers], config.num_questions)
    if not asked:
        raise DataError("no question has an answer to score against; expected some; name another file")
    ways = ways_of(config)
    shown = choose_examples(examples, asked, config.num_examples)
    readings = dict.fromkeys(way.reading for way in ways)
    # Before hours of answering: what a model cannot read is refused now.
    answerers = {reading: _answerer(reading, opened, shown, config) for reading in readings}
    fingerprint = make_fingerprint([asdict(question) for question in asked])
    evaluation = _Evaluation(opened, asked, fingerprint, path, config, progress, command)
    marks = {way: _read_marks(evaluation.answered(way, answerers[way.reading])) for way in ways}
    scores = [score_way(way, found, marks.get(CLOSED)) for way, found in marks.items()]
    write_json(path / RESULTS, [asdict(score) for score in scores])
    return scores


def choose_examples(examples: Sequence[Question], asked: Sequence[Question], number: int) -> list[Question]:
    """So many of the examples, with short passages, and none that is asked as well."""
    texts = {question.text for question in asked}
    fitting = [one for one in examples if one.answers and one.passages and one.text not in texts]
    if len(fitting) < number:
        raise DataError(
            f"{counted(len(fitting), 'example')} with an answer and a passage; expected {number}; "
            "name another file: --examples"
        )
    # Any few of them, and of these the shortest, as they are read with every question.
    some = choose_sample(fitting, SOME * number) if number else []
    return sorted(some, key=lambda question: len(question.passages[0].text))[:number]


def _answerer(
    reading: str, opened: OpenRun, examples: Sequence[Question], config: QuestionsConfig
) -> Answerer:
    """An answerer that reads passages in this way, with the examples before every question."""
    tokenizer = opened.tokenizer
    # Closed book, the examples show no passages either.
    lead = tokenizer.encode("".join(written_example(one, bool(reading)) for one in examples))
    frame = Frame(len(lead), tuple(tokenizer.encode(ENDING)))
    model = model_for(reading, opened.model, config.passage_len, frame)
    return Answerer(model, tokenizer, own_passages(), config.max_tokens, config.batch_size, lead)


def choose_sample(questions: Sequence[Question], number: int) -> list[Question]:
    """So many of the questions, in their order; a larger sample holds the smaller ones."""
    if not number:
        return list(questions)
    keys = [make_fingerprint(question.text) for question in questions]
    chosen = sorted(range(len(questions)), key=lambda place: keys[place])[:number]
    return [questions[place] for place in sorted(chosen)]


@dataclass(frozen=True)
class _Evaluation:
    """Questions and the stages in which they are searched for and answered."""

    opened: OpenRun
    questions: list[Question]
    fingerprint: str
    """Of the questions."""
    path: Path
    config: QuestionsConfig
    progress: Progress
    command: str

    def answered(self, way: Way, answerer: Answerer) -> Artifact:
        """The answers in one way, made if they are not there."""
        inputs = {"questions": self.fingerprint, "model": self.opened.run.fingerprint}
        if answerer.form.lead:
            inputs["examples"] = make_fingerprint(list(answerer.form.lead))
        found = None
        if way.passages in SEARCHED:
            searched = self._searched(way.passages)
            found = Parts(searched.path, ROWS)
            # Not the search itself: the first of twenty passages are those of a search for five.
            inputs["datastore"] = searched.inputs["datastore"]
        settings = {
            "way": asdict(way),
            "max_tokens": self.config.max_tokens,
            "num_examples": self.config.num_examples,
            "passage_len": self.config.passage_len if way.reading in ("prompt", "fused") else 0,
        }
        # What came later is named only where it is used, so that finished answers stay what they are.
        if self.config.precision != "float32":
            settings["precision"] = self.config.precision
        work = partial(self._answer, way, answerer, found)
        return run_stage(way_path(self.path, way), "answers", settings, inputs, work, self.command)

    def _answer(self, way: Way, answerer: Answerer, found: Found | None, stage: Stage) -> None:
        given = with_foreign_passages(self.questions) if way.passages == "shuffled" else self.questions
        parts = Parts(stage.scratch("blocks"), ROWS)
        rows: list[dict[str, Any]] = []
        device = self.opened.model.device

        def make(name: str, block: Sequence[Question]) -> list[dict[str, Any]]:
            if found is not None:
                passages = [passages_of(row, way.num_passages) for row in found.read(name)]
            elif way == CLOSED:
                passages = [[] for _ in block]
            else:
                passages = [in_pieces(answerer, question.passages) for question in block]
            shown = zip(block, passages, strict=True)
            asked = [replace(question, passages=tuple(row)) for question, row in shown]
            with products_in(product_dtype(self.config.precision, device), device):
                return list(map(_record, answerer.answer(asked)))

        for name, block in blocks(given):
            rows += parts.keep(name, partial(make, name, block))
            self.progress(len(rows), len(given), way.name)
        Parts(stage.path, ROWS).write(ANSWERS, rows)
        stage.counts["questions"] = len(rows)

    def _searched(self, name: str) -> Artifact:
        """The passages of every question; a finished search is opened if it has as many as are needed."""
        return search_passages(
            self.questions,
            self.opened.datastore,
            _search_path(self.path, name),
            name,
            max(self.config.num_passages),
            self.command,
            self.progress,
        )


def in_pieces(answerer: Answerer, passages: Sequence[Passage]) -> list[Passage]:
    """Passages of any length in pieces that the model reads whole."""
    return [piece for passage in passages for piece in answerer.form.pieces(passage)]


def _record(answer: Answer) -> dict[str, Any]:
    right = answer.question.answers
    return {
        "question": answer.question.text,
        "answer": answer.text,
        "log_prob": round(answer.log_prob, 4),
        "exact_match": best(exact_match, answer.text, right),
        "f1": best(f1, answer.text, right),
        "recalled": any(holds_answer(passage, right) for passage in answer.passages),
        "unfounded": in_no_passage(answer),
    }


def _read_marks(artifact: Artifact) -> dict[str, np.ndarray]:
    """The marks of every answer, in the order of the questions."""
    rows = read_answers(artifact.path)
    for row in rows:
        row["silent"] = is_silent(row["answer"])
    return {name: np.array([row[name] for row in rows], dtype=np.float64) for name in MARKS}


def read_answers(path: Path) -> list[dict[str, Any]]:
    """The answers in the folder of a way, in the order of the questions."""
    return Parts(path, ROWS).read(ANSWERS)
