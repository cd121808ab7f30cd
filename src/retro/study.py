"""A workspace taken from text to scored models, with progress and time for every part.

The demo, a study of anybody's text and the paper's experiments are studies: a folder, a run's
config and its sources. What is finished is reused.
"""

import copy
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from retro import catalogue
from retro.config import EvaluationConfig, ModelConfig, RetrievalConfig, RunConfig, TrainingConfig
from retro.config.fit import FitConfig
from retro.corpus.documents import SPLITS
from retro.corpus.ingest import ingest
from retro.corpus.pack import REPORT
from retro.corpus.readers import FieldMap
from retro.jobs.retrieval import build, find_neighbours, sync_sources
from retro.jobs.scoring import evaluate_split
from retro.jobs.training import fit_base, fit_further, fit_run, train_run
from retro.retrieval.neighbours import Neighbours
from retro.scoring.bits_per_byte import score
from retro.scoring.evaluate import Evaluation
from retro.stages.files import write_json
from retro.stages.progress import Narrator, Progress
from retro.stages.stage import Artifact, Stage, run_stage
from retro.training.announcement import announced, epoch_tokens
from retro.training.metrics import METRICS, curve, read_metrics
from retro.workspace import OpenRun, Workspace

BITS = "documents.npy"


class Clock:
    """Seconds of every part, kept in a file, as a part may have finished in an earlier run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seconds = self._kept()

    @contextmanager
    def part(self, name: str, finished: Path) -> Iterator[None]:
        """Add the time of the block to the part, unless the part was `finished` before."""
        # An interrupted part has no `finished` yet, so its time adds up.
        was_finished = finished.exists() and name in self.seconds
        started = time.perf_counter()
        yield
        if not was_finished:
            self.add(name, time.perf_counter() - started)

    def add(self, name: str, seconds: float) -> None:
        """Add to the time of a part."""
        # Read again: another experiment of the same study may have noted its own parts since.
        self.seconds |= self._kept()
        self.seconds[name] = round(self.seconds.get(name, 0.0) + seconds, 1)
        write_json(self.path, self.seconds)

    def _kept(self) -> dict[str, float]:
        kept: dict[str, float] = json.loads(self.path.read_text()) if self.path.exists() else {}
        return kept


class Study:
    """One folder, one run's config and its sources. Every method reuses what is finished."""

    def __init__(
        self,
        folder: Path,
        run: RunConfig,
        sources: Sequence[str],
        narrator: Narrator,
        fields: FieldMap | None = None,
        strict: bool = True,
        say: Callable[[str], None] = lambda line: None,
        memory: Sequence[str] = (),
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.run = run
        self.sources = tuple(sources)
        self.memory = tuple(memory)
        """Sources that only the datastore holds, besides the training text."""
        self.narrator = narrator
        self.fields = fields
        """Which fields of a record hold what, for sources of records."""
        self.strict = strict
        """Whether a record that cannot be read stops the study; else it is skipped and listed."""
        self.say = say
        """Where a line goes that people should see before a training."""
        self.work = Workspace(folder)
        self.clock = Clock(folder / "seconds.json")
        self.used: dict[str, str] = {}
        """Fingerprints of what was opened."""
        self.suffix = ""
        """What the names of runs end with, if the study was begun with another seed."""

    @property
    def is_fitted(self) -> bool:
        """Whether its models stand on a pretrained base, whose tokenizer the corpus has."""
        return bool(self.run.corpus.tokenizer)

    def reseeded(self, seed: int) -> "Study":
        """The same study of the same data, whose models are trained with another seed as runs of their own.

        What it opens is noted with what this one opens.
        """
        other = copy.copy(self)
        other.run = replace(self.run, training=replace(self.run.training, seed=seed))
        other.suffix = f"-seed-{seed}"
        return other

    def run_name(self, name: str) -> str:
        """The name in the workspace of one of the study's runs."""
        return name + self.suffix

    @contextmanager
    def part(self, name: str, finished: Path, title: str) -> Iterator[Progress]:
        """Time a part and show its progress; it is done once the file or folder
        `finished` exists."""
        with self.clock.part(name, finished), self.narrator.progress(title) as progress:
            yield progress

    def prepare(self, splits: Sequence[str] = SPLITS) -> None:
        """Fetch, tokenise, build the datastore, find the neighbours of these splits."""
        work = self.work
        # Sources, embedders and bases may also be paths, which need no fetching.
        needed = (self.run.corpus.tokenizer, *self.sources, *self.memory, self.run.datastore.embedder)
        for name in [name for name in needed if name in catalogue.ENTRIES]:
            with self.part(f"fetch {name}", catalogue.folder_of(name), f"Fetching {name}") as progress:
                catalogue.fetch(name, progress)
        with self.part("tokens", work.tokens_path / REPORT, "Reading") as progress:
            corpus = ingest(
                work, list(self.sources), self.run.corpus, self.fields, self.strict, progress=progress
            )
        with self.part("datastore", work.datastore_path, "Embedding the datastore's chunks") as progress:
            datastore = build(work, self.run.datastore, progress=progress)
        if self.memory:
            with self.part("memory", work.datastore_path, "Embedding what only the memory holds") as progress:
                # What is there already stays: the documents of these sources are compared with their files.
                sync_sources(datastore, self.memory, self.fields, progress=progress)
        stores = corpus.stores()
        for split, store in [(split, stores[split]) for split in splits if split in stores]:
            title = f"Neighbours of {split}"
            with self.part(f"neighbours of {split}", work.neighbours_path(split), title) as progress:
                neighbours = find_neighbours(work, split, progress)
            self.used[f"tokens of {split}"] = store.fingerprint
            self.used[f"neighbours of {split}"] = neighbours.fingerprint
        # The lineage, since a version's number alone does not tell two datastores apart.
        self.used["datastore"] = datastore.snapshot().version.lineage

    def train(
        self, name: str, model: ModelConfig | None = None, training: TrainingConfig | None = None
    ) -> Artifact:
        """Train a run, by default with the study's own config; `baseline` is trained
        without retrieval."""
        model = model or (self.run.model.baseline() if name == "baseline" else self.run.model)
        training = replace(training or self.run.training, seed=self.run.training.seed)
        name = self.run_name(name)
        with self.part(f"train {name}", self.work.run_path(name), f"Training {name}") as progress:
            progress = self._announced(progress, training)
            artifact = train_run(self.work, name, model, training, progress)
        return self._note(name, artifact)

    def fit(self, name: str, num_steps: int, retrieval: RetrievalConfig | None = None) -> Artifact:
        """RETROfit the baseline, by default with what the study's own model has for retrieval."""
        self.train("baseline")
        training = self.run.training
        # A short fit would otherwise end while the learning rate is still rising.
        warmup_steps = min(training.warmup_steps, num_steps // 5)
        training = replace(training, num_steps=num_steps, warmup_steps=warmup_steps)
        retrieval = retrieval or self.run.model.retrieval or RetrievalConfig()
        name, baseline = self.run_name(name), self.run_name("baseline")
        with self.part(f"train {name}", self.work.run_path(name), f"Training {name}") as progress:
            progress = self._announced(progress, training)
            artifact = fit_run(self.work, name, baseline, retrieval, training, progress)
        return self._note(name, artifact)

    def fit_base(self, name: str) -> Artifact:
        """RETROfit the pretrained model whose tokenizer the corpus has, or what the config begins with."""
        training = self.run.training
        name = self.run_name(name)
        with self.part(f"fit {name}", self.work.run_path(name), f"Fitting {name}") as progress:
            progress = self._announced(progress, training)
            if self.run.start:
                artifact = fit_further(self.work, name, self.run.start, training, progress)
            else:
                base = self.run.corpus.tokenizer
                artifact = fit_base(self.work, name, base, FitConfig(), training, progress)
        return self._note(name, artifact)

    def _announced(self, progress: Progress, training: TrainingConfig) -> Progress:
        def num_tokens() -> int:
            return epoch_tokens(self.work.corpus().train, self.run.model.chunk_len)

        return announced(progress, self.say, training, num_tokens)

    def opened(self, name: str) -> OpenRun:
        """A finished run."""
        return self.work.run(self.run_name(name))

    def evaluate(self, name: str, config: EvaluationConfig | None = None) -> Evaluation:
        """Score a finished run on the test documents."""
        opened = self.opened(name)
        name = self.run_name(name)
        path = opened.evaluation_path("test")
        with self.part(f"evaluate {name}", path, f"Evaluating {name}") as progress:
            evaluation = evaluate_split(opened, "test", config or self.run.evaluation, progress)
        self._note(f"evaluation of {name}", evaluation.artifact)
        return evaluation

    def made(self, name: str) -> Artifact:
        """One of the study's own runs, trained, or fitted to its base."""
        return self.fit_base(name) if self.is_fitted else self.train(name)

    def evaluated(self, name: str) -> Evaluation:
        """Make and score one of the study's own runs."""
        self.made(name)
        return self.evaluate(name)

    def document_bits(self, name: str, label: str, neighbours: Neighbours, k: int) -> np.ndarray:
        """Bits of every document with given neighbours, kept under their own label."""
        opened = self.opened(name)
        name = self.run_name(name)
        store = neighbours.store

        def work(stage: Stage) -> None:
            with self.narrator.progress(f"Scoring {name}: {label}") as progress:
                scores = score(opened.model, store, self.run.evaluation, neighbours, k, progress)
            with stage.write(BITS) as file:
                np.save(file, scores.by_document())

        inputs = {
            "model": opened.run.fingerprint,
            "tokens": store.fingerprint,
            "neighbours": neighbours.fingerprint,
        }
        config = {"k": k, **self.run.evaluation.settings()}
        # A stage of its own, so that it is not scored again on the next run.
        path = self.folder / "scores" / f"{name}-{label}"
        artifact = run_stage(path, "scores", config, inputs, work, "retro reproduce")
        self._note(f"scores of {name}, {label}", artifact)
        bits: np.ndarray = np.load(artifact.file(BITS))
        return bits

    def curve(self, name: str, metric: str) -> tuple[list[int], list[float]]:
        """Tokens seen and values of a metric over a run."""
        return curve(read_metrics(self.work.run_path(self.run_name(name)) / METRICS), metric)

    def _note(self, name: str, artifact: Artifact) -> Artifact:
        self.used[name] = artifact.fingerprint
        return artifact
