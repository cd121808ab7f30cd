"""One folder with everything of a project: tokenizer, tokens, datastore, neighbours, runs, evaluations.

The stages find each other here, so that a user names one folder instead of six. Commands and the demo are thin shells over it.
"""

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

from retro.artifacts import MANIFEST, Artifact, open_artifact, reopen_broken, write_json
from retro.config import CorpusConfig, DatastoreConfig, EvaluationConfig, ModelConfig, TrainingConfig, from_dict
from retro.corpus import readers
from retro.corpus.encode import EncodedStore, encode_text
from retro.corpus.ingest import REPORT, Corpus, pack, train_corpus_tokenizer
from retro.corpus.readers import FieldMap, Problems
from retro.corpus.sources import fingerprint_of, read_raw
from retro.corpus.text import TextStore, raw_text, write_text
from retro.corpus.tokenizer import Tokenizer
from retro.corpus.tokens import TokenStore
from retro.errors import ArtifactError, ConfigError, DataError
from retro.evaluation.evaluate import Evaluation, evaluate
from retro.evaluation.evaluate import Progress as ModeProgress
from retro.executor import Executor, LocalExecutor
from retro.model.checkpoint import load
from retro.model.retro import Retro
from retro.retrieval.datastore import Datastore, build_datastore
from retro.retrieval.neighbours import Neighbours, find_neighbours
from retro.retrieval.retriever import Retriever
from retro.sampling.sampler import Sampler
from retro.training.batches import PackedBatches
from retro.training.trainer import Report, train

Progress = Callable[[int, int], None]


class Workspace:
    """The stages of one project. Each method finishes one folder, or opens it if it is finished."""

    def __init__(self, path: Path, executor: Executor | None = None) -> None:
        self.path, self.executor = path, executor or LocalExecutor()
        self.text_path, self.encoded_path = path / "text", path / "encoded"
        self.tokenizer_path, self.tokens_path, self.datastore_path = path / "tokenizer", path / "tokens", path / "datastore"
        self._datastore: Datastore | None = None

    def run_path(self, name: str) -> Path:
        return self.path / "runs" / name

    def neighbours_path(self, split: str) -> Path:
        return self.path / "neighbours" / split

    def evaluation_path(self, name: str, split: str) -> Path:
        return self.path / "evaluations" / f"{name}-{split}"

    def ingest(
        self,
        sources: Sequence[str],
        config: CorpusConfig,
        fields: FieldMap | None = None,
        strict: bool = True,
        names: frozenset[str] = frozenset(),
        progress: Callable[[str, int, int], None] | None = None,
    ) -> Corpus:
        """Read the sources, train a tokenizer on their training documents, and write the token stores.

        Unless `strict`, records that cannot be read are skipped and listed in `skipped.json`. Training documents whose title or
        id is among `names` are removed.
        """

        def told(step: str) -> Progress | None:
            return partial(progress, step) if progress else None

        problems = Problems(strict)
        items = (item for source in sources for item in read_raw(source, fields, problems))
        inputs = {source: fingerprint_of(source) for source in sources}
        text = write_text(items, self.text_path, config, inputs, self.executor, problems, told("reading"))
        if problems.count:
            write_json(self.path / "skipped.json", {"skipped": problems.count, "first": problems.rows})
        tokenizer = train_corpus_tokenizer(text, self.tokenizer_path, config)
        encoded = encode_text(text, self.tokenizer_path, self.encoded_path, self.executor, told("encoding"))
        return pack(encoded, tokenizer, self.tokens_path, config, names)

    def decontaminate(self, out: Path, against: Sequence[str], names: frozenset[str] = frozenset()) -> Corpus:
        """Write the token stores once more below `out`, without training documents close to those of `against`, or named."""
        config = from_dict(CorpusConfig, {k: v for k, v in self.corpus().train.artifact.config.items() if k != "split"})
        encoded = EncodedStore(open_artifact(self.encoded_path, "encoded", f"retro ingest SOURCE --out {self.path}"))
        tokenizer = Tokenizer.open(self.tokenizer_path)
        given = [
            np.array(tokenizer.encode(document.text), dtype=tokenizer.dtype) for source in against for document in readers.read(source)
        ]
        return pack(encoded, tokenizer, out, config, names, given)

    def by_source(self) -> dict[str, Counter[str]]:
        """Documents, tokens and bytes of every source in all splits, and how many documents were removed from it, by reason."""
        table: dict[str, Counter[str]] = {}
        for store in self.corpus().stores().values():
            for index, row in enumerate(store.documents):
                tokens = int(store.ends[index] - store.starts[index])
                table.setdefault(row["source"], Counter()).update(documents=1, tokens=tokens, bytes=int(store.num_bytes[index]))
        for row in json.loads((self.tokens_path / REPORT).read_text()):
            table.setdefault(row["source"], Counter())[row["reason"]] += 1
        return table

    def look(self, sources: Sequence[str], fields: FieldMap | None = None) -> Iterator[tuple[str, int, int]]:
        """Documents and bytes of every source as they would be read, before cleaning; nothing is written."""
        for source in sources:
            count = size = 0
            for item in read_raw(source, fields, Problems()):
                count, size = count + 1, size + len(raw_text(item).encode())
            yield source, count, size

    def removed(self) -> dict[str, int]:
        """How many documents were removed, by reason."""
        return dict(Counter(row["reason"] for row in json.loads((self.tokens_path / REPORT).read_text())))

    def skipped(self) -> int:
        """How many records could not be read."""
        return int(TextStore.open(self.text_path).artifact.counts["skipped"])

    def check(self) -> None:
        """Compare every file of the corpus stages with its checksum."""
        for path in self._corpus_stages():
            Artifact(path, json.loads((path / MANIFEST).read_text())).check()

    def mend(self) -> list[str]:
        """Take broken or missing files out of the corpus stages and return their names; ingesting again makes those alone."""
        return [name for path in self._corpus_stages() for name in reopen_broken(path)]

    def _corpus_stages(self) -> list[Path]:
        stages = [
            self.text_path,
            self.tokenizer_path,
            self.encoded_path,
            *(self.tokens_path / split for split in ("train", "valid", "test")),
        ]
        return [path for path in stages if path.exists()]

    def corpus(self) -> Corpus:
        return Corpus.open(self.tokens_path)

    def store(self, split: str) -> TokenStore:
        store = self.corpus().stores().get(split)
        if store is None:
            raise DataError(
                f"{self.tokens_path} has no {split!r} split; expected one of {', '.join(self.corpus().stores())}; ingest more documents"
            )
        return store

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

    def sampler(self, name: str, num_neighbours: int = 2, exclude: Sequence[str] = ()) -> Sampler:
        model, _ = self.model(name)
        return Sampler(model, Retriever(self.datastore(), num_neighbours, exclude))
