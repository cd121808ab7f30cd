"""One folder with everything of a project: tokenizer, tokens, datastore, neighbours, runs, evaluations.

The stages find each other here, so that a user names one folder instead of six. Commands and the demo are thin shells over it.
"""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from retro.artifacts import Artifact, Progress, open_artifact
from retro.config import DatastoreConfig, EvaluationConfig, ModelConfig, TrainingConfig
from retro.corpus.tokenizer import Tokenizer
from retro.corpus.tokens import TokenStore
from retro.corpus.workspace import CorpusWorkspace
from retro.errors import ArtifactError, ConfigError
from retro.evaluation.evaluate import Evaluation, evaluate
from retro.evaluation.evaluate import Progress as ModeProgress
from retro.executor import Executor
from retro.model.checkpoint import load
from retro.model.retro import Retro
from retro.retrieval.datastore import Datastore, build_datastore
from retro.retrieval.neighbours import Neighbours, find_neighbours
from retro.retrieval.retriever import Retriever
from retro.sampling.sampler import Sampler
from retro.sampling.search import Passages
from retro.training.batches import PackedBatches
from retro.training.trainer import Report, train


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
        return self.path / "evaluations" / f"{name}-{split}"

    def build(self, config: DatastoreConfig, progress: Progress | None = None) -> Datastore:
        """Embed and index the training chunks."""
        self._datastore = build_datastore(self.corpus().train, self.tokenizer_path, self.datastore_path, config, progress)
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
        self, name: str, model_config: ModelConfig, config: TrainingConfig, progress: Callable[[Report], None] | None = None
    ) -> tuple[Retro, Artifact]:
        """Train a model called `name`; the vocabulary is the corpus's. The weights' start depends on the seed alone."""
        corpus = self.corpus()
        model_config = dataclasses.replace(model_config, vocab_size=corpus.train.artifact.counts["vocab_size"])
        k = config.num_neighbours if model_config.uses_retrieval else 0
        neighbours = {split: self.neighbours(split) for split in corpus.stores() if k and split != "test"}
        if k and self.datastore().config.chunk_len != model_config.chunk_len:
            raise ConfigError(
                f"{self.datastore_path} has chunks of {self.datastore().config.chunk_len} tokens; expected the model's {model_config.chunk_len}"
            )

        def batches_of(store: TokenStore, split: str, seed: int, mixture: dict[str, float]) -> PackedBatches:
            return PackedBatches(store, model_config.chunk_len, config.seq_len, config.batch_size, seed, neighbours.get(split), k, mixture)

        batches = batches_of(corpus.train, "train", config.seed, config.mixture)
        validation = batches_of(corpus.valid, "valid", 0, {}) if corpus.valid is not None else None  # the same for every seed
        torch.manual_seed(config.seed)
        model = Retro(model_config)
        inputs = {"tokens": corpus.train.fingerprint, **({"neighbours": neighbours["train"].artifact.fingerprint} if k else {})}
        return model, train(model, batches, config, self.run_path(name), inputs, validation, progress)

    def model(self, name: str) -> tuple[Retro, Artifact]:
        """A finished run's model, which must have been trained on this folder's tokens."""
        artifact = open_artifact(self.run_path(name), "run", f"retro train {self.path} --name {name}")
        corpus = self.corpus()
        if artifact.inputs["tokens"] != corpus.train.fingerprint:
            raise ArtifactError(
                f"{artifact.path} was trained on other tokens than {self.tokens_path} holds; expected the same; train it again"
            )
        return load(artifact.path), artifact

    def evaluate(self, name: str, split: str, config: EvaluationConfig, progress: ModeProgress | None = None) -> Evaluation:
        """Score a run on a split, without retrieval and with every k of the config."""
        model, artifact = self.model(name)
        return evaluate(model, artifact.fingerprint, self.neighbours(split), self.evaluation_path(name, split), config, progress)

    def sampler(
        self,
        name: str,
        num_neighbours: int = 2,
        exclude: Sequence[str] = (),
        retrieval: bool = True,
        passages: Sequence[str] = (),
        window: int = 0,
    ) -> Sampler:
        """A sampler of a run, with the datastore or given passages behind it; a baseline needs neither."""
        model, _ = self.model(name)
        tokenizer = Tokenizer.open(self.tokenizer_path)
        if not retrieval or not model.config.uses_retrieval:
            return Sampler(model, tokenizer=tokenizer, window=window)
        given = Passages(passages, tokenizer, model.config.chunk_len) if passages else None
        return Sampler(model, given or Retriever(self.datastore(), num_neighbours, exclude), window=window)
