"""Scoring and inspecting a run: on a split, on any documents, in a task, or beside kNN-LM.

Every function takes an open run, so a run from elsewhere is scored like one of the workspace.
"""

import dataclasses
import shlex
from contextlib import closing
from pathlib import Path

import numpy as np

from retro import catalogue
from retro.card import write_card
from retro.comparators.knn_lm import KnnEvaluation, evaluate_knn
from retro.config import EvaluationConfig, KnnConfig
from retro.corpus.readers import FieldMap
from retro.errors import ArtifactError
from retro.machine import best_device
from retro.model.protocol import LanguageModel
from retro.model.weights import RECORD
from retro.retrieval.chunks import content_hashes
from retro.retrieval.neighbours import Neighbours
from retro.retrieval.pinned import open_pinned
from retro.retrieval.retriever import Retriever
from retro.retrieval.thinning import uniform
from retro.run import Run
from retro.scoring import tasks
from retro.scoring.evaluate import NEIGHBOURS, Evaluation, evaluate, expect_documents
from retro.scoring.inspection import DocumentGain, InspectedDocument, find_document, inspect_document
from retro.scoring.inspection import document_gains as gains_of
from retro.scoring.sets import EvaluationSet, make_set, name_of
from retro.scoring.tasks import TaskResult, source_of
from retro.stages.executor import Executor, LocalExecutor
from retro.stages.hints import with_paths
from retro.stages.progress import Progress, no_progress
from retro.workspace import OpenRun


@dataclasses.dataclass(frozen=True)
class RunModel:
    """The model of a run, as a worker opens it."""

    path: Path
    fingerprint: str

    def __call__(self) -> LanguageModel:
        run = Run(self.path)
        if run.fingerprint != self.fingerprint:
            raise ArtifactError(
                f"{self.path} is another run than {self.fingerprint}, which is being scored; expected the "
                "same on every machine; run the same command again"
            )
        return run.load().to(best_device())

    @staticmethod
    def of(opened: OpenRun, executor: Executor) -> "RunModel":
        """The model of an open run, which the executor's workers then have to see."""
        executor.needs(None, opened.path, opened.path / RECORD)
        return RunModel(opened.path.absolute(), opened.run.fingerprint)


def evaluate_split(
    opened: OpenRun,
    split: str,
    config: EvaluationConfig,
    progress: Progress = no_progress,
    executor: Executor | None = None,
) -> Evaluation:
    """Score a run on a split of its workspace, without retrieval and with each
    k of the config."""
    model = opened.model
    path = opened.evaluation_path(split)
    neighbours = opened.neighbours(split)
    command = _command(opened, split, "")
    with closing(executor or LocalExecutor(1)) as workers:
        found = evaluate(
            model,
            opened.run.fingerprint,
            neighbours,
            path,
            config,
            progress,
            command=command,
            executor=workers,
            opening=RunModel.of(opened, workers),
        )
    if opened.is_at_home:
        write_card(opened.path, _scores(found, split))
    return found


def _scores(evaluation: Evaluation, split: str) -> dict[str, str]:
    """Bits per byte of every mode, for the run's card."""
    values = {mode: evaluation.metrics(mode).bits_per_byte for mode in evaluation.modes}
    return {
        f"{split}, retrieval {mode}": f"{value.estimate:.4f} ({value.low:.4f} – {value.high:.4f})"
        for mode, value in values.items()
    }


def evaluation_set(
    opened: OpenRun,
    source: str,
    fields: FieldMap | None = None,
    progress: Progress = no_progress,
    executor: Executor | None = None,
) -> EvaluationSet:
    """Documents from anywhere, tokenised for the run, with their neighbours.

    A source is a name in the catalogue (`wikitext-2@test`), which is fetched if it is not here, a file or a
    folder.
    """
    catalogue.fetch_if_missing(source.partition("@")[0], progress)
    path = opened.set_path(source, fields)
    command = _command(opened, "", source)
    training = opened.training_text()
    return make_set(source, path, opened.datastore(), training, fields, progress, command, executor)


def evaluate_set(
    opened: OpenRun,
    found: EvaluationSet,
    config: EvaluationConfig,
    progress: Progress = no_progress,
    executor: Executor | None = None,
) -> Evaluation:
    """Score a run on an evaluation set.

    The results say how many of its documents were seen in training or can be retrieved.
    """
    path = opened.evaluation_path(found.name)
    # Kept with the results, so that a score is never read without them.
    facts = {"seen": dataclasses.asdict(found.seen)}
    command = _command(opened, "", found.source)
    with closing(executor or LocalExecutor(1)) as workers:
        return evaluate(
            opened.model,
            opened.run.fingerprint,
            found.neighbours,
            path,
            config,
            progress,
            facts,
            command,
            workers,
            RunModel.of(opened, workers),
        )


