"""kNN-LM on our baseline: p_kNN(w) ∝ Σ exp(−α d) over the k nearest keys of the training tokens whose next token is w.

d is the squared L2 distance, and λ multiplies p_kNN (the paper's appendix has it the other way round, its main text so).
"""

import shutil
from dataclasses import asdict
from pathlib import Path

import numpy as np

from retro.comparators.mixing import expect_apart
from retro.comparators.token_states import TokenStates
from retro.config import KnnConfig
from retro.retrieval.index import Entries, kind_for_size, make_index, open_index
from retro.retrieval.index.exact import DenseIndex
from retro.retrieval.index.hnsw import HNSW
from retro.retrieval.index.tuning import tune
from retro.stages.arrays import Filling
from retro.stages.progress import Progress
from retro.stages.stage import Artifact, Stage, run_stage

INDEX = "index"
BLOCK = 4096
"""Tokens that are searched for, or mixed, together."""
SHARPNESSES = tuple(2.0 ** (power / 2) for power in range(-24, 5))
"""The α that are tried: 0.0002 to 4. The paper's is 0.00785 for keys of 1024 numbers."""


class TokenMemory:
    """The keys of all tokens of a store with an index over them."""

    def __init__(self, artifact: Artifact, states: TokenStates) -> None:
        self.artifact, self.states = artifact, states
        self.index = open_index(artifact.file(INDEX), states.keys)

    def search(self, keys: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Squared distances of the k nearest keys, inf where there are no more, and the tokens that follow there."""
        distances, rows = self.index.search(Entries(keys), k)
        return distances, self.states.values[rows]

    @property
    def num_bytes(self) -> int:
        """What searching needs on disk: keys, values and index, not the model's bits."""
        files = (
            self.states.artifact.file("keys.npy"),
            self.states.artifact.file("values.npy"),
            *self.artifact.path.rglob("*"),
        )
        return sum(file.stat().st_size for file in files if file.is_file())


def kind_of(config: KnnConfig, keys: np.ndarray) -> str:
    """As for a datastore, but with lists where that takes a graph.

    Keys of tokens lie in clusters, and each is searched for once: on 100,000 of them a graph took about 40 times as long to build as
    lists, and 20 times as long to search, when both found 0.96 of their own keys' neighbours.
    """
    kind = (
        kind_for_size(keys.shape[1], len(keys), config.exact_below)
        if config.index == "auto"
        else config.index
    )
    return (
        f"IVF{2 ** round(np.log2(len(keys) ** 0.5))},SQfp16"
        if config.index == "auto" and HNSW.fullmatch(kind)
        else kind
    )


def index_states(states: TokenStates, path: Path, config: KnnConfig) -> TokenMemory:
    """Index the keys by whatever kind fits their number, with its recall measured as a datastore's is."""

    def work(stage: Stage) -> None:
        index = make_index(kind_of(config, states.keys), states.keys.shape[1], len(states.keys))
        index.add(Entries(states.keys))
        report = asdict(tune(index, config.target_recall)) if isinstance(index, DenseIndex) else {}
        shutil.rmtree(stage.file(INDEX), ignore_errors=True)
        index.save(stage.file(INDEX))
        stage.counts.update(report, keys=len(states.keys))

    settings = {
        "index": config.index,
        "exact_below": config.exact_below,
        "target_recall": config.target_recall,
    }
    inputs = {"states": states.artifact.fingerprint}
    return TokenMemory(
        run_stage(path, "token index", settings, inputs, work, "retro knn WORK BASELINE"), states
    )


class Lookup:
    """The k nearest keys for every row of an evaluation store: searched once, mixed with any α."""

    def __init__(self, artifact: Artifact, states: TokenStates) -> None:
        self.artifact, self.states = artifact, states
        self.distances: np.ndarray = np.load(artifact.file("distances.npy"), mmap_mode="r")
        self.tokens: np.ndarray = np.load(artifact.file("tokens.npy"), mmap_mode="r")

    def log_probs(self, alpha: float) -> np.ndarray:
        """log2 p_kNN of every row's value."""
        parts = [slice(start, start + BLOCK) for start in range(0, len(self.distances), BLOCK)]
        return np.concatenate(
            [
                neighbour_log_probs(self.distances[part], self.tokens[part], self.states.values[part], alpha)
                for part in parts
            ]
        )


def look_up(
    states: TokenStates, memory: TokenMemory, path: Path, k: int, progress: Progress | None = None
) -> Lookup:
    """Search the memory for every row; its documents must be others, as a token's own key would tell the token."""
    expect_apart(states.store, memory.states.store, "a document in the memory would find itself")
    num_rows = len(states.keys)

    def work(stage: Stage) -> None:
        filling = Filling(
            stage, distances=(np.float32, (num_rows, k)), tokens=(memory.states.values.dtype, (num_rows, k))
        )
        for start in range(filling.done, num_rows, BLOCK):
            part = slice(start, min(start + BLOCK, num_rows))
            filling.arrays["distances"][part], filling.arrays["tokens"][part] = memory.search(
                states.keys[part], k
            )
            filling.keep(part.stop)
            if progress:
                progress(part.stop, num_rows)
        stage.counts["recall"] = recall(memory, np.asarray(states.keys), filling.arrays["distances"])
        filling.finish()

    inputs = {"states": states.artifact.fingerprint, "memory": memory.artifact.fingerprint}
    return Lookup(
        run_stage(path, "token lookup", {"num_neighbours": k}, inputs, work, "retro knn WORK BASELINE"),
        states,
    )


def recall(memory: TokenMemory, queries: np.ndarray, distances: np.ndarray, num_queries: int = 256) -> float:
    """Part of the true nearest keys that was found, over some of the queries; that of the memory's own keys may be another."""
    rows = np.linspace(0, len(queries) - 1, num=min(num_queries, len(queries)), dtype=np.int64)
    true = make_index("exact", queries.shape[1], 0)
    true.add(Entries(memory.states.keys))
    limits = true.search(Entries(queries[rows]), distances.shape[1])[0]
    return float((distances[rows] <= limits[:, -1:]).mean())


def neighbour_log_probs(
    distances: np.ndarray, tokens: np.ndarray, targets: np.ndarray, alpha: float
) -> np.ndarray:
    """log2 p_kNN(target) from the neighbours of each row; −inf where none of them is followed by the target."""
    weights = np.exp(-alpha * (distances - distances[:, :1]).astype(np.float64))  # the nearest comes first
    with np.errstate(divide="ignore"):
        probs: np.ndarray = np.log2(
            (weights * (tokens == targets[:, None])).sum(axis=1) / weights.sum(axis=1)
        )
    return probs
