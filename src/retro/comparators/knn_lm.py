"""kNN-LM, and its comparison with the baseline alone and with a continuous cache on the same documents.

p_kNN(w) ∝ Σ exp(−α d) over the k nearest keys of the training tokens whose next token is w. d
is the squared L2 distance, and λ multiplies p_kNN, as in the paper's main text; its appendix
has it the other way round.
"""

import json
import shutil
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np

from retro.comparators import cache
from retro.comparators.token_states import (
    COMMAND,
    LogProbs,
    TokenStates,
    Tuned,
    expect_apart,
    mix,
    tune,
    write_states,
)
from retro.config import EvaluationConfig, KnnConfig
from retro.corpus.tokens import TokenStore
from retro.errors import ConfigError
from retro.model.protocol import KeyedModel, LanguageModel
from retro.retrieval.datastore import Datastore
from retro.retrieval.index import Entries, kind_for_size, make_index, open_index
from retro.retrieval.index.exact import DenseIndex
from retro.retrieval.index.hnsw import HNSW
from retro.retrieval.index.tuning import tune as tune_index
from retro.scoring.bits_per_byte import Scores
from retro.scoring.intervals import Interval, bootstrap_ratio, relative_gain
from retro.stages.arrays import Filling
from retro.stages.progress import Progress, at_step, no_progress
from retro.stages.stage import Artifact, Stage, run_stage

INDEX = "index"
BLOCK = 4096
"""Tokens that are searched for together, or mixed together."""
SHARPNESSES = tuple(2.0 ** (power / 2) for power in range(-24, 5))
"""The values of α that are tried: 0.0002 to 4. The paper has 0.00785 for keys of 1024
numbers."""
BASELINE, KNN, CACHE = "baseline", "knn-lm", "cache"
MODES = (BASELINE, KNN, CACHE)


