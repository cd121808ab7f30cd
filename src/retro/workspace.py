"""One folder with everything of a project: tokenizer, tokens, datastore, neighbours, runs, evaluations.

The stages find each other here, so that a user names one folder instead of six. Commands and the demo are thin shells over it.
"""

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from retro.comparators.knn_lm import KnnEvaluation, evaluate_knn
from retro.config import (
    DatastoreConfig,
    EvaluationConfig,
    KnnConfig,
    ModelConfig,
    RetrievalConfig,
    TrainingConfig,
)
from retro.corpus.ingest import CorpusWorkspace
from retro.corpus.readers import FieldMap
from retro.corpus.tokenizers.tokenizer import Tokenizer
from retro.corpus.tokens import TokenStore
from retro.errors import ArtifactError, ConfigError
from retro.fitting.baseline import retrofit
from retro.generation.sampler import Sampler
from retro.generation.search import Passages
from retro.machine import best_device
from retro.model.protocol import LanguageModel, ModelFacts, TrainableModel
from retro.model.weights import WEIGHTS
from retro.retrieval.datastore.build import build_datastore
from retro.retrieval.datastore.datastore import Datastore
from retro.retrieval.neighbours import Neighbours, find_neighbours
from retro.retrieval.pinned import open_pinned
from retro.retrieval.retriever import Retriever
from retro.retrieval.thinning import thinned_neighbours
from retro.run import Origin, load, make_model
from retro.scoring.evaluate import NEIGHBOURS, Evaluation, evaluate, evaluation_folder
from retro.scoring.inspection import (
    DocumentGain,
    InspectedDocument,
    document_gains,
    find_document,
    inspect_document,
)
from retro.scoring.sets import EvaluationSet, make_set, name_of, set_folder
from retro.scoring.tasks import TaskResult, evaluate_task, source_of
from retro.stages.executor import Executor
from retro.stages.files import file_checksum
from retro.stages.progress import Progress, no_progress
from retro.stages.stage import MANIFEST, Artifact, open_artifact
from retro.training.batches import PackedBatches
from retro.training.loop import train


