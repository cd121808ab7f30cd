"""What a RETRO learns when training leaves neighbours out: without them, with more of them, where nothing is
copied.

    python benchmarks/training_choices.py WORK [CHOICE …] [--steps 150] [--split valid] [--seed 0]

Trains the recipe `tiny` on licence texts with static keys, and its baseline, once as they are and once for
each choice below; run again, it goes on. A row for each: bits per byte without retrieval and with two
neighbours, what is saved of the baseline's bits without retrieval, with two neighbours, and on chunks that
share at most an eighth with theirs, and what ten neighbours save of the bits with two. Choices are made on
validation documents; the test documents are for those that were chosen.
"""

import argparse
from dataclasses import replace
from pathlib import Path

from retro import recipes
from retro.cli.console import RichNarrator, print_table
from retro.config import EvaluationConfig
from retro.jobs.scoring import evaluate_split
from retro.scoring.comparison import compare
from retro.scoring.evaluate import OFF, Evaluation, on
from retro.scoring.intervals import relative_gain
from retro.scoring.wording import percent
from retro.study import Study

CHOICES = {
    "retro": {},
    "leave-out-0.1": {"leave_out": 0.1},
    "leave-out-0.2": {"leave_out": 0.2},
    "leave-out-0.4": {"leave_out": 0.4},
    "four-neighbours": {"num_neighbours": 4},
    "up-to-four": {"num_neighbours": 4, "vary_neighbours": True},
    "longest-run-16": {"longest_run": 16},
    "longest-run-8": {"longest_run": 8},
    "robust": {"num_neighbours": 4, "vary_neighbours": True, "leave_out": 0.2},
}
"""Changes of the training config by name."""
FEW, MANY = 2, 10
"""Neighbours at evaluation."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("work", type=Path)
    # argparse would look for the empty list itself among its choices.
    parser.add_argument("choices", nargs="*", metavar="CHOICE", help=", ".join(CHOICES))
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--split", default="valid")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if unknown := set(options.choices) - set(CHOICES):
        named, known = ", ".join(sorted(unknown)), ", ".join(CHOICES)
        parser.error(f"no choice is called {named}; expected some of {known}")
    run = recipes.tiny()
    training = replace(
        run.training,
        num_steps=options.steps,
        warmup_steps=options.steps // 10,
        precision="auto",
        seed=options.seed,
    )
    study = Study(
        options.work,
        replace(run, datastore=replace(run.datastore, embedder="static"), training=training),
        ("licences",),
        RichNarrator(),
    )
    study.prepare()
    suffix = f"-{options.steps}-{options.seed}"
    study.train(f"baseline{suffix}", run.model.baseline(), training)
    baseline = scored(study, f"baseline{suffix}", options.split)
    rows = []
    for name in options.choices or CHOICES:
        study.train(f"{name}{suffix}", run.model, replace(training, **CHOICES[name]))  # type: ignore[arg-type]
        rows.append([name, *numbers(baseline, scored(study, f"{name}{suffix}", options.split))])
    headings = [
        "choice",
        "off",
        f"k = {FEW}",
        "off saves",
        f"k = {FEW} saves",
        "r ≤ 12.5 %",
        f"{MANY} over {FEW}",
    ]
    title = f"{options.split}: baseline {baseline.bits_per_byte(OFF):.4f} bits per byte"
    print_table(title, headings, rows)


def scored(study: Study, name: str, split: str) -> Evaluation:
    config = EvaluationConfig(window=512, stride=256, num_neighbours=(FEW, MANY), precision="auto")
    with study.narrator.progress(f"Evaluating {name}") as progress:
        return evaluate_split(study.opened(name), split, config, progress)


def numbers(baseline: Evaluation, retro: Evaluation) -> list[str]:
    """A row of the table."""
    off, few, many = (retro.document_bits(mode) for mode in (OFF, on(FEW), on(MANY)))
    alone = baseline.document_bits(OFF)
    return [
        f"{retro.bits_per_byte(OFF):.4f}",
        f"{retro.bits_per_byte(on(FEW)):.4f}",
        percent(relative_gain(off, alone)),
        percent(relative_gain(few, alone)),
        percent(compare(baseline, retro, on(FEW)).gain_on_new_chunks),
        percent(relative_gain(many, few)),
    ]


if __name__ == "__main__":
    main()
