"""A workspace brought from text to scored models, telling what it does, with the time of every part."""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from retro import catalogue
from retro.config import EvaluationConfig, ModelConfig, RetrievalConfig, RunConfig, TrainingConfig
from retro.config_json import to_dict
from retro.corpus.pack import REPORT
from retro.retrieval.neighbours import Neighbours
from retro.scoring.bits_per_byte import score
from retro.scoring.evaluate import Evaluation
from retro.stages.files import write_json
from retro.stages.progress import Narrator, Progress
from retro.stages.stage import Artifact, Stage, open_artifact, run_stage
from retro.training.metrics import METRICS, curve, read_metrics
from retro.workspace import Workspace

BITS = "documents.npy"


class Clock:
    """Seconds of every part; those of a part that was finished in an earlier run are kept from then."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seconds: dict[str, float] = json.loads(path.read_text()) if path.exists() else {}

    @contextmanager
    def part(self, name: str, finished: Path) -> Iterator[None]:
        was_finished, started = finished.exists() and name in self.seconds, time.perf_counter()
        yield
        if not was_finished:
            self.seconds[name] = round(self.seconds.get(name, 0.0) + time.perf_counter() - started, 1)
            write_json(self.path, self.seconds)


class Study:
    """One folder, one run's config and its sources. Every method reuses what is finished."""

    def __init__(self, folder: Path, run: RunConfig, sources: Sequence[str], narrator: Narrator) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.run, self.sources, self.narrator = folder, run, tuple(sources), narrator
        self.work, self.clock = Workspace(folder), Clock(folder / "seconds.json")
        self.used: dict[str, str] = {}
        """Fingerprints of what was opened."""

    def prepare(self) -> None:
        """Fetch, tokenise, build the datastore, find neighbours."""
        work, clock, narrator = self.work, self.clock, self.narrator
        for name in (
            name for name in (*self.sources, self.run.datastore.encoder) if name in catalogue.ENTRIES
        ):
            with (
                clock.part(f"fetch {name}", catalogue.folder_of(name)),
                narrator.progress(f"Fetching {name}") as told,
            ):
                catalogue.fetch(name, told)
        with clock.part("tokens", work.tokens_path / REPORT), narrator.progress("Reading") as told_step:
            corpus = work.ingest(list(self.sources), self.run.corpus, progress=told_step)
        with (
            clock.part("datastore", work.datastore_path),
            narrator.progress("Embedding the datastore's chunks") as told,
        ):
            datastore = work.build(self.run.datastore, told)
        for split, store in corpus.stores().items():
            with (
                clock.part(f"neighbours of {split}", work.neighbours_path(split)),
                narrator.progress(f"Neighbours of {split}") as told,
            ):
                neighbours = work.find_neighbours(split, told)
            self.used |= {
                f"tokens of {split}": store.fingerprint,
                f"neighbours of {split}": neighbours.fingerprint,
            }
        self.used["datastore"] = datastore.snapshot().version.lineage

    def train(
        self, name: str, model: ModelConfig | None = None, training: TrainingConfig | None = None
    ) -> Artifact:
        """Train a run, by default with the study's own config, and without retrieval if it is called baseline."""
        model = model or (self.run.model.baseline() if name == "baseline" else self.run.model)
        with self._training(name) as told:
            return self._note(name, self.work.train(name, model, training or self.run.training, told)[1])

    def fit(self, name: str, num_steps: int) -> Artifact:
        """RETROfit the baseline."""
        self.train("baseline")
        warmup = min(self.run.training.warmup_steps, num_steps // 5)
        training = replace(self.run.training, num_steps=num_steps, warmup_steps=warmup)
        with self._training(name) as told:
            return self._note(
                name,
                self.work.fit(
                    name, "baseline", self.run.model.retrieval or RetrievalConfig(), training, told
                )[1],
            )

    @contextmanager
    def _training(self, name: str) -> Iterator[Progress]:
        with (
            self.clock.part(f"train {name}", self.work.run_path(name)),
            self.narrator.progress(f"Training {name}") as told,
        ):
            yield told

    def evaluate(self, name: str, config: EvaluationConfig | None = None) -> Evaluation:
        """Score a finished run on the test documents."""
        path = self.work.evaluation_path(name, "test")
        with self.clock.part(f"evaluate {name}", path), self.narrator.progress(f"Evaluating {name}") as told:
            evaluation = self.work.evaluate(name, "test", config or self.run.evaluation, told)
        self._note(f"evaluation of {name}", evaluation.artifact)
        return evaluation

    def evaluated(self, name: str) -> Evaluation:
        """Train and score one of the study's own runs: baseline or retro."""
        self.train(name)
        return self.evaluate(name)

    def document_bits(self, name: str, label: str, neighbours: Neighbours, k: int) -> np.ndarray:
        """Bits of every document with given neighbours, kept under a label of their own."""
        model, run = self.work.model(name)

        def work(stage: Stage) -> None:
            with self.narrator.progress(f"Scoring {name}: {label}") as told:
                bits = score(model, neighbours.store, self.run.evaluation, neighbours, k, told).by_document()
            with stage.write(BITS) as file:
                np.save(file, bits)

        inputs = {
            "model": run.fingerprint,
            "tokens": neighbours.store.fingerprint,
            "neighbours": neighbours.fingerprint,
        }
        config = {"k": k, **to_dict(self.run.evaluation)}
        path = self.folder / "scores" / f"{name}-{label}"
        artifact = self._note(
            f"scores of {name}, {label}", run_stage(path, "scores", config, inputs, work, "retro reproduce")
        )
        bits: np.ndarray = np.load(artifact.file(BITS))
        return bits

    def curve(self, name: str, metric: str) -> tuple[list[int], list[float]]:
        """Tokens seen and values of a metric over a run."""
        return curve(read_metrics(self.work.run_path(name) / METRICS), metric)

    def run_artifact(self, name: str) -> Artifact:
        return open_artifact(self.work.run_path(name), "run", f"retro train {self.folder} --name {name}")

    def _note(self, name: str, artifact: Artifact) -> Artifact:
        self.used[name] = artifact.fingerprint
        return artifact