def evaluate_task(
    opened: OpenRun,
    task: str,
    config: EvaluationConfig,
    source: str = "",
    progress: Progress = no_progress,
) -> TaskResult:
    """Score a run on a task with prompts and targets, with neighbours from the live
    datastore."""
    source = source_of(task, source)
    catalogue.fetch_if_missing(source.partition("@")[0], progress)
    return tasks.evaluate_task(
        task,
        source,
        opened.model,
        opened.run.fingerprint,
        Retriever(opened.datastore()),
        opened.training_text(),
        opened.evaluation_path(name_of_task(task, source)),
        config,
        progress,
    )


def name_of_task(task: str, source: str = "") -> str:
    """The name of a task's scores: its own on its own data (lambada), with the data's name on others."""
    source = source_of(task, source)
    return task if name_of(source) == task else f"{task}-{name_of(source)}"


@dataclasses.dataclass(frozen=True)
class Evaluated:
    """A finished evaluation, with the documents and neighbours that it scored."""

    evaluation: Evaluation
    neighbours: Neighbours


def open_evaluation(
    opened: OpenRun, split: str = "test", source: str = "", fields: FieldMap | None = None
) -> Evaluated:
    """Open the finished evaluation of a run on a split, or on a source.

    It must belong to the run's current weights. Its neighbours are those that it was made with.
    """
    documents = opened.set_path(source, fields).name if source else split
    path = opened.evaluation_path(documents)
    command = _command(opened, split, source)
    if not path.exists():
        raise ArtifactError(
            f"{path} does not exist; expected the evaluation of {opened.name!r} on {documents}; "
            f"run: {command}"
        )
    # Before the run is opened: a user without an evaluation is told to evaluate, and that
    # command says what else is missing.
    evaluation = Evaluation.open(path)
    neighbours = _evaluated_neighbours(opened, path, split, source, fields, command)
    evaluation.expect(opened.run.fingerprint, neighbours, command)
    return Evaluated(evaluation, neighbours)


def _evaluated_neighbours(
    opened: OpenRun, path: Path, split: str, source: str, fields: FieldMap | None, command: str
) -> Neighbours:
    """The neighbours that an evaluation used, whatever was added to the datastore since."""
    if source:
        # If none are pinned, today's are used; the caller checks that they are the same.
        today = evaluation_set(opened, source, fields).neighbours
        expect_documents(path, today.store, command)
        return open_pinned(path / NEIGHBOURS, today.store, today.datastore) or today
    expect_documents(path, opened.store(split), command)
    pinned = open_pinned(path / NEIGHBOURS, opened.store(split), opened.datastore())
    return pinned or opened.neighbours(split)


def _command(opened: OpenRun, split: str, source: str) -> str:
    """The command that makes an evaluation, with the user's own paths."""
    words = ["retro", "evaluate"]
    if opened.work is None:
        words += [str(opened.path)]
    else:
        # A run of the workspace goes by its name, any other by its path.
        inside = opened.path.parent == opened.work.path / "runs"
        words += [str(opened.work.path), opened.name if inside else str(opened.path)]
    words += ["--on", source] if source else ["--split", split]
    if opened.datastore_path is not None:
        words += ["--datastore", str(opened.datastore_path)]
    if opened.out is not None:
        words += ["--out", str(opened.out)]
    return shlex.join(words)


def document_gains(found: Evaluated, num_neighbours: int = 2) -> list[DocumentGain]:
    """What retrieval saved on each document of an evaluation, largest gain first."""
    return gains_of(found.evaluation, found.neighbours.store, num_neighbours)


def inspect(
    opened: OpenRun, found: Evaluated, num_neighbours: int = 2, document: str = ""
) -> InspectedDocument:
    """Inspect a document of an evaluation: by its id, or the one with the largest gain.

    It is scored with the evaluation's windows.
    """
    evaluation = found.evaluation
    if document:
        command = with_paths("retro inspect WORK RUN --list", evaluation.artifact.path)
        number = find_document(found.neighbours.store, document, command)
    else:
        number = document_gains(found, num_neighbours)[0].number
    return inspect_document(opened.model, found.neighbours, number, num_neighbours, evaluation.config)


def knn_lm(
    opened: OpenRun,
    config: KnnConfig,
    evaluation: EvaluationConfig,
    split: str = "test",
    tune_on: str = "valid",
    progress: Progress = no_progress,
    part: float = 1.0,
) -> KnnEvaluation:
    """Score a run, usually a baseline, as kNN-LM over the training tokens and with a cache.

    Both are tuned on another split than the one reported. With a `part`, the memory holds only the documents
    that a datastore thinned to that part has.
    """
    model = opened.model  # before the stores: a run that is not there is what a user should hear of first
    memory, tuned_on, reported = opened.store("train"), opened.store(tune_on), opened.store(split)
    assert opened.work is not None  # or there would be no stores
    path = opened.work.path / "knn" / opened.name
    if part < 1.0:
        memory = memory.select(np.flatnonzero(uniform(content_hashes(memory), seed=0) < part).tolist())
        path = path.with_name(f"{opened.name}-{part:g}")
    return evaluate_knn(
        model, opened.run.fingerprint, memory, tuned_on, reported, path, config, evaluation, progress
    )
