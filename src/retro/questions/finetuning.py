"""Fine-tuning on questions with the usual training loop, and an experiment that tests it."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from retro.config import FineTuningConfig, ShownConfig, TrainingConfig
from retro.corpus.tokenizers.tokenizer import Tokenizer
from retro.errors import ConfigError, DataError
from retro.jobs.training import base_of, run_to_start_from
from retro.model.protocol import TrainableModel
from retro.model.weights import WEIGHTS
from retro.questions.answering import Answerer, from_datastore, own_passages
from retro.questions.batches import QuestionBatches
from retro.questions.examples import Question
from retro.questions.format import Format, PromptFormat
from retro.questions.scoring import Comparison, compare, holds_answer
from retro.questions.searching import found_passages, search_passages
from retro.questions.shown import num_without_answer, show_found, to_learn
from retro.retrieval.retriever import Passage
from retro.run import Origin, load
from retro.scoring.evaluate import VERSION
from retro.stages.files import file_checksum, make_fingerprint, write_json
from retro.stages.progress import Progress, no_progress
from retro.stages.stage import Artifact
from retro.training.loop import train
from retro.wording import counted
from retro.workspace import Workspace

DROPOUT = 0.1
"""Of a model of our own, unless another rate is asked for."""


def no_warning(line: str) -> None:
    """Ignore a warning."""


def settled(work: Workspace, base: str, tuning: FineTuningConfig | None = None) -> FineTuningConfig:
    """The settings for a run to start from, with what was left open; refused if it cannot be tuned so.

    It asks the run's record alone, so that nothing is refused after minutes of reading questions.
    """
    tuning = tuning or FineTuningConfig()
    run = run_to_start_from(work, base)
    is_fitted = bool(run.base_id)
    if tuning.prepended and is_fitted:
        raise ConfigError(
            f"{base} is fitted to a base whose own weights never change, and would learn nothing from "
            "its prompt; expected a model of retro's own; leave out --prepended, and read passages in the "
            "prompt when it answers: --reading prompt"
        )
    if tuning.dropout and is_fitted:
        raise ConfigError(
            f"dropout is {tuning.dropout}, and {base} is fitted to a base, which stays as it is; expected 0; "
            "leave out --dropout"
        )
    if tuning.frozen and not run.retrieves:
        raise ConfigError(
            f"{base} has no cross-attention, and frozen would learn nothing; expected a RETRO; "
            "leave out --frozen"
        )
    if tuning.dropout is not None:
        return tuning
    return dataclasses.replace(tuning, dropout=0.0 if is_fitted else DROPOUT)


def with_searched(
    work: Workspace,
    name: str,
    questions: Sequence[Question],
    shown: ShownConfig,
    config: TrainingConfig,
    command: str,
    progress: Progress = no_progress,
    warn: Callable[[str], None] = no_warning,
) -> list[Question]:
    """The questions of the set called `name` with passages that are searched for, as they are to be shown.

    The search is kept in the workspace, and runs that need no more of it read the same. Nothing that the
    workspace holds out is found, so that nothing is learned of what will be tested.
    """
    path = work.path / "questions" / name / shown.search
    stores = work.corpus().stores()
    held_out = [store for split, store in stores.items() if split != "train"]
    # Some of what is found holds the answer, and is left out.
    k = 2 * config.num_neighbours
    searched = search_passages(questions, work.datastore, path, shown.search, k, command, progress, held_out)
    version = work.datastore().snapshot().version
    if searched.inputs["datastore"] != version.lineage:
        warn(
            f"{path} was searched for in version {searched.counts[VERSION]} of the datastore, which is at "
            f"{version.number} now; to search it anew, remove that folder"
        )
    found = found_passages(searched, questions)
    filled = show_found(questions, found, shown, config.num_neighbours, config.vary_neighbours, config.seed)
    if number := num_without_answer(filled):
        warn(
            f"{number:,} of {counted(len(filled), 'question')} are shown no passage that holds the answer; "
            "to say nothing is learned"
        )
    return filled


def finetune(
    work: Workspace,
    name: str,
    base: str,
    questions: Sequence[Question],
    config: TrainingConfig,
    tuning: FineTuningConfig | None = None,
    valid: Sequence[Question] = (),
    progress: Progress = no_progress,
    warn: Callable[[str], None] = no_warning,
) -> tuple[TrainableModel, Artifact]:
    """Fine-tune a run of the workspace, or a run's folder with its tokenizer,
    into the run `name`.

    The model reads the first `num_neighbours` passages of each question. `seq_len` is the
    most tokens that a question with its answer may have.
    """
    path = work.run_path(name)
    tuning = settled(work, base, tuning)
    model, run = base_of(work, base)
    assert tuning.dropout is not None
    model.set_dropout(tuning.dropout)
    if tuning.frozen:
        model.freeze_all_but_retrieval()
    reads = (model.facts.retrieves or tuning.prepended) and not tuning.closed_book
    k = config.num_neighbours if reads else 0
    kind = PromptFormat if tuning.prepended else Format
    form = kind(Tokenizer.open(work.tokenizer_path), model.facts.chunk_len)
    shown = in_view(questions, form) if k else questions
    batches = QuestionBatches(shown, form, config.batch_size, k, config.seed, config.seq_len)
    held_out = in_view(valid, form) if k else valid
    # Seed 0 whatever the run's seed, so that losses can be compared.
    validation = QuestionBatches(held_out, form, config.batch_size, k, 0, config.seq_len) if valid else None
    if batches.num_long:
        warn(f"{counted(batches.num_long, 'question')} left out: longer than seq_len")
    if num_cut := form.num_cut(questions, k):
        warn(f"{counted(num_cut, 'passage')} cut")
    # The questions are part of the run's identity: with others, an unfinished
    # training is refused.
    store = work.corpus().train
    everything = [dataclasses.asdict(question) for question in (*questions, *valid)]
    inputs = {
        "tokens": store.fingerprint,
        "tokenizer": store.tokenizer_fingerprint,
        "baseline": file_checksum(run.path / WEIGHTS),
        "questions": make_fingerprint(everything, _identity(tuning)),
    }
    # Speed is counted in tokens, by the longest question that occurs, not the longest allowed.
    config = dataclasses.replace(config, seq_len=batches.seq_len)
    origin = Origin(tokenizer=work.tokenizer_path)
    artifact = train(model, batches, config, path, inputs, validation, progress, origin=origin)
    return load(artifact.path), artifact


def _identity(tuning: FineTuningConfig) -> dict[str, Any]:
    """The settings as they have always been written; what came later is named only where it is used."""
    settings = dataclasses.asdict(tuning)
    if not tuning.prepended:
        del settings["prepended"]
    return settings


def in_view(questions: Sequence[Question], form: Format) -> list[Question]:
    """The questions with, of each passage that would be cut, the piece with an answer, or else the first.

    A model that is shown only what stands before the answer would learn to make answers up.
    """

    # Many questions are about the same passage.
    pieces_of = functools.cache(form.pieces)

    def piece(passage: Passage, answers: Sequence[str]) -> Passage:
        pieces = pieces_of(passage)
        return next((part for part in pieces if holds_answer(part, answers)), pieces[0])

    return [
        dataclasses.replace(
            question,
            passages=tuple(piece(passage, to_learn(question)) for passage in question.passages),
        )
        for question in questions
    ]


def split(questions: Sequence[Question], fractions: Sequence[float], seed: int = 0) -> list[list[Question]]:
    """Split the questions into parts; the last takes the rest.

    Equal questions go into the same part, and stay there when others are added.
    """
    bounds = np.cumsum(fractions)
    parts: list[list[Question]] = [[] for _ in range(len(bounds) + 1)]
    for question in questions:
        # A hash of the text as a number from 0 to 1; the bounds that it lies
        # between name the part.
        place = int(make_fingerprint(seed, " ".join(question.text.lower().split())), 16) / 16**16
        parts[int(np.searchsorted(bounds, place, side="right"))].append(question)
    return parts


@dataclasses.dataclass(frozen=True)
class Experiment:
    """The result of fine-tuning and its test."""

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
    """Split the questions, add distractors, fine-tune, and answer the test
    questions in every way.

    `fractions` are the parts for test and validation. Distractors come from the datastore. A
    `baseline`, if named, is also fine-tuned, closed book, on the same questions. The numbers
    go to `evaluations/NAME.json`.
    """
    known = [question for question in questions if question.answers and question.passages]
    parts = split(known, fractions)
    if not all(parts):
        raise DataError(
            f"{counted(len(known), 'question')} with answers and passages: a split stays empty; "
            "expected more, or other fractions"
        )
    k = config.num_neighbours
    source = from_datastore(work.datastore(), 2 * k)  # some will hold the answer, and are left out
    test, valid, train_part = (
        show_found(part, source(part), ShownConfig(), k) if k > 1 else part for part in parts
    )
    model, _ = finetune(work, name, base, train_part, config, tuning, valid, progress)
    closed = None
    if baseline:
        without = FineTuningConfig(closed_book=True)
        closed, _ = finetune(work, f"{name}-closed", baseline, train_part, config, without, valid)
    answerer = Answerer(model, Tokenizer.open(work.tokenizer_path), own_passages(k))
    found = Experiment(len(train_part), len(valid), len(test), compare(answerer, test, closed))
    path = work.path / "evaluations" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    write_json(path, dataclasses.asdict(found))
    return found
