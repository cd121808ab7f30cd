"""The evaluation stage: a model on a token store, without retrieval and with several k, chunk by chunk."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from retro.config import EvaluationConfig
from retro.config_json import to_dict
from retro.model.protocol import LanguageModel
from retro.retrieval.neighbours import Neighbours
from retro.scoring.bits_per_byte import Keep, Scores, chunk_bytes, score
from retro.scoring.intervals import Interval
from retro.scoring.leakage import FilteredScore, chunk_overlaps, filtered_bits_per_byte, overlap_histogram
from retro.scoring.perplexity import Metrics, Sizes, measure
from retro.stages.progress import Progress, at_step
from retro.stages.stage import Artifact, Stage, open_artifact, run_stage

OFF = "off"


def on(k: int) -> str:
    """The name of scoring with k neighbours."""
    return f"on-{k}"


class Evaluation:
    """What was measured: the bits of every token in every mode, and what follows from them."""

    def __init__(self, artifact: Artifact) -> None:
        self.artifact = artifact
        self.results: dict[str, Any] = json.loads(artifact.file("results.json").read_text())
        with np.load(artifact.file("scores.npz"), allow_pickle=False) as arrays:
            self.arrays = {name: arrays[name] for name in arrays.files}

    @staticmethod
    def open(path: str | Path) -> "Evaluation":
        return Evaluation(open_artifact(Path(path), "evaluation", f"retro evaluate MODEL --out {path}"))

    @property
    def modes(self) -> list[str]:
        return list(self.results["modes"])

    def metrics(self, mode: str) -> Metrics:
        return Metrics.read(self.results["modes"][mode])

    def bits_per_byte(self, mode: str) -> float:
        return self.metrics(mode).bits_per_byte.estimate

    def filtered(self, mode: str) -> list[FilteredScore]:
        """bpb(α)."""
        return [FilteredScore.read(entry) for entry in self.results["filtered"][mode]]

    def by_source(self, mode: str) -> dict[str, Interval]:
        """Bits per byte of every source."""
        return {
            source: Metrics.read(modes[mode]).bits_per_byte
            for source, modes in self.results["sources"].items()
        }

    def document_bits(self, mode: str) -> np.ndarray:
        return self.arrays[f"documents/{mode}"]

    def chunk_bits(self, mode: str) -> np.ndarray:
        return self.arrays[f"chunks/{mode}"]


def evaluate(
    model: LanguageModel,
    model_fingerprint: str,
    neighbours: Neighbours,
    path: Path,
    config: EvaluationConfig,
    progress: Progress | None = None,
    facts: dict[str, Any] | None = None,
) -> Evaluation:
    """Score the neighbours' token store with the model; what was scored before an interruption is not scored again.

    `facts` about the documents go into the results as they are.
    """
    store = neighbours.store
    ks = config.num_neighbours if model.facts.retrieves else ()

    def score_mode(stage: Stage, mode: str, k: int) -> Scores:
        told = at_step(progress, mode) if progress else None
        return score(model, store, config, neighbours if k else None, k, told, _kept_in(stage, mode))

    def work(stage: Stage) -> None:
        scores = {OFF: score_mode(stage, OFF, 0)} | {on(k): score_mode(stage, on(k), k) for k in ks}
        arrays, results = _summarise(scores, neighbours, config)
        with stage.write("scores.npz") as file:
            np.savez(file, allow_pickle=False, **arrays)
        with stage.write("results.json") as file:
            file.write(json.dumps(results | (facts or {}), indent=2).encode())
        for part in stage.path.glob("*.part.npy"):
            part.unlink()
        stage.counts.update(documents=len(store), tokens=len(store.tokens), bytes=int(store.num_bytes.sum()))

    inputs = {"model": model_fingerprint, "tokens": store.fingerprint, "neighbours": neighbours.fingerprint}
    return Evaluation(
        run_stage(path, "evaluation", to_dict(config), inputs, work, f"retro evaluate MODEL --out {path}")
    )


def _kept_in(stage: Stage, mode: str) -> Keep:
    """Keeps the bits of every part of a mode in a file of the unfinished folder."""

    def keep(number: int, make: Callable[[], np.ndarray]) -> np.ndarray:
        name = f"{mode}-{number:06}.part.npy"
        if not stage.has(name):
            bits = make()
            with stage.write(name) as file:
                np.save(file, bits)
            return bits
        return np.load(stage.file(name))

    return keep


def _summarise(
    scores: dict[str, Scores], neighbours: Neighbours, config: EvaluationConfig
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays that comparisons need, and the results."""
    store, table, tokenizer = neighbours.store, neighbours.table, neighbours.datastore.tokenizer
    sizes, sources = (
        Sizes.of(store, tokenizer),
        np.array([document["source"] for document in store.documents]),
    )
    chunks = {
        "num_bytes": chunk_bytes(table, tokenizer),
        "overlaps": chunk_overlaps(neighbours, config.leakage_neighbours),
    }
    chunks["documents"] = table.documents
    arrays = {
        **chunks,
        "document_bytes": sizes.num_bytes,
        "document_tokens": sizes.num_tokens,
        "document_words": sizes.num_words,
    }
    by_document, by_chunk = {}, {}
    for mode, scored in scores.items():
        by_document[mode] = arrays[f"documents/{mode}"] = scored.by_document()
        by_chunk[mode] = arrays[f"chunks/{mode}"] = scored.by_chunk(table)
    results = {
        "modes": {mode: asdict(measure(bits, sizes)) for mode, bits in by_document.items()},
        "sources": {
            source: {
                mode: asdict(measure(bits, sizes, sources == source)) for mode, bits in by_document.items()
            }
            for source in sorted(set(sources.tolist()))
        },
        "overlap": [asdict(part) for part in overlap_histogram(chunks["overlaps"], chunks["num_bytes"])],
        "filtered": {
            mode: [asdict(entry) for entry in filtered_bits_per_byte(bits, **chunks)]
            for mode, bits in by_chunk.items()
        },
    }
    return arrays, results
