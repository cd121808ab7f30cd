"""Language modelling with neighbours that were found by keys of three embedders, by words, or by both.

    python benchmarks/neighbour_kinds.py FOLDER [KIND …] [--steps 100] [--split test] [--seed 0]

The recipe `tiny` on licence texts, with a workspace for each kind below FOLDER; run again, it goes on. One
RETRO is trained with the neighbours of static keys and reads those of every kind; another is trained with the
neighbours that it reads. For both: bits per byte with two neighbours, what is saved of the bits of the model
that reads those of static keys, and what is saved of the baseline's bits on chunks that share at most an
eighth with their neighbours. The last columns are how much the chunks share with their two neighbours, and
the seconds of one thread that all keys and the search of the split took.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np

from retro import recipes
from retro.cli.console import RichNarrator, print_table
from retro.config import EvaluationConfig
from retro.jobs.scoring import evaluate_split
from retro.scoring.comparison import compare
from retro.scoring.evaluate import OFF, Evaluation, on
from retro.scoring.intervals import relative_gain
from retro.scoring.leakage import chunk_overlaps
from retro.scoring.wording import percent
from retro.study import Study
from retro.workspace import OpenRun

KINDS = {
    "static": ("static", "auto"),
    "minilm": ("minilm", "auto"),
    "mpnet": ("mpnet", "auto"),
    "bm25": ("static", "bm25"),
    "static-bm25": ("static", "hybrid"),
    "minilm-bm25": ("minilm", "hybrid"),
}
"""Embedder and index by name."""
FIRST = "static"
"""The kind that the others are compared with."""
K = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    # argparse would look for the empty list itself among its choices.
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--split", default="test")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if unknown := set(options.kinds) - set(KINDS):
        named, known = ", ".join(sorted(unknown)), ", ".join(KINDS)
        parser.error(f"no kind is called {named}; expected some of {known}")
    suffix = f"-{options.steps}-{options.seed}"
    first = study_of(FIRST, options)
    first.train(f"baseline{suffix}", first.run.model.baseline())
    baseline = scored(first, f"baseline{suffix}", first, options.split)
    plain = None
    rows = []
    for name in dict.fromkeys((FIRST, *(options.kinds or KINDS))):
        study = first if name == FIRST else study_of(name, options)
        study.train(f"{name}{suffix}")
        given, trained = (
            scored(first, f"{FIRST}{suffix}", study, options.split),
            scored(study, f"{name}{suffix}", study, options.split),
        )
        plain = plain or given
        rows.append([name, *numbers(baseline, plain, given), *numbers(baseline, plain, trained)])
        rows[-1] += [f"{shared(study, options.split):.1%}", f"{seconds(study, options.split):.0f}"]
    headings = ["neighbours", "given", "saved", "r ≤ 12.5 %", "trained", "saved", "r ≤ 12.5 %", "shared", "s"]
    title = f"{options.split}: baseline {baseline.bits_per_byte(OFF):.4f} bits per byte"
    print_table(title, headings, rows)


def study_of(name: str, options: argparse.Namespace) -> Study:
    """The workspace of a kind: all have the same documents, tokens and training."""
    embedder, index = KINDS[name]
    run = recipes.tiny()
    training = replace(
        run.training,
        num_steps=options.steps,
        warmup_steps=options.steps // 10,
        precision="auto",
        seed=options.seed,
    )
    datastore = replace(run.datastore, embedder=embedder, embedder_precision="auto", index=index)
    run = replace(run, datastore=datastore, training=training)
    study = Study(options.folder / name, run, ("licences",), RichNarrator())
    study.prepare()
    return study


def scored(trained: Study, name: str, read: Study, split: str) -> Evaluation:
    """A run of one workspace with the neighbours of another, which keeps the scores."""
    config = EvaluationConfig(window=512, stride=256, num_neighbours=(K,), precision="auto")
    opened = OpenRun(trained.work.run_path(name), read.work, out=read.folder / "evaluations")
    title = f"Evaluating {name} with neighbours of {read.folder.name}"
    with read.narrator.progress(title) as progress:
        return evaluate_split(opened, split, config, progress)


def numbers(baseline: Evaluation, plain: Evaluation, retro: Evaluation) -> list[str]:
    bits = retro.document_bits(on(K))
    same = np.array_equal(bits, plain.document_bits(on(K)))
    return [
        f"{retro.bits_per_byte(on(K)):.4f}",
        "" if same else percent(relative_gain(bits, plain.document_bits(on(K)))),
        percent(compare(baseline, retro, on(K)).gain_on_new_chunks),
    ]


def shared(study: Study, split: str) -> float:
    """The part of a chunk that stands in its two neighbours word for word, as a mean."""
    return float(chunk_overlaps(study.work.neighbours(split), K).mean())


def seconds(study: Study, split: str) -> float:
    """What the keys and the search of a split took."""
    return sum(study.clock.seconds[part] for part in ("datastore", f"neighbours of {split}"))


if __name__ == "__main__":
    main()
