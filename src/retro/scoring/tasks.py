"""Tasks with a prompt and a target, as a stage: a run is scored without retrieval and with several k.

LAMBADA asks for the last word of a passage. Summaries are scored as the paper scores those of
the Curation Corpus: article, "TL;DR:", summary, and only the summary counts.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from retro.config import EvaluationConfig
from retro.corpus.documents import Document
from retro.corpus.readers import FieldMap
from retro.corpus.tokens import TokenStore
from retro.errors import ConfigError, DataError
from retro.model.protocol import LanguageModel
from retro.retrieval.chunks import short_hash
from retro.retrieval.retriever import Retriever
from retro.scoring.evaluate import OFF, VERSION, on
from retro.scoring.intervals import Interval, bootstrap_ratio
from retro.scoring.sets import Seen, documents_of, find_seen, source_fingerprint
from retro.scoring.targets import TargetScores, encode_pair, score_targets
from retro.stages.progress import Progress, no_progress
from retro.stages.stage import MANIFEST, Artifact, Stage, recorded_inputs, run_stage

LAMBADA = "lambada"
"""The name of LAMBADA's test passages in the catalogue, and of the task."""
SUMMARY_MARK = "\n\nTL;DR:"
SUMMARY_FIELDS = FieldMap(text="article", title="summary")
"""The summary is read as the title, so that every format the readers know can be used."""


def last_words(source: str = LAMBADA) -> Iterator[tuple[str, str]]:
    """For each document, the text before its last word, and the last word with the space before it."""
    for document in documents_of(source):
        prompt, space, word = document.text.rstrip().rpartition(" ")
        if not prompt.strip():
            raise DataError(
                f"{source}: document {document.id} has fewer than two words; "
                "expected a passage and its last word; remove it from the source"
            )
        yield prompt, space + word


def last_word_metrics(scores: TargetScores) -> dict[str, Interval]:
    """The part of the words that greedy generation gets entirely right, and the perplexity of a word."""
    # One word per target.
    words = np.ones(len(scores.bits))
    return {
        "accuracy": bootstrap_ratio(scores.greedy.astype(np.float64), words),
        "perplexity of a word": scores.perplexity(words),
    }


def summary_pairs(source: str) -> Iterator[tuple[str, str]]:
    """Prompts and summaries from records with the fields `article` and `summary`, in any format we read."""
    for document in documents_of(source, SUMMARY_FIELDS):
        if not document.title.strip():
            raise DataError(
                f"{source}: record {document.id} has no summary; "
                "expected the fields article and summary in each; remove it from the source"
            )
        yield document.text.rstrip() + SUMMARY_MARK, " " + document.title.strip()


def summary_metrics(scores: TargetScores) -> dict[str, Interval]:
    return {
        "bits per byte": scores.bits_per_byte,
        "perplexity of a token": scores.perplexity(scores.num_tokens),
    }


@dataclass(frozen=True)
class Task:
    """What is asked, and what is reported about the answers."""

    pairs: Callable[[str], Iterator[tuple[str, str]]]
    """The prompts and targets of a source."""
    metrics: Callable[[TargetScores], dict[str, Interval]]
    source: str = ""
    """The source that is read if none is named."""


TASKS = {
    LAMBADA: Task(last_words, last_word_metrics, LAMBADA),
    "summaries": Task(summary_pairs, summary_metrics),
}


@dataclass(frozen=True)
class TaskResult:
    """The metrics of every mode, and how many of the items were seen before."""

    artifact: Artifact
    modes: dict[str, dict[str, Interval]]
    seen: Seen

    @staticmethod
    def read(artifact: Artifact) -> "TaskResult":
        results = json.loads(artifact.file("results.json").read_text())
        modes = {
            mode: {name: Interval(**value) for name, value in metrics.items()}
            for mode, metrics in results["modes"].items()
        }
        return TaskResult(artifact, modes, Seen.read(results["seen"]))


def source_of(task: str, source: str = "") -> str:
    """The named source, or the task's own if none is named."""
    if task not in TASKS:
        raise ConfigError(f"there is no task {task!r}; expected one of {', '.join(TASKS)}")
    if not (source or TASKS[task].source):
        raise ConfigError(f"the task {task} has no data of its own; expected a source; name it with --on")
    return source or TASKS[task].source


def evaluate_task(
    task: str,
    source: str,
    model: LanguageModel,
    model_fingerprint: str,
    retriever: Retriever,
    training: TokenStore | None,
    path: Path,
    config: EvaluationConfig,
    progress: Progress = no_progress,
) -> TaskResult:
    """Score a run on a task, and write the metrics and every item's scores below `path`.

    Scores made with an earlier version of the datastore are kept; their counts name the
    version. What they say was seen before was seen in that version and in the text of that time.
    """
    version = retriever.datastore.snapshot().version
    # k = 0 is scoring without retrieval, which is all that a baseline has.
    ks = (0, *(config.num_neighbours if model.facts.retrieves else ()))

    def work(stage: Stage) -> None:
        pairs = list(TASKS[task].pairs(source))
        items = [encode_pair(retriever.tokenizer, *pair) for pair in pairs]
        by_k = score_targets(model, items, config, ks, retriever, progress)
        scores = {on(k) if k else OFF: found for k, found in by_k.items()}
        texts = (Document("", prompt + target, "") for prompt, target in pairs)
        # An item is hashed as a document with the same text, so that it can be found among
        # documents.
        hashes = np.array([short_hash(text.content_hash) for text in texts], dtype=np.uint64)
        # Items have no ids, so they are identified by their place in the source.
        numbers = [str(number) for number in range(len(items))]
        seen = find_seen(numbers, hashes, [item.tokens for item in items], retriever.datastore, training)
        _write(stage, TASKS[task], scores, seen)
        stage.counts.update(items=len(items), tokens=int(sum(len(item.tokens) for item in items)))
        stage.counts[VERSION] = version.number

    # A finished task keeps the datastore's lineage and the training text it was scored with, so it
    # is not refused when these have changed since.
    known = _scored_with(path)
    inputs = {
        "model": model_fingerprint,
        "source": source_fingerprint(source),
        "datastore": known.get("datastore") or version.lineage,
    }
    if training is not None:
        inputs["training"] = known.get("training") or training.fingerprint
    settings = {**config.settings(), "task": task}
    command = f"retro evaluate WORK RUN --task {task}"
    return TaskResult.read(run_stage(path, "task", settings, inputs, work, command))


def _scored_with(path: Path) -> dict[str, str]:
    """What a finished task was scored with; nothing if it is not finished."""
    return recorded_inputs(path) if (path / MANIFEST).exists() else {}


def _write(stage: Stage, task: Task, scores: dict[str, TargetScores], seen: Seen) -> None:
    """Write every item's scores and every mode's metrics."""
    arrays: dict[str, np.ndarray] = {}
    modes: dict[str, dict[str, dict[str, float]]] = {}
    for mode, found in scores.items():
        arrays |= {f"bits/{mode}": found.bits, f"greedy/{mode}": found.greedy}
        modes[mode] = {name: asdict(value) for name, value in task.metrics(found).items()}
    with stage.write("scores.npz") as file:
        np.savez(file, allow_pickle=False, **arrays)
    with stage.write("results.json") as file:
        file.write(json.dumps({"modes": modes, "seen": asdict(seen)}, indent=2).encode())
