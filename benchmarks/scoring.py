"""Scoring against the model's bare forward over the same windows, with retrieval and without.

    python benchmarks/scoring.py [--source licences] [--embedder static] [--work FOLDER]
                                 [--batches 6] [--rounds 5]

Bare is `model(...)`, all logits of every window, on batches that are prepared beforehand; scoring makes the
batches, reads the neighbours and turns logits into bits as `retro evaluate` does. A token of two windows is
scored in one of them only, and no logits are made in the other, so that overlapping windows can pass 1.
Weights are random: they do not change the time. The first run ingests and builds in FOLDER.
"""

import argparse
import dataclasses
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from timing import interleaved_medians

from retro import catalogue, recipes
from retro.config import (
    CorpusConfig,
    DatastoreConfig,
    EncoderConfig,
    EvaluationConfig,
    ModelConfig,
    RetrievalConfig,
)
from retro.corpus.ingest import ingest
from retro.jobs.retrieval import build, find_neighbours
from retro.model.retro import Retro
from retro.retrieval.neighbours import Neighbours
from retro.scoring.bits_per_byte import score_batch
from retro.scoring.windows import Window, batch_inputs, batches_of, windows_of
from retro.workspace import Workspace

KS = (0, 2, 10)
STRIDES = {"windows that overlap by half": 256, "windows side by side": 512}
WINDOW = 512


def prepared(work: Path, source: str, encoder: str) -> Neighbours:
    for name in (source, encoder):
        if name in catalogue.ENTRIES:
            catalogue.fetch(name)
    workspace = Workspace(work)
    ingest(workspace, [source], CorpusConfig(vocab_size=4096))
    if not workspace.datastore_path.exists():
        build(workspace, DatastoreConfig(embedder=encoder))
    return find_neighbours(workspace, "test")


def models(vocab_size: int, pad_id: int) -> dict[str, ModelConfig]:
    """The recipe `tiny`, and the 12 × 768 of `training_step.py`."""
    encoder = EncoderConfig(d_model=512, num_layers=2, num_heads=8, head_dim=64, ffw_dim=2048)
    large = ModelConfig(
        d_model=768,
        num_layers=12,
        num_heads=12,
        head_dim=64,
        ffw_dim=3072,
        retrieval=RetrievalConfig(cross_attention_layers=(6, 9, 12), encoder=encoder),
    )
    configs = {"tiny": recipes.get("tiny").model, "12 × 768": large}
    return {
        name: dataclasses.replace(config, vocab_size=vocab_size, pad_id=pad_id)
        for name, config in configs.items()
    }


def spread(batches: list[list[Window]], count: int) -> list[list[Window]]:
    """As many of the batches, from the longest windows to the shortest."""
    return batches[:: max(1, len(batches) // count)][:count]


def candidates(
    model: Retro, neighbours: Neighbours, batches: list[list[Window]], k: int
) -> dict[str, Callable[[], object]]:
    table = neighbours.table
    inputs = [batch_inputs(table, batch, neighbours, k) for batch in batches]

    @torch.inference_mode()
    def bare() -> None:
        for batch in inputs:
            model(*batch)

    return {
        "bare": bare,
        "scoring": lambda: [score_batch(model, table, batch, neighbours, k) for batch in batches],
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--source", default="licences")
    parser.add_argument("--embedder", default="static")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "retro-scoring-benchmark")
    parser.add_argument("--batches", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    neighbours = prepared(options.work, options.source, options.embedder)
    store = neighbours.store
    for name, config in models(store.artifact.counts["vocab_size"], store.pad_id).items():
        model = Retro(config).eval()
        for title, stride in STRIDES.items():
            settings = EvaluationConfig(window=WINDOW, stride=stride)
            every = list(batches_of(windows_of(store, WINDOW, stride), settings.batch_size * WINDOW))
            batches = spread(every, options.batches)
            num_tokens = sum(window.num_tokens for batch in batches for window in batch)
            for k in KS:
                seconds = interleaved_medians(
                    candidates(model, neighbours, batches, k), rounds=options.rounds, warmup=1
                )
                bare, scoring = seconds["bare"], seconds["scoring"]
                print(
                    f"{name}, {title}, k {k}: scoring runs at {bare / scoring:.2f} of the bare forward "
                    f"({num_tokens / scoring:,.0f} tokens/s, bare {num_tokens / bare:,.0f})"
                )


if __name__ == "__main__":
    main()
