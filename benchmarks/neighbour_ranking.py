"""Neighbours in another order than that of their keys: what there is to gain, and what a cheap ranker gets.

    python benchmarks/neighbour_ranking.py WORK RUN [--candidates 10] [--documents 120] [--window 512]
        [--learn-from valid] [--learn-documents 120]

Of the nearest neighbours of a chunk, each is read alone, and what it saves of the bits of the next chunk is
what it did. The *oracle* reads the two that did most on the very text that is scored: a bound, and no method.
The *ranker* is a ridge regression of what a neighbour did on what can be seen before the next chunk: its rank
and distance, how much it shares with the chunk, how long a run it shares with the chunk's end, how much its
continuation has in common with those of the others, whether it goes on with a neighbour of the chunk before.
It is fitted on other documents (`--learn-from`), and each feature is a row by itself. Everything reads two
neighbours and scores the beginnings of test documents; gains are over the plain order, paired by document.
Run again, it goes on.
"""

import argparse
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

from retro.cli.console import RichNarrator, print_table
from retro.comparators.rows import OFF, Rows, Scorer, score_windows
from retro.jobs.retrieval import find_neighbours
from retro.machine import product_dtype
from retro.retrieval.overlap import longest_common_prefix, longest_common_substring
from retro.scoring.bits_per_byte import score_batch
from retro.scoring.leakage import chunk_overlaps, read_overlaps
from retro.scoring.windows import Window, beginnings
from retro.scoring.wording import percent
from retro.stages.parts import JSON, Parts
from retro.workspace import OpenRun, open_run

READ = 2
"""Neighbours that are read."""
ENDING = 16
"""Tokens of a chunk's end that a shared run may end at."""
PENALTY = 1.0
"""Of the ridge regression, on features of deviation 1; it was not tuned."""
PLAIN, ORACLE, LEARNED = "plain order", "oracle", "ranker"
SEEN = (0.125, 0.5)
"""Overlaps that part text that is new from copies."""