class TokenMemory:
    """The keys of all tokens of a store, and an index over them."""

    def __init__(self, artifact: Artifact, states: TokenStates) -> None:
        self.artifact = artifact
        self.states = states
        self.index = open_index(artifact.file(INDEX), states.keys)

    def search(self, keys: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Squared distances of the k nearest keys, inf if there are fewer, and the tokens after them."""
        distances, rows = self.index.search(Entries(keys), k)
        return distances, self.states.values[rows]

    @property
    def num_bytes(self) -> int:
        """What a search needs on disk: keys, values and index, but not the model's bits."""
        files = (
            self.states.artifact.file("keys.npy"),
            self.states.artifact.file("values.npy"),
            *self.artifact.path.rglob("*"),
        )
        return sum(file.stat().st_size for file in files if file.is_file())


def kind_of(config: KnnConfig, keys: np.ndarray) -> str:
    """The kind of index: as for a datastore, but inverted lists instead of a graph.

    Keys of tokens lie in clusters, and each is searched for once. On 100,000 of them, a graph
    took about 40 times as long to build as lists and 20 times as long to search, when both
    found 0.96 of their own keys' neighbours.
    """
    if config.index != "auto":
        return config.index
    kind = kind_for_size(keys.shape[1], len(keys), config.exact_below)
    if not HNSW.fullmatch(kind):
        return kind
    # The square root of the number of keys, as a power of two: about as many lists as keys in a
    # list.
    num_lists = 2 ** round(np.log2(len(keys) ** 0.5))
    return f"IVF{num_lists},SQfp16"


def index_states(states: TokenStates, path: Path, config: KnnConfig) -> TokenMemory:
    """Index the keys with the kind that fits their number, and measure recall as for a datastore."""

    def work(stage: Stage) -> None:
        index = make_index(kind_of(config, states.keys), states.keys.shape[1], len(states.keys))
        index.add(Entries(states.keys))
        report = asdict(tune_index(index, config.target_recall)) if isinstance(index, DenseIndex) else {}
        # A kill during an earlier save may have left part of an index.
        shutil.rmtree(stage.file(INDEX), ignore_errors=True)
        index.save(stage.file(INDEX))
        stage.counts.update(report, keys=len(states.keys))

    settings = {
        "index": config.index,
        "exact_below": config.exact_below,
        "target_recall": config.target_recall,
    }
    inputs = {"states": states.artifact.fingerprint}
    return TokenMemory(run_stage(path, "token index", settings, inputs, work, COMMAND), states)


class Lookup:
    """The k nearest keys of every row of an evaluation store: searched once, then usable with any α."""

    def __init__(self, artifact: Artifact, states: TokenStates) -> None:
        self.artifact = artifact
        self.states = states
        self.distances: np.ndarray = np.load(artifact.file("distances.npy"), mmap_mode="r")
        self.tokens: np.ndarray = np.load(artifact.file("tokens.npy"), mmap_mode="r")

    def log_probs(self, alpha: float) -> np.ndarray:
        """log2 p_kNN of every row's value."""
        # Block by block: the distances are memory-mapped and may not fit into memory at once.
        parts = [slice(start, start + BLOCK) for start in range(0, len(self.distances), BLOCK)]
        values = self.states.values
        return np.concatenate(
            [
                neighbour_log_probs(self.distances[part], self.tokens[part], values[part], alpha)
                for part in parts
            ]
        )


def look_up(
    states: TokenStates, memory: TokenMemory, path: Path, k: int, progress: Progress = no_progress
) -> Lookup:
    """Search the memory for every row. It must hold other documents: a token's own key would reveal it."""
    expect_apart(states.store, memory.states.store, "a document in the memory would find itself")
    num_rows = len(states.keys)

    def work(stage: Stage) -> None:
        shape = (num_rows, k)
        filling = Filling(stage, distances=(np.float32, shape), tokens=(memory.states.values.dtype, shape))
        distances = filling.arrays["distances"]
        tokens = filling.arrays["tokens"]
        for start in range(filling.done, num_rows, BLOCK):
            part = slice(start, min(start + BLOCK, num_rows))
            distances[part], tokens[part] = memory.search(states.keys[part], k)
            filling.keep(part.stop)
            progress(part.stop, num_rows)
        stage.counts["recall"] = recall(memory, np.asarray(states.keys), distances)
        filling.finish()

    inputs = {"states": states.artifact.fingerprint, "memory": memory.artifact.fingerprint}
    artifact = run_stage(path, "token lookup", {"num_neighbours": k}, inputs, work, COMMAND)
    return Lookup(artifact, states)


def recall(memory: TokenMemory, queries: np.ndarray, distances: np.ndarray, num_queries: int = 256) -> float:
    """The part of the true nearest keys that was found, over a sample of the queries.

    The recall that the index was tuned to is over the memory's own keys, and may differ.
    """
    # Evenly spaced over the store, so that every measurement uses the same queries.
    rows = np.linspace(0, len(queries) - 1, num=min(num_queries, len(queries)), dtype=np.int64)
    true = make_index("exact", queries.shape[1], 0)
    true.add(Entries(memory.states.keys))
    limits = true.search(Entries(queries[rows]), distances.shape[1])[0]
    # A found key is among the true k nearest if it is no farther away than the last of them.
    return float((distances[rows] <= limits[:, -1:]).mean())


def neighbour_log_probs(
    distances: np.ndarray, tokens: np.ndarray, targets: np.ndarray, alpha: float
) -> np.ndarray:
    """log2 p_kNN(target) from the neighbours of each row; −inf if the target follows none of them."""
    # Subtracting the distance of the nearest, which comes first, changes no ratio and makes its
    # weight 1, so the sum of the weights cannot underflow to 0.
    weights = np.exp(-alpha * (distances - distances[:, :1]).astype(np.float64))
    votes = (weights * (tokens == targets[:, None])).sum(axis=1)
    # log2 of 0 votes is −inf, as intended.
    with np.errstate(divide="ignore"):
        log_probs: np.ndarray = np.log2(votes / weights.sum(axis=1))
    return log_probs


@dataclass(frozen=True)
class MemorySize:
    """What a memory holds, and the space it takes."""

    tokens: int
    keys: int
    num_bytes: int
    """On disk: keys, values and index."""
    key_bytes: int
    """The keys' part of these bytes."""
    index: str

    @staticmethod
    def of(memory: TokenMemory) -> "MemorySize":
        keys = memory.states.keys
        num_tokens = memory.states.artifact.counts["tokens"]
        return MemorySize(num_tokens, len(keys), memory.num_bytes, keys.nbytes, memory.index.kind)


def size_of_datastore(datastore: Datastore) -> MemorySize:
    """RETRO's memory in the same terms."""
    snapshot = datastore.snapshot()
    folders = [segment.path for segment in snapshot.segments]
    folders += [snapshot.joint.path] if snapshot.joint is not None else []
    files = [file for folder in folders for file in folder.rglob("*") if file.is_file()]
    return MemorySize(
        tokens=snapshot.num_tokens(),
        keys=len(snapshot),
        num_bytes=sum(file.stat().st_size for file in files),
        key_bytes=sum(segment.keys.nbytes for segment in snapshot.segments),
        index=", ".join(sorted(snapshot.kinds)),
    )


class KnnEvaluation:
    """Bits of every token in every mode, the tuned settings, and the size of the memory."""

    def __init__(self, artifact: Artifact, store: TokenStore) -> None:
        self.artifact = artifact
        self.store = store
        results = json.loads(artifact.file("results.json").read_text())
        self.bits_per_byte = {mode: Interval(**results["modes"][mode]) for mode in MODES}
        self.gains = {mode: Interval(**results["gains"][mode]) for mode in (KNN, CACHE)}
        """The part of the baseline's bits that is saved, with intervals over documents."""
        self.tuned = {mode: Tuned(**results["tuned"][mode]) for mode in (KNN, CACHE)}
        self.size = MemorySize(**results["size"])
        self.recall: float = results["recall"]
        """The part of the nearest keys that the search found for tokens of the reported
        store."""

    def scores(self, mode: str) -> Scores:
        """Scores like those of `bits_per_byte.score`, to be summed by chunk and filtered by overlap."""
        return Scores(self.store, np.load(self.artifact.file(f"{mode}.npy")))


@dataclass(frozen=True)
class _Store:
    """A scored token store and what the two memories say about its tokens."""

    states: TokenStates
    log_probs: dict[str, LogProbs]
    recall: float

    @property
    def fingerprint(self) -> str:
        return self.states.artifact.fingerprint


def evaluate_knn(
    model: LanguageModel,
    model_fingerprint: str,
    memory_store: TokenStore,
    tuning_store: TokenStore,
    store: TokenStore,
    path: Path,
    config: KnnConfig,
    evaluation: EvaluationConfig,
    progress: Progress = no_progress,
) -> KnnEvaluation:
    """Remember `memory_store`, tune on `tuning_store`, report on `store`.

    Every step has a folder below `path` and is done once.
    """
    if not isinstance(model, KeyedModel):
        raise ConfigError(
            "the model shows no states that tokens are predicted from; "
            "expected one that does, as our own models do; name another run"
        )
    if config.num_neighbours > len(memory_store.tokens):
        raise ConfigError(
            f"num_neighbours is {config.num_neighbours}, and {memory_store.artifact.path} has "
            f"{len(memory_store.tokens)} tokens; expected no more than it has"
        )
    if config.index != "auto":
        make_index(config.index, model.key_width, 0)  # refused now, not when all keys are made
    expect_apart(tuning_store, store, "what is tuned on the reported documents is no result")
    states = write_states(
        model,
        model_fingerprint,
        memory_store,
        path / "memory",
        evaluation,
        scored=False,
        progress=at_step(progress, "keys"),
    )
    progress(0, 0, "index")
    memory = index_states(states, path / "index", config)

    # Both stores go through the same steps. Each step has a folder named after the store and
    # its settings.
    def read(read_store: TokenStore) -> _Store:
        name = read_store.artifact.path.name
        states = write_states(
            model, model_fingerprint, read_store, path / name, evaluation, progress=at_step(progress, name)
        )
        k = config.num_neighbours
        folder = path / f"{name}-nearest-{k}"
        lookup = look_up(states, memory, folder, k, at_step(progress, f"{name} nearest"))
        length = config.cache_len
        folder = path / f"{name}-cache-{length}"
        cached = cache.fill_cache(states, folder, length, progress=at_step(progress, f"{name} cache"))
        log_probs = {KNN: lookup.log_probs, CACHE: cached.log_probs}
        return _Store(states, log_probs, lookup.artifact.counts["recall"])

    tuning, reported = read(tuning_store), read(store)
    inputs = {
        "memory": memory.artifact.fingerprint,
        "tuning": tuning.fingerprint,
        "states": reported.fingerprint,
    }
    settings = {"num_neighbours": config.num_neighbours, "cache_len": config.cache_len}
    folder = path / f"{store.artifact.path.name}-results-{config.num_neighbours}-{config.cache_len}"
    work = partial(_report, memory, tuning, reported)
    return KnnEvaluation(run_stage(folder, "knn", settings, inputs, work, COMMAND), store)


def _report(memory: TokenMemory, tuning: _Store, reported: _Store, stage: Stage) -> None:
    """Tune both memories on the tuning store, and score the reported store with the best settings."""
    # The settings are fixed before the reported documents are looked at.
    grids = {KNN: SHARPNESSES, CACHE: cache.SHARPNESSES}
    tuned = {mode: tune(tuning.states, tuning.log_probs[mode], grid) for mode, grid in grids.items()}
    states = reported.states
    bits = {BASELINE: np.asarray(states.bits)}
    for mode, best in tuned.items():
        bits[mode] = mix(states.bits, reported.log_probs[mode](best.sharpness), best.weight)
    scores = {mode: states.scores(values) for mode, values in bits.items()}
    for mode, scored in scores.items():
        with stage.write(f"{mode}.npy") as file:
            np.save(file, scored.bits)
    documents = {mode: scored.by_document() for mode, scored in scores.items()}
    num_bytes = states.store.num_bytes
    results = {
        "modes": {mode: asdict(bootstrap_ratio(bits, num_bytes)) for mode, bits in documents.items()},
        "gains": {mode: asdict(relative_gain(documents[mode], documents[BASELINE])) for mode in tuned},
        "tuned": {mode: asdict(best) for mode, best in tuned.items()},
        "size": asdict(MemorySize.of(memory)),
        "recall": reported.recall,
    }
    with stage.write("results.json") as file:
        file.write(json.dumps(results, indent=2).encode())
