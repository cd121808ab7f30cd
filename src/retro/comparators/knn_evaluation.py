"""A baseline alone, as kNN-LM, and with a continuous cache, on the same documents; what is tuned is tuned on others."""

import json
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np

from retro.comparators import cache as continuous_cache
from retro.comparators import knn_lm
from retro.comparators.cache import fill_cache
from retro.comparators.knn_lm import TokenMemory, index_states, look_up
from retro.comparators.mixing import LogProbs, Tuned, expect_apart, mix, tune
from retro.comparators.token_states import TokenStates, write_states
from retro.config import EvaluationConfig, KnnConfig
from retro.corpus.tokens import TokenStore
from retro.errors import ConfigError
from retro.model.protocol import KeyedModel, LanguageModel
from retro.retrieval.datastore import Datastore
from retro.scoring.bits_per_byte import Scores
from retro.scoring.intervals import Interval, bootstrap_ratio, relative_gain
from retro.stages.progress import Progress, at_step
from retro.stages.stage import Artifact, Stage, run_stage

BASELINE, KNN, CACHE = "baseline", "knn-lm", "cache"
MODES = (BASELINE, KNN, CACHE)


@dataclass(frozen=True)
class MemorySize:
    """What a memory holds and takes."""

    tokens: int
    keys: int
    num_bytes: int
    """On disk: keys, values and index."""
    key_bytes: int
    """Of these, the keys alone."""
    index: str


def size_of_datastore(datastore: Datastore) -> MemorySize:
    """RETRO's memory in the same terms."""
    snapshot = datastore.snapshot()
    folders = [segment.path for segment in snapshot.segments]
    num_bytes = sum(file.stat().st_size for folder in folders for file in folder.rglob("*") if file.is_file())
    key_bytes = sum(segment.keys.nbytes for segment in snapshot.segments)
    kinds = sorted({segment.index.kind for segment in snapshot.segments})
    return MemorySize(snapshot.num_tokens(), len(snapshot), num_bytes, key_bytes, ", ".join(kinds))


class KnnEvaluation:
    """The bits of every token in every mode, what was tuned for them, and the size of the memory."""

    def __init__(self, artifact: Artifact, store: TokenStore) -> None:
        self.artifact, self.store = artifact, store
        results = json.loads(artifact.file("results.json").read_text())
        self.bits_per_byte = {mode: Interval(**results["modes"][mode]) for mode in MODES}
        self.gains = {mode: Interval(**results["gains"][mode]) for mode in (KNN, CACHE)}
        """Part of the baseline's bits that is saved, documents resampled."""
        self.tuned = {mode: Tuned(**results["tuned"][mode]) for mode in (KNN, CACHE)}
        self.size = MemorySize(**results["size"])
        self.recall: float = results["recall"]
        """Part of the nearest keys that the search found for tokens of the reported store."""

    def scores(self, mode: str) -> Scores:
        """As `bits_per_byte.score` gives them, so that they can be summed by chunk and filtered by overlap."""
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
    progress: Progress | None = None,
) -> KnnEvaluation:
    """Remember `memory_store`, tune on `tuning_store`, report on `store`; every step is a folder below `path` and made once."""
    if not isinstance(model, KeyedModel):
        raise ConfigError(
            "the model shows no states that tokens are predicted from; expected one that does, as our own models do"
        )
    expect_apart(tuning_store, store, "what is tuned on the reported documents is no result")

    def told(step: str) -> Progress | None:
        return at_step(progress, step) if progress else None

    states = write_states(
        model,
        model_fingerprint,
        memory_store,
        path / "memory",
        evaluation,
        scored=False,
        progress=told("keys"),
    )
    if progress:
        progress(0, 0, "index")
    memory = index_states(states, path / "index", config)

    def read(read_store: TokenStore) -> _Store:
        name = read_store.artifact.path.name
        states = write_states(
            model, model_fingerprint, read_store, path / name, evaluation, progress=told(name)
        )
        lookup = look_up(
            states,
            memory,
            path / f"{name}-nearest-{config.num_neighbours}",
            config.num_neighbours,
            told(f"{name} nearest"),
        )
        cache = fill_cache(
            states,
            path / f"{name}-cache-{config.cache_len}",
            config.cache_len,
            progress=told(f"{name} cache"),
        )
        return _Store(
            states, {KNN: lookup.log_probs, CACHE: cache.log_probs}, lookup.artifact.counts["recall"]
        )

    tuning, reported = read(tuning_store), read(store)
    inputs = {
        "memory": memory.artifact.fingerprint,
        "tuning": tuning.fingerprint,
        "states": reported.fingerprint,
    }
    settings = {"num_neighbours": config.num_neighbours, "cache_len": config.cache_len}
    folder = path / f"{store.artifact.path.name}-results-{config.num_neighbours}-{config.cache_len}"
    artifact = run_stage(
        folder, "knn", settings, inputs, partial(_report, memory, tuning, reported), "retro knn WORK BASELINE"
    )
    return KnnEvaluation(artifact, store)


def _report(memory: TokenMemory, tuning: _Store, reported: _Store, stage: Stage) -> None:
    grids = {KNN: knn_lm.SHARPNESSES, CACHE: continuous_cache.SHARPNESSES}
    tuned = {mode: tune(tuning.states, tuning.log_probs[mode], grid) for mode, grid in grids.items()}
    states = reported.states
    bits = {BASELINE: np.asarray(states.bits)}
    bits |= {
        mode: mix(states.bits, reported.log_probs[mode](best.sharpness), best.weight)
        for mode, best in tuned.items()
    }
    scores = {mode: states.scores(values) for mode, values in bits.items()}
    for mode, scored in scores.items():
        with stage.write(f"{mode}.npy") as file:
            np.save(file, scored.bits)
    documents = {mode: scored.by_document() for mode, scored in scores.items()}
    keys = memory.states.keys
    size = MemorySize(
        memory.states.artifact.counts["tokens"], len(keys), memory.num_bytes, keys.nbytes, memory.index.kind
    )
    results = {
        "modes": {
            mode: asdict(bootstrap_ratio(values, states.store.num_bytes))
            for mode, values in documents.items()
        },
        "gains": {mode: asdict(relative_gain(documents[mode], documents[BASELINE])) for mode in tuned},
        "tuned": {mode: asdict(best) for mode, best in tuned.items()},
        "size": asdict(size),
        "recall": reported.recall,
    }
    with stage.write("results.json") as file:
        file.write(json.dumps(results, indent=2).encode())