class Reading:
    """The beginnings of documents of a split, scored with neighbours in several orders."""

    def __init__(self, opened: OpenRun, split: str, options: argparse.Namespace, documents: int) -> None:
        self.opened = opened
        self.options = options
        assert opened.work is not None
        if not opened.work.neighbours_path(split).exists():
            find_neighbours(opened.work, split)
        self.neighbours = opened.neighbours(split)
        self.table = self.neighbours.table
        self.windows = beginnings(self.table, documents, options.window)
        name = f"{opened.name}-{split}-{options.window}-{documents}"
        self.kept = Parts(opened.work.path / "ranking" / name, JSON)
        self.candidates = np.asarray(self.neighbours.chunks)[:, : options.candidates].astype(np.int64)
        self.distances = np.asarray(self.neighbours.distances)[:, : options.candidates]

    def scorer(self, order: np.ndarray | None) -> Scorer:
        """Reads the candidates of these places (chunk, rank); nothing without."""
        model = self.opened.model
        dtype = product_dtype("auto", model.device)
        found, k = None, 0
        if order is not None:
            k = order.shape[1]
            found = self.neighbours.replaced(
                np.take_along_axis(self.candidates, order, axis=1),
                np.take_along_axis(self.distances, order, axis=1),
            )

        def score(window: Window) -> np.ndarray:
            return score_batch(model, self.table, [window], found, k, dtype)

        return score

    def score(self, title: str, scorers: Mapping[str, Scorer]) -> None:
        with RichNarrator().progress(title) as progress:
            score_windows(self.windows, scorers, self.kept, progress)

    def rows(self) -> Rows:
        bits = {window.start: self.kept.read(str(window.start)) for window in self.windows}
        return Rows(self.neighbours, self.opened.tokenizer.token_lengths, bits)

    def did(self) -> np.ndarray:
        """Bits of the next chunk that each candidate saves if it is read alone (chunk, rank); NaN where there
        is no next chunk in the window, or no candidate."""
        every = range(self.candidates.shape[1])
        alone = {f"rank {rank + 1}": np.full((len(self.table), 1), rank) for rank in every}
        self.score(
            "Reading each alone", {OFF: self.scorer(None)} | {n: self.scorer(o) for n, o in alone.items()}
        )
        saved = np.full(self.candidates.shape, np.nan)
        m = self.table.chunk_len
        for window in self.windows:
            found = self.kept.read(str(window.start))
            first = self.table.first[window.document]
            off = np.array(found[OFF]["bits"])
            for rank, name in enumerate(alone):
                gain = off - np.array(found[name]["bits"])
                # The first token of a window is not predicted, so a chunk's bits begin one place earlier.
                for number in range(window.num_tokens // m - 1):
                    begin = (number + 1) * m - 1
                    saved[first + number, rank] = gain[begin : begin + m].sum()
        saved[self.candidates < 0] = np.nan
        return saved

    def features(self, chunks: np.ndarray) -> dict[str, np.ndarray]:
        """What is seen of each candidate of these chunks before the next chunk (chunk, rank)."""
        shape = (len(chunks), self.candidates.shape[1])
        names = ("shared", "run", "run at the end", "tokens", "continues", "agrees", "follows")
        found = {name: np.zeros(shape) for name in names}
        m, pad = self.table.chunk_len, self.table.pad_id
        tokens = self.table.gather(chunks, m)
        values, _ = self.neighbours.replaced(self.candidates, self.distances).values(chunks, shape[1])
        for rank in range(shape[1]):
            found["run"][:, rank] = longest_common_substring(tokens, values[:, rank : rank + 1], pad) / m
        for row, (chunk, text) in enumerate(zip(chunks, tokens, strict=True)):
            continuations = [_pairs(value[m:], pad) for value in values[row]]
            before = self.candidates[chunk - 1] if chunk not in self.table.first else np.zeros(0)
            for rank, value in enumerate(values[row]):
                # A run at the last token of [N, F] is followed by nothing.
                runs = longest_common_prefix(text[-ENDING:], value[None, :-1], pad)
                found["run at the end"][row, rank] = np.log1p(runs[-1])
                found["tokens"][row, rank] = np.isin(text, value[value != pad]).mean()
                found["shared"][row, rank] = len(_pairs(text, pad) & _pairs(value, pad)) / m
                found["continues"][row, rank] = (value[m:] != pad).mean()
                others = [pairs for other, pairs in enumerate(continuations) if other != rank]
                common = [len(continuations[rank] & pairs) for pairs in others]
                found["agrees"][row, rank] = np.mean(common) / m if common else 0.0
                found["follows"][row, rank] = float((before == self.candidates[chunk, rank] - 1).any())
        distances = np.where(np.isfinite(self.distances[chunks]), self.distances[chunks], 0.0)
        found["nearness"] = -distances
        found["rank"] = np.broadcast_to(-np.log1p(np.arange(shape[1])), shape)
        return found


def _pairs(tokens: np.ndarray, pad: int) -> set[tuple[int, int]]:
    real = tokens[tokens != pad].tolist()
    return set(pairwise(real))


def centred(values: np.ndarray, real: np.ndarray) -> np.ndarray:
    """What sets a candidate apart from the others of its chunk; all that an order depends on."""
    counts = np.maximum(real.sum(axis=1, keepdims=True), 1)
    means = np.where(real, values, 0.0).sum(axis=1, keepdims=True) / counts
    return np.where(real, values - means, 0.0)


def learn(features: Mapping[str, np.ndarray], did: np.ndarray) -> dict[str, float]:
    """The weight of every feature: ridge regression of the bits that a candidate saves, within each chunk."""
    real = np.isfinite(did)
    inputs = np.stack([centred(values, real)[real] for values in features.values()], axis=1)
    target = centred(np.nan_to_num(did), real)[real]
    scale = inputs.std(axis=0) + 1e-9
    inputs = inputs / scale
    gram = inputs.T @ inputs + PENALTY * np.eye(len(scale))
    weights = np.linalg.solve(gram, inputs.T @ target) / scale
    return dict(zip(features, weights.tolist(), strict=True))


def ordered(scores: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    """The places of the candidates, highest score first; equals, and those that are missing, as they were."""
    usable = np.where((candidates >= 0) & np.isfinite(scores), scores, -np.inf)
    return np.argsort(-usable, axis=1, kind="stable")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("work", type=Path)
    parser.add_argument("run")
    parser.add_argument("--candidates", type=int, default=10)
    parser.add_argument("--documents", type=int, default=120)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--learn-from", default="valid")
    parser.add_argument("--learn-documents", type=int, default=120)
    parser.add_argument("--split", default="test", help="the documents that are told of")
    options = parser.parse_args()
    opened = open_run(options.work, options.run)
    with torch.inference_mode():
        learned_from = Reading(opened, options.learn_from, options, options.learn_documents)
        did = learned_from.did()
        chunks = np.flatnonzero(np.isfinite(did).any(axis=1))
        weights = learn(learned_from.features(chunks), did[chunks])
        show_weights(weights, learned_from.features(chunks), did[chunks])
        report(Reading(opened, options.split, options, options.documents), weights)


def show_weights(weights: Mapping[str, float], features: Mapping[str, np.ndarray], did: np.ndarray) -> None:
    """Bits of a next chunk that a deviation of each feature is worth, and its correlation by itself."""
    real = np.isfinite(did)
    target = centred(np.nan_to_num(did), real)[real]
    rows = []
    for name, values in features.items():
        inside = centred(values, real)[real]
        alone = np.corrcoef(inside, target)[0, 1] if inside.std() else 0.0
        rows.append([name, f"{weights[name] * inside.std():+.2f}", f"{alone:+.3f}"])
    title = f"Learned from {len(did):,} chunks"
    print_table(title, ["feature", "bits a deviation", "correlation alone"], rows)


def report(reading: Reading, weights: Mapping[str, float]) -> None:
    did = reading.did()
    chunks = np.flatnonzero(np.isfinite(did).any(axis=1))
    features = reading.features(chunks)
    scores = {ORACLE: did[chunks], LEARNED: sum(weights[name] * features[name] for name in features)}
    scores |= {name: values for name, values in features.items() if name != "rank"}
    orders = {PLAIN: np.tile(np.arange(READ), (len(did), 1))}
    for name, values in scores.items():
        order = orders[PLAIN].copy()
        order[chunks] = ordered(np.asarray(values), reading.candidates[chunks])[:, :READ]
        orders[name] = order
    everything = np.tile(np.arange(reading.candidates.shape[1]), (len(did), 1))
    orders[f"all {everything.shape[1]}"] = everything
    stale = {name: f"{name} by {_digest(weights)}" if name == LEARNED else name for name in orders}
    reading.score("Scoring orders", {stale[name]: reading.scorer(order) for name, order in orders.items()})
    show(reading, stale)


def _digest(weights: Mapping[str, float]) -> str:
    """A ranker with other weights is another row."""
    return "/".join(f"{value:.3g}" for value in weights.values())


def show(reading: Reading, names: Mapping[str, str]) -> None:
    rows = reading.rows()
    read = reading.neighbours.replaced(reading.candidates, reading.distances)
    overlaps = read_overlaps(read, chunk_overlaps(read, reading.candidates.shape[1]))
    groups: Sequence[tuple[str, np.ndarray]] = [
        (f"r ≤ {SEEN[0]:.1%}", overlaps <= SEEN[0]),
        (f"to {SEEN[1]:.0%}", (overlaps > SEEN[0]) & (overlaps <= SEEN[1])),
        (f"above {SEEN[1]:.0%}", overlaps > SEEN[1]),
    ]
    lines = []
    for name, row in [(OFF, OFF), *names.items()]:
        whole = rows.result(row, PLAIN)
        inside = [percent(rows.result(row, PLAIN, group).gain) for _, group in groups]
        saved = percent(rows.result(row).gain)
        lines.append([name, f"{whole.bits_per_byte.estimate:.4f}", saved, percent(whole.gain), *inside])
    titles = [f"{title}, {rows.result(OFF, counted=group).num_chunks} chunks" for title, group in groups]
    headings = ["order", "bits per byte", "saved of off", "over plain", *titles]
    num = reading.candidates.shape[1]
    print_table(f"{len(reading.windows)} documents, the first two of {num}", headings, lines)


if __name__ == "__main__":
    main()
