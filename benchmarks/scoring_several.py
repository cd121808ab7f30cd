"""`retro evaluate` with several k at once, beside scoring with each k alone.

    python benchmarks/scoring_several.py [--work FOLDER] [--ks 0,1,2,4,10 0,50] [--batches 2] [--rounds 3]

CPU time of this process, on one thread and in turns, so that it can be run beside other work. *Alone* is one
`model.score` for each k, as it was before a window was read once for all of them. The recipe `tiny` on
licences, with random weights, which do not change the time; batches from the longest windows to the shortest.
"""

import argparse
import dataclasses
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from retro import catalogue, recipes
from retro.corpus.ingest import ingest
from retro.jobs.retrieval import build, find_neighbours
from retro.machine import keep_freed_memory
from retro.model.protocol import Scored
from retro.model.retro import Retro
from retro.retrieval.neighbours import Neighbours
from retro.scoring.parts import inputs_of, score_inputs
from retro.scoring.windows import batches_of, windows_of
from retro.workspace import Workspace
from scoring import WINDOW, spread

STRIDE = 256


class OneByOne:
    """A model that is asked for each k by itself."""

    def __init__(self, model: Retro) -> None:
        self.model = model
        self.facts = model.facts
        self.device = model.device

    def __call__(self, *inputs: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(*inputs)
        return logits

    def score(self, *inputs: torch.Tensor, greedy: bool = False) -> Scored:
        return self.model.score(*inputs, greedy=greedy)

    def begin(self, window: int = 0) -> object:
        return self.model.begin(window)


def prepared(work: Path) -> Neighbours:
    for name in ("licences", "static"):
        catalogue.fetch(name)
    workspace, run = Workspace(work), recipes.tiny()
    ingest(workspace, ["licences"], run.corpus)
    if not workspace.datastore_path.exists():
        build(workspace, dataclasses.replace(run.datastore, embedder="static", num_neighbours=50))
    return find_neighbours(workspace, "test")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "retro-several-benchmark")
    parser.add_argument("--ks", nargs="+", default=["0,1,2,4,10", "0,50"])
    parser.add_argument("--batches", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    neighbours = prepared(options.work)
    store, config = neighbours.store, recipes.tiny().model
    vocab_size = store.artifact.counts["vocab_size"]
    model = Retro(dataclasses.replace(config, vocab_size=vocab_size, pad_id=store.pad_id)).eval()
    models = {"alone": OneByOne(model), "together": model}
    every = list(batches_of(windows_of(store, WINDOW, STRIDE), 8 * WINDOW))
    for asked in options.ks:
        ks = [int(k) for k in asked.split(",")]
        batches = [
            inputs_of(neighbours.table, b, neighbours, max(ks)) for b in spread(every, options.batches)
        ]
        seconds: dict[str, list[float]] = {name: [] for name in models}
        bits: dict[str, np.ndarray] = {}
        for _ in range(options.rounds):
            for name, one in models.items():
                started = time.process_time()
                found = [score_inputs(one, batch, ks) for batch in batches]
                seconds[name].append(time.process_time() - started)
                bits[name] = np.concatenate(found, axis=1)
        alone, together = (statistics.median(seconds[name]) for name in models)
        off = np.abs(bits["together"] - bits["alone"]).max() / bits["alone"].mean()
        print(
            f"k {asked}: together in {together / alone:.2f} of the CPU time of each alone "
            f"({alone:.1f} s), {alone / together:.2f} times as fast; bits differ by at most {off:.1g} of "
            "the mean"
        )


if __name__ == "__main__":
    main()
