"""Tasks with a prompt and a target, as a stage: a run scored without retrieval and with several k."""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from retro.config import EvaluationConfig
from retro.config_json import to_dict
from retro.corpus.documents import Document
from retro.corpus.tokens import TokenStore
from retro.errors import ConfigError
from retro.model.protocol import LanguageModel
from retro.retrieval.chunks import short_hash
from retro.retrieval.retriever import Retriever
from retro.scoring import lambada, summaries
from retro.scoring.evaluate import OFF, on
from retro.scoring.intervals import Interval
from retro.scoring.seen import Seen, find_seen
from retro.scoring.sets import source_fingerprint
from retro.scoring.targets import TargetScores, encode_pair, score_targets
from retro.stages.progress import Progress
from retro.stages.stage import Artifact, Stage, run_stage


@dataclass(frozen=True)
class Task:
    """What is asked, and what is told of the answers."""

    pairs: Callable[[str], Iterator[tuple[str, str]]]
    """The prompts and targets of a source."""
    metrics: Callable[[TargetScores], dict[str, Interval]]
    source: str = ""
    """What is read where nobody names a source."""


TASKS = {
    "lambada": Task(lambada.last_words, lambada.last_word_metrics, lambada.SOURCE),
    "summaries": Task(summaries.summary_pairs, summaries.summary_metrics),
}


@dataclass(frozen=True)
class TaskResult:
    """The metrics of every mode, and how many of the items are no news."""

    artifact: Artifact
    modes: dict[str, dict[str, Interval]]
    seen: Seen


def source_of(task: str, source: str = "") -> str:
    """The source that is named, or the task's own."""
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
    progress: Progress | None = None,
) -> TaskResult:
    """Score a run on a task, and write metrics and the scores of every item below `path`."""
    ks = (0, *(config.num_neighbours if model.facts.retrieves else ()))

    def work(stage: Stage) -> None:
        pairs = list(TASKS[task].pairs(source))
        items = [encode_pair(retriever.tokenizer, *pair) for pair in pairs]
        scores = {
            OFF if k == 0 else on(k): found
            for k, found in score_targets(model, items, config, ks, retriever, progress).items()
        }
        modes = {
            mode: {name: asdict(value) for name, value in TASKS[task].metrics(found).items()}
            for mode, found in scores.items()
        }
        hashes = np.array(
            [short_hash(Document("", prompt + target, "").content_hash) for prompt, target in pairs],
            dtype=np.uint64,
        )
        numbers = [str(number) for number in range(len(items))]
        seen = find_seen(numbers, hashes, [item.tokens for item in items], retriever.datastore, training)
        with stage.write("scores.npz") as file:
            arrays = {
                f"{name}/{mode}": getattr(found, name)
                for mode, found in scores.items()
                for name in ("bits", "greedy")
            }
            np.savez(file, allow_pickle=False, **arrays)
        with stage.write("results.json") as file:
            file.write(json.dumps({"modes": modes, "seen": asdict(seen)}, indent=2).encode())
        stage.counts.update(items=len(items), tokens=int(sum(len(item.tokens) for item in items)))

    inputs = {
        "model": model_fingerprint,
        "source": source_fingerprint(source),
        "datastore": retriever.datastore.snapshot().version.lineage,
    }
    if training is not None:
        inputs["training"] = training.fingerprint
    config_of = {**to_dict(config), "task": task}
    artifact = run_stage(path, "task", config_of, inputs, work, f"retro evaluate WORK RUN --task {task}")
    results = json.loads(artifact.file("results.json").read_text())
    modes = {
        mode: {name: Interval(**value) for name, value in metrics.items()}
        for mode, metrics in results["modes"].items()
    }
    return TaskResult(artifact, modes, Seen(**{**results["seen"], "ids": tuple(results["seen"]["ids"])}))
