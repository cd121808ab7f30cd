"""The evaluation stage: a model on a token store, without retrieval and with several k, chunk by chunk."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from retro.artifacts import Artifact, Stage, open_artifact, run_stage
from retro.config import EvaluationConfig, to_dict
from retro.evaluation.bits_per_byte import Scores, chunk_bytes, score
from retro.evaluation.intervals import Interval, bootstrap_ratio
from retro.evaluation.leakage import chunk_overlaps, filtered_bits_per_byte
from retro.model.retro import Retro
from retro.retrieval.neighbours import Neighbours

Progress = Callable[[str, int, int], None]
"""Called with the mode, the windows done and the windows in all."""

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

    def bits_per_byte(self, mode: str) -> float:
        value: float = self.results["modes"][mode]["estimate"]
        return value

    def by_source(self, mode: str) -> dict[str, Interval]:
        """Bits per byte of every source."""
        return {source: Interval(**modes[mode]) for source, modes in self.results["sources"].items()}

    def document_bits(self, mode: str) -> np.ndarray:
        return self.arrays[f"documents/{mode}"]

    def chunk_bits(self, mode: str) -> np.ndarray:
        return self.arrays[f"chunks/{mode}"]


def evaluate(
    model: Retro,
    model_fingerprint: str,
    neighbours: Neighbours,
    path: Path,
    config: EvaluationConfig,
    progress: Progress | None = None,
    facts: dict[str, Any] | None = None,
) -> Evaluation:
    """Score the neighbours' token store with the model; a finished mode is kept when the work is interrupted.

    `facts` about the documents go into the results as they are.
    """
    store, table = neighbours.store, neighbours.table
    ks = config.num_neighbours if model.config.uses_retrieval else ()

    def score_mode(stage: Stage, mode: str, k: int) -> Scores:
        name = f"{mode}.npy"
        if not stage.has(name):
            told = (lambda done, total: progress(mode, done, total)) if progress else None
            bits = score(model, store, config, neighbours if k else None, k, told).bits
            with stage.write(name) as file:
                np.save(file, bits)
        return Scores(store, np.load(stage.file(name)))

    def work(stage: Stage) -> None:
        scores = {OFF: score_mode(stage, OFF, 0)} | {on(k): score_mode(stage, on(k), k) for k in ks}
        overlaps = chunk_overlaps(neighbours, config.leakage_neighbours)
        num_bytes = chunk_bytes(table, neighbours.datastore.tokenizer)
        arrays = {"overlaps": overlaps, "num_bytes": num_bytes, "document_bytes": store.num_bytes}
        sources = np.array([document["source"] for document in store.documents])
        results: dict[str, Any] = {"modes": {}, "filtered": {}, "sources": {source: {} for source in sorted(set(sources.tolist()))}}
        for mode, scored in scores.items():
            arrays[f"documents/{mode}"], arrays[f"chunks/{mode}"] = scored.by_document(), scored.by_chunk(table)
            results["modes"][mode] = asdict(bootstrap_ratio(scored.by_document(), store.num_bytes))
            results["filtered"][mode] = [asdict(entry) for entry in filtered_bits_per_byte(scored.by_chunk(table), num_bytes, overlaps)]
            for source, by_mode in results["sources"].items():
                own = sources == source
                by_mode[mode] = asdict(bootstrap_ratio(scored.by_document()[own], store.num_bytes[own]))
            stage.file(f"{mode}.npy").unlink()
        with stage.write("scores.npz") as file:
            np.savez(file, allow_pickle=False, **arrays)
        with stage.write("results.json") as file:
            file.write(json.dumps(results | (facts or {}), indent=2).encode())
        stage.counts.update(documents=len(store), tokens=len(store.tokens), bytes=int(store.num_bytes.sum()))

    inputs = {"model": model_fingerprint, "tokens": store.fingerprint, "neighbours": neighbours.fingerprint}
    return Evaluation(run_stage(path, "evaluation", to_dict(config), inputs, work, f"retro evaluate MODEL --out {path}"))