class Workspace(CorpusWorkspace):
    """All stages of one project. Each method finishes one folder, or opens it if it is finished."""

    def __init__(self, path: Path, executor: Executor | None = None) -> None:
        super().__init__(path, executor)
        self.datastore_path = path / "datastore"
        self._datastore: Datastore | None = None

    def run_path(self, name: str) -> Path:
        return self.path / "runs" / name

    def neighbours_path(self, split: str) -> Path:
        return self.path / "neighbours" / split

    def evaluation_path(self, name: str, split: str) -> Path:
        return evaluation_folder(self.path, name, split)

    def build(
        self, config: DatastoreConfig, progress: Progress | None = None, also: Sequence[Path] = ()
    ) -> Datastore:
        """Embed and index the training chunks, with those of other token stores if any are named."""
        stores = [self.corpus().train, *map(TokenStore.open, also)]
        self._datastore = build_datastore(
            stores, self.tokenizer_path, self.datastore_path, config, progress, self.executor
        )
        return self._datastore

    def datastore(self) -> Datastore:
        if self._datastore is None:
            self._datastore = Datastore.open(self.datastore_path)
        return self._datastore

    def find_neighbours(self, split: str, progress: Progress | None = None) -> Neighbours:
        """Search the neighbours of one split's chunks in the datastore."""
        return find_neighbours(self.store(split), self.datastore(), self.neighbours_path(split), progress)

    def neighbours(self, split: str) -> Neighbours:
        store = self.store(split)
        if not self.neighbours_path(split).exists():
            raise ArtifactError(
                f"{self.neighbours_path(split)} does not exist; expected the neighbours of {split}; run: retro neighbours {self.path}"
            )
        return Neighbours.open(self.neighbours_path(split), store, self.datastore())

    def train(
        self,
        name: str,
        model_config: ModelConfig,
        config: TrainingConfig,
        progress: Progress | None = None,
    ) -> tuple[TrainableModel, Artifact]:
        """Train a model called `name`; the vocabulary is the corpus's. The weights' start depends on the seed alone."""
        store = self.corpus().train
        model_config = dataclasses.replace(
            model_config,
            vocab_size=store.artifact.counts["vocab_size"],
            pad_id=store.pad_id,
            end_id=store.end_id,
        )
        torch.manual_seed(config.seed)
        return self._train(name, make_model(model_config), config, {}, progress)

    def fit(
        self,
        name: str,
        baseline: str,
        fit: RetrievalConfig,
        config: TrainingConfig,
        progress: Progress | None = None,
    ) -> tuple[TrainableModel, Artifact]:
        """RETROfit a baseline, a run of this workspace or a model folder from elsewhere: its weights stay as they are."""
        model, folder = self.base(baseline)
        torch.manual_seed(config.seed)
        fitted = retrofit(model, fit)
        return self._train(name, fitted, config, {"baseline": file_checksum(folder / WEIGHTS)}, progress)

    def base(self, name: str) -> tuple[TrainableModel, Path]:
        """A model to go on from, with its folder: a run of this workspace, or a model folder from elsewhere with the same tokenizer."""
        folder = self.run_path(name) if self.run_path(name).exists() else Path(name)
        model = load(folder)
        self._expect_same_tokenizer(folder, model.facts)
        return model, folder

    def _train(
        self,
        name: str,
        model: TrainableModel,
        config: TrainingConfig,
        inputs: dict[str, str],
        progress: Progress | None,
    ) -> tuple[TrainableModel, Artifact]:
        corpus, m = self.corpus(), model.facts.chunk_len
        k = config.num_neighbours if model.facts.retrieves else 0
        if k and self.datastore().config.chunk_len != m:
            raise ConfigError(
                f"{self.datastore_path} has chunks of {self.datastore().config.chunk_len} tokens; expected the model's {m}"
            )
        neighbours = {split: self.neighbours(split) for split in corpus.stores() if k and split != "test"}

        def batches_of(store: TokenStore, split: str, seed: int, mixture: dict[str, float]) -> PackedBatches:
            return PackedBatches(
                store, m, config.seq_len, config.batch_size, seed, neighbours.get(split), k, mixture
            )

        batches = batches_of(corpus.train, "train", config.seed, config.mixture)
        validation = (
            batches_of(corpus.valid, "valid", 0, {}) if corpus.valid is not None else None
        )  # the same for every seed
        inputs = {
            "tokens": corpus.train.fingerprint,
            "tokenizer": corpus.train.tokenizer_fingerprint,
            **inputs,
        }
        if k:
            inputs["neighbours"] = neighbours["train"].fingerprint
        artifact = train(
            model,
            batches,
            config,
            self.run_path(name),
            inputs,
            validation,
            progress or no_progress,
            self._sampling(config, k),
            Origin(tokenizer=self.tokenizer_path, data=self._data_of(corpus.train)),
        )
        return load(artifact.path), artifact

    def _data_of(self, store: TokenStore) -> dict[str, Any]:
        """Documents, tokens and bytes of each source, for a run's card."""
        sizes: dict[str, Counter[str]] = {}
        for index, row in enumerate(store.documents):
            tokens = int(store.ends[index] - store.starts[index])
            counts = sizes.setdefault(row["source"], Counter())
            counts.update(documents=1, tokens=tokens, bytes=int(store.num_bytes[index]))
        return {source: dict(counts) for source, counts in sorted(sizes.items())}

    def _expect_same_tokenizer(self, folder: Path, found: ModelFacts) -> None:
        """Refuse a model of another vocabulary: its token ids would mean other text."""
        store = self.corpus().train
        vocab_size, manifest = store.artifact.counts["vocab_size"], folder / MANIFEST
        known = json.loads(manifest.read_text())["inputs"].get("tokenizer") if manifest.exists() else None
        if found.vocab_size != vocab_size or known not in (None, store.tokenizer_fingerprint):
            raise ArtifactError(
                f"{folder} was trained with another tokenizer ({found.vocab_size} tokens) than {self.tokenizer_path} ({vocab_size} tokens); "
                "expected the same; ingest this corpus with that tokenizer, or train a baseline here: retro train --baseline"
            )

    def _sampling(self, config: TrainingConfig, num_neighbours: int) -> Callable[[LanguageModel], str] | None:
        if not config.sample_every:
            return None
        retriever = Retriever(self.datastore(), num_neighbours or config.num_neighbours)

        def sample(model: LanguageModel) -> str:
            tokens = (
                Sampler(model, retriever)
                .generate(config.sample_prompt, max_tokens=config.sample_tokens)
                .tokens
            )
            return retriever.tokenizer.decode(tokens)

        return sample

    def model(self, name: str) -> tuple[TrainableModel, Artifact]:
        """A finished run's model, which must have been trained on this folder's tokens."""
        artifact = open_artifact(self.run_path(name), "run", f"retro train {self.path} --name {name}")
        corpus = self.corpus()
        if artifact.inputs["tokens"] != corpus.train.fingerprint:
            raise ArtifactError(
                f"{artifact.path} was trained on other tokens than {self.tokens_path} holds; expected the same; train it again"
            )
        return load(artifact.path).to(best_device()), artifact

    def evaluate(
        self, name: str, split: str, config: EvaluationConfig, progress: Progress = no_progress
    ) -> Evaluation:
        """Score a run on a split, without retrieval and with every k of the config."""
        model, artifact = self.model(name)
        return evaluate(
            model,
            artifact.fingerprint,
            self.neighbours(split),
            self.evaluation_path(name, split),
            config,
            progress,
        )

    def evaluation(self, name: str, split: str) -> Evaluation:
        """The finished evaluation of a run, which must be of its weights; with the neighbours that it was made with."""
        path = self.evaluation_path(name, split)
        command = f"retro evaluate {self.path} {name} --split {split}"
        if not path.exists():
            raise ArtifactError(
                f"{path} does not exist; expected the evaluation of {name!r} on {split}; run: {command}"
            )
        evaluation = Evaluation.open(path)
        evaluation.expect(self.model(name)[1].fingerprint, self.evaluated_neighbours(name, split), command)
        return evaluation

    def evaluated_neighbours(self, name: str, split: str) -> Neighbours:
        """The neighbours that a run was scored with, whatever was added to the datastore since."""
        folder = self.evaluation_path(name, split) / NEIGHBOURS
        return open_pinned(folder, self.store(split), self.datastore()) or self.neighbours(split)

    def document_gains(self, name: str, split: str, num_neighbours: int = 2) -> list[DocumentGain]:
        """What retrieval saved on every document of an evaluated split, the largest gain first."""
        return document_gains(self.evaluation(name, split), self.store(split), num_neighbours)

    def inspect_document(
        self, name: str, split: str, num_neighbours: int = 2, document: str = ""
    ) -> InspectedDocument:
        """A document of an evaluated split, by its id, or that with the largest gain; scored with the evaluation's windows."""
        evaluation, store = self.evaluation(name, split), self.store(split)
        number = (
            find_document(store, document)
            if document
            else document_gains(evaluation, store, num_neighbours)[0].number
        )
        neighbours = self.evaluated_neighbours(name, split)
        return inspect_document(self.model(name)[0], neighbours, number, num_neighbours, evaluation.config)

    def knn_lm(
        self,
        name: str,
        config: KnnConfig,
        evaluation: EvaluationConfig,
        split: str = "test",
        tune_on: str = "valid",
        progress: Progress = no_progress,
    ) -> KnnEvaluation:
        """A run, usually a baseline, as kNN-LM over the training tokens and with a continuous cache; tuned on another split."""
        model, artifact = self.model(name)
        stores = self.corpus().train, self.store(tune_on), self.store(split)
        return evaluate_knn(
            model, artifact.fingerprint, *stores, self.path / "knn" / name, config, evaluation, progress
        )

    def thinned_neighbours(
        self,
        split: str,
        fractions: Sequence[float],
        k: int = 0,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> dict[float, Neighbours]:
        """Exact neighbours of a split's chunks in random parts of the datastore, by the part; k of each, 0: as many as are saved."""
        folder = self.path / "thinned" / split
        return thinned_neighbours(self.store(split), self.datastore(), folder, fractions, k, seed, progress)

    def evaluation_set(
        self, source: str, fields: FieldMap | None = None, progress: Progress = no_progress
    ) -> EvaluationSet:
        """Documents from anywhere (`wikitext-2@test`, a file, a folder) as tokens and neighbours of this workspace."""
        return make_set(
            source,
            set_folder(self.path / "sets", source, fields),
            self.datastore(),
            self.corpus().train,
            fields,
            progress,
        )

    def evaluate_on(
        self, name: str, found: EvaluationSet, config: EvaluationConfig, progress: Progress = no_progress
    ) -> Evaluation:
        """Score a run on an evaluation set; the results tell how many of its documents were seen in training or can be retrieved."""
        model, artifact = self.model(name)
        path, facts = self.evaluation_path(name, found.name), {"seen": dataclasses.asdict(found.seen)}
        return evaluate(model, artifact.fingerprint, found.neighbours, path, config, progress, facts)

    def evaluate_task(
        self,
        name: str,
        task: str,
        config: EvaluationConfig,
        source: str = "",
        progress: Progress = no_progress,
    ) -> TaskResult:
        """Score a run on a task with prompts and targets, with neighbours from the live datastore."""
        source = source_of(task, source)
        model, artifact = self.model(name)
        path = self.evaluation_path(name, task if name_of(source) == task else f"{task}-{name_of(source)}")
        retriever, training = Retriever(self.datastore()), self.corpus().train
        return evaluate_task(
            task, source, model, artifact.fingerprint, retriever, training, path, config, progress
        )

    def sampler(
        self,
        name: str,
        num_neighbours: int = 2,
        retrieval: bool = True,
        passages: Sequence[str] = (),
        window: int = 0,
    ) -> Sampler:
        """A sampler of a run, with the datastore or given passages behind it; a baseline needs neither."""
        model, _ = self.model(name)
        tokenizer = Tokenizer.open(self.tokenizer_path)
        if not retrieval or not model.facts.retrieves:
            return Sampler(model, tokenizer=tokenizer, window=window)
        given = Passages(passages, tokenizer, model.facts.chunk_len) if passages else None
        return Sampler(model, given or Retriever(self.datastore(), num_neighbours), window=window)
