"""How fast this machine is: a few batches of the embedder, a small index, a few training steps."""

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from retro.config import ModelConfig, TrainingConfig
from retro.machine import best_device, keep_freed_memory, product_dtype
from retro.retrieval.embedder import open_embedder
from retro.retrieval.index.opening import EXACT_BELOW, make_index
from retro.retrieval.index.protocol import Entries
from retro.run import make_model
from retro.training.objective import TokenLoss, make_optimizer

ROUNDS = 3
"""Steps that are timed, after one that is not: the first allocates memory and chooses kernels."""
SEQUENCES = 2
"""Sequences in a timed step."""
FEW_TEXTS = 48
SLOW = 0.002
"""Seconds a text."""
KEYS = 1000
"""Keys that an index is timed with."""


@dataclass(frozen=True)
class TokenTimes:
    """Seconds a token of training takes, with its forward and backward pass and the update."""

    baseline: float
    retro: float

    @property
    def both(self) -> float:
        """The same token for both models."""
        return self.baseline + self.retro

    def scoring(self, num_neighbours: int, trained_with: int) -> float:
        """Seconds a token takes to be scored with this many neighbours, 0 for none."""
        # A backward pass costs twice the forward pass; neighbours cost in proportion to their number.
        retrieval = max(0.0, self.retro - self.baseline) * num_neighbours / trained_with
        return (self.baseline + retrieval) / 3


@dataclass(frozen=True)
class KeyTimes:
    """Seconds that keys take: to make one, to add one to a graph, to compare one with another."""

    embedding: float
    graph: float
    pair: float

    def embedding_all(self, num_chunks: float) -> float:
        return num_chunks * self.embedding

    def datastore(self, num_chunks: float) -> float:
        """Keys, index and the neighbours of every chunk."""
        is_graph = num_chunks >= EXACT_BELOW
        return num_chunks * (self.embedding + (self.graph if is_graph else num_chunks * self.pair))


def time_keys(name: str, precision: str, texts: Sequence[str]) -> KeyTimes:
    """Time an embedder on texts as long as chunks, and indexes on keys of its width."""
    embedder = open_embedder(name, precision)
    embedder.embed(texts[:FEW_TEXTS])
    # A slow embedder is timed on a few texts, which are too few to time a fast one.
    few = seconds_of(lambda: embedder.embed(texts[:FEW_TEXTS])) / len(texts[:FEW_TEXTS])
    embedding = few if few > SLOW else seconds_of(lambda: embedder.embed(texts)) / len(texts)
    # Random keys lie farther apart than those of text, so a graph takes rather less than this.
    keys = Entries(np.random.default_rng(0).normal(size=(KEYS, embedder.width)).astype(np.float16))
    graph, exact = (make_index(kind, embedder.width, KEYS) for kind in ("HNSW24", "exact"))
    linking = seconds_of(lambda: graph.add(keys)) + seconds_of(lambda: graph.search(keys, 10))
    exact.add(keys)
    comparing = seconds_of(lambda: exact.search(keys, 10))
    return KeyTimes(embedding, linking / KEYS, comparing / KEYS**2)


def seconds_of(work: Callable[[], object]) -> float:
    """How long something takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def processor_seconds(work: Callable[[], object]) -> float:
    """How long a processor was at it, in this process and those that it waited for.

    Other work beside it is not counted, though it takes some of the caches.
    """
    started = _processor_time()
    work()
    return _processor_time() - started


def _processor_time() -> float:
    children = os.times()
    return time.process_time() + children.children_user + children.children_system


def time_training(model: ModelConfig, training: TrainingConfig) -> TokenTimes:
    """Steps of the baseline and of RETRO on random tokens, which take as long as real ones."""
    keep_freed_memory()
    with torch.random.fork_rng():
        return TokenTimes(_time_model(model.baseline(), training), _time_model(model, training))


def _time_model(config: ModelConfig, training: TrainingConfig) -> float:
    step = training_step(config, training, SEQUENCES)
    step()
    seconds = statistics.median(seconds_of(step) for _ in range(ROUNDS))
    return seconds / (SEQUENCES * training.seq_len)


def training_step(config: ModelConfig, training: TrainingConfig, sequences: int) -> Callable[[], None]:
    """One training step of a fresh model."""
    device = best_device()
    model = make_model(config).to(device).train()
    losses = TokenLoss(model, product_dtype(training.precision, device))
    optimizer = make_optimizer(model, training)
    chunks = training.seq_len // config.chunk_len

    def random(*shape: int) -> torch.Tensor:
        # From 3 on, past padding, unknown and end.
        return torch.randint(3, config.vocab_size, shape, device=device)

    inputs = [random(sequences, training.seq_len), random(sequences, training.seq_len)]
    if config.uses_retrieval:
        shape = (sequences, chunks, training.num_neighbours)
        inputs += [random(*shape, config.retrieved_len), torch.ones(shape, dtype=torch.bool, device=device)]

    def step() -> None:
        optimizer.zero_grad()
        loss = losses(*inputs) / inputs[1].numel()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), training.clip_norm)
        optimizer.step()
        loss.item()  # waits for the device

    return step
