"""A small run for the tests: everything real, in seconds."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from retro.config import (
    CorpusConfig,
    DatastoreConfig,
    EncoderConfig,
    EvaluationConfig,
    ModelConfig,
    RetrievalConfig,
    RunConfig,
    TrainingConfig,
)
from retro.config.fit import FitConfig
from retro.corpus.ingest import ingest
from retro.jobs.retrieval import build, find_neighbours
from retro.jobs.training import fit_base
from retro.stages.progress import Progress, no_progress
from retro.workspace import Workspace


def small_run(bert: str) -> RunConfig:
    encoder = EncoderConfig(d_model=16, num_layers=1, num_heads=2, head_dim=8, ffw_dim=32)
    retrieval = RetrievalConfig(
        cross_attention_layers=(2,), encoder=encoder, share_embeddings=True, copying_start=True
    )
    model = ModelConfig(
        vocab_size=320,
        d_model=16,
        num_layers=2,
        num_heads=2,
        head_dim=8,
        ffw_dim=32,
        chunk_len=8,
        retrieval=retrieval,
    )
    return RunConfig(
        name="small",
        model=model,
        corpus=CorpusConfig(vocab_size=320, valid_fraction=0.15, test_fraction=0.15),
        datastore=DatastoreConfig(embedder=bert, chunk_len=8, num_neighbours=4),
        training=TrainingConfig(
            seq_len=32,
            batch_size=2,
            num_steps=6,
            warmup_steps=2,
            learning_rate=1e-2,
            min_learning_rate=1e-3,
            log_every=1,
            validate_every=3,
            validate_batches=1,
            checkpoint_every=2,
        ),
        evaluation=EvaluationConfig(window=32, stride=16, num_neighbours=(1, 2), leakage_neighbours=3),
    )


def small_workspace(
    folder: Path, source: Path, bert: str, splits: tuple[str, ...] = ("train", "valid", "test")
) -> Workspace:
    """A workspace up to its neighbours."""
    run, work = small_run(bert), Workspace(folder)
    ingest(work, [str(source)], run.corpus)
    build(work, run.datastore)
    for split in splits:
        find_neighbours(work, split)
    return work


class Silent:
    """A narrator that says nothing."""

    @contextmanager
    def progress(self, title: str) -> Iterator[Progress]:
        yield no_progress


def fitted_workspace(folder: Path, source: Path, base: Path, embedder: str) -> Workspace:
    """A workspace of a base's tokenizer up to its neighbours, and a run `fitted`."""
    work = Workspace(folder)
    ingest(work, [str(source)], CorpusConfig(tokenizer=str(base), valid_fraction=0.15, test_fraction=0.15))
    build(work, DatastoreConfig(embedder=embedder, chunk_len=16, num_neighbours=2))
    for split in ("train", "valid", "test"):
        find_neighbours(work, split)
    training = TrainingConfig(
        seq_len=64, batch_size=1, num_steps=2, warmup_steps=1, validate_batches=1, learning_rate=1e-2
    )
    fit_base(work, "fitted", str(base), FitConfig(chunk_len=16), training)
    return work
