"""`retro evaluate` with several k at once, beside scoring with each k alone.

    python benchmarks/scoring_several.py [--work FOLDER] [--ks 0,1,2,4,10 0,50] [--batches 2] [--batch-size 8]
                                         [--rounds 3]

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

import torch

from retro import catalogue, recipes
from retro.corpus.ingest import ingest
from retro.jobs.retrieval import build, find_neighbours
from retro.machine import keep_freed_memory
from retro.model.protocol import score_each
from retro.model.retro import Retro
from retro.retrieval.neighbours import Neighbours
from retro.scoring.windows import batch_inputs, batch_targets, batches_of, windows_of
from retro.workspace import Workspace
from scoring import WINDOW, spread

STRIDE = 256


def prepared(work: Path) -> Neighbours:
    for name in ("licences", "static"):
        catalogue.fetch(name)
    workspace, run = Workspace(work), recipes.tiny()
    ingest(workspace, ["licences"], run.corpus)
    if not workspace.datastore_path.exists():
        build(workspace, dataclasses.replace(run.datastore, embedder="static", num_neighbours=50))
    return find_neighbours(workspace, "test")


@torch.inference_mode()
def score(model: Retro, batch: list[torch.Tensor], ks: list[int], together: bool) -> torch.Tensor:
    """The log-probabilities (k, window, token), with all k at once or each by itself."""
    tokens, targets, *retrieved = batch
    if together:
        found = score_each(model, tokens, targets, ks, *retrieved)
    else:
        found = [model.score(tokens, targets, *(part[:, :, :k] for part in retrieved if k)) for k in ks]
    return torch.stack([scored.log_probs for scored in found])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "retro-several-benchmark")
    parser.add_argument("--ks", nargs="+", default=["0,1,2,4,10", "0,50"])
    parser.add_argument("--batches", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    neighbours = prepared(options.work)
    store, config = neighbours.store, recipes.tiny().model
    vocab_size = store.artifact.counts["vocab_size"]
    model = Retro(dataclasses.replace(config, vocab_size=vocab_size, pad_id=store.pad_id)).eval()
    ways = ("alone", "together")
    every = list(batches_of(windows_of(store, WINDOW, STRIDE), options.batch_size * WINDOW))
    for asked in options.ks:
        ks = [int(k) for k in asked.split(",")]
        batches = []
        for windows in spread(every, options.batches):
            tokens, *retrieved = batch_inputs(neighbours.table, windows, neighbours, max(ks))
            batches.append([tokens, batch_targets(store, windows), *retrieved])
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        log_probs: dict[str, torch.Tensor] = {}
        for _ in range(options.rounds):
            for name in ways:
                started = time.process_time()
                found = [score(model, batch, ks, together=name == "together") for batch in batches]
                seconds[name].append(time.process_time() - started)
                log_probs[name] = torch.cat([part.flatten() for part in found])
        alone, together = (statistics.median(seconds[name]) for name in ways)
        off = (log_probs["together"] - log_probs["alone"]).abs().max() / log_probs["alone"].abs().max()
        print(
            f"k {asked}: together in {together / alone:.2f} of the CPU time of each alone "
            f"({alone:.1f} s), {alone / together:.2f} times as fast; the bits differ by at most "
            f"{off:.1g} of the largest"
        )


if __name__ == "__main__":
    main()
