"""One folder with everything of a project: tokenizer, tokens, datastore, neighbours, runs, evaluations.

The stages find each other here, so that a user names one folder instead of six. Commands and the demo are thin shells over it.
"""

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from retro.artifacts import MANIFEST, Artifact, Progress, file_checksum, open_artifact
from retro.config import DatastoreConfig, EvaluationConfig, FitConfig, ModelConfig, TrainingConfig
from retro.corpus.tokenizer import Tokenizer
from retro.corpus.tokens import TokenStore
from retro.corpus.workspace import CorpusWorkspace
from retro.errors import ArtifactError, ConfigError
from retro.evaluation.evaluate import Evaluation, evaluate
from retro.evaluation.evaluate import Progress as ModeProgress
from retro.executor import Executor
from retro.model.checkpoint import WEIGHTS, load
from retro.model.retro import Retro
from retro.model.retrofit import retrofit
from retro.retrieval.build import build_datastore
from retro.retrieval.datastore import Datastore
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

    def build(self, config: DatastoreConfig, progress: Progress | None = None, also: Sequence[Path] = ()) -> Datastore:
        """Embed and index the training chunks, with those of other token stores if any are named."""
        stores = [self.corpus().train, *map(TokenStore.open, also)]
        self._datastore = build_datastore(stores, self.tokenizer_path, self.datastore_path, config, progress, self.executor)
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
        store = self.corpus().train
        model_config = dataclasses.replace(model_config, vocab_size=store.artifact.counts["vocab_size"], pad_id=store.pad_id)
        torch.manual_seed(config.seed)
        return self._train(name, Retro(model_config), config, {}, progress)

    def fit(
        self, name: str, baseline: str, fit: FitConfig, config: TrainingConfig, progress: Callable[[Report], None] | None = None
    ) -> tuple[Retro, Artifact]:
        """RETROfit a baseline, a run of this workspace or a model folder from elsewhere: its weights stay as they are."""
        model, folder = self.base(baseline)
        torch.manual_seed(config.seed)
        fitted = retrofit(model, fit)
        return self._train(name, fitted, config, {"baseline": file_checksum(folder / WEIGHTS)}, progress)

    def base(self, name: str) -> tuple[Retro, Path]:
        """A model to go on from, with its folder: a run of this workspace, or a model folder from elsewhere with the same tokenizer."""
        folder = self.run_path(name) if self.run_path(name).exists() else Path(name)
        model = load(folder)
        self._expect_same_tokenizer(folder, model.config)
        return model, folder

    def _train(
        self, name: str, model: Retro, config: TrainingConfig, inputs: dict[str, str], progress: Callable[[Report], None] | None
    ) -> tuple[Retro, Artifact]:
        corpus, m = self.corpus(), model.config.chunk_len
        k = config.num_neighbours if model.config.uses_retrieval else 0
        if k and self.datastore().config.chunk_len != m:
            raise ConfigError(f"{self.datastore_path} has chunks of {self.datastore().config.chunk_len} tokens; expected the model's {m}")
        neighbours = {split: self.neighbours(split) for split in corpus.stores() if k and split != "test"}

        def batches_of(store: TokenStore, split: str, seed: int, mixture: dict[str, float]) -> PackedBatches:
            return PackedBatches(store, m, config.seq_len, config.batch_size, seed, neighbours.get(split), k, mixture)

        batches = batches_of(corpus.train, "train", config.seed, config.mixture)
        validation = batches_of(corpus.valid, "valid", 0, {}) if corpus.valid is not None else None  # the same for every seed
        inputs = {"tokens": corpus.train.fingerprint, "tokenizer": corpus.train.tokenizer_fingerprint, **inputs}
        if k:
            inputs["neighbours"] = neighbours["train"].fingerprint
        artifact = train(model, batches, config, self.run_path(name), inputs, validation, progress, self._sampling(config, k))
        return load(artifact.path), artifact

    def _expect_same_tokenizer(self, folder: Path, found: ModelConfig) -> None:
        """Refuse a model of another vocabulary: its token ids would mean other text."""
        store = self.corpus().train
        vocab_size, manifest = store.artifact.counts["vocab_size"], folder / MANIFEST
        known = json.loads(manifest.read_text())["inputs"].get("tokenizer") if manifest.exists() else None
        if found.vocab_size != vocab_size or known not in (None, store.tokenizer_fingerprint):
            raise ArtifactError(
                f"{folder} was trained with another tokenizer ({found.vocab_size} tokens) than {self.tokenizer_path} ({vocab_size} tokens); "
                "expected the same; ingest this corpus with that tokenizer, or train a baseline here: retro train --baseline"
            )

    def _sampling(self, config: TrainingConfig, num_neighbours: int) -> Callable[[Retro], str] | None:
        if not config.sample_every:
            return None
        retriever = Retriever(self.datastore(), num_neighbours or config.num_neighbours)

        def sample(model: Retro) -> str:
            tokens = Sampler(model, retriever).generate(config.sample_prompt, max_tokens=config.sample_tokens).tokens
            return retriever.tokenizer.decode(tokens)

        return sample

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
        return Sampler(model, given or Retriever(self.datastore(), num_neighbours), window=window)
