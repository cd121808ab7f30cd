"""How often a run says nothing: where the passages hold the answer, and where they do not.

    python benchmarks/abstention.py WORK RUN [--num-questions N] [--valid 300] [--test 500] [--max-tokens 16]
        [--search hybrid] [--n 5] [--precision auto]

Each question is answered with its gold passage, with that of another question, and with n that are searched
for. A run says nothing by itself where its answer is empty. An answer can be withheld besides if it is less
probable than a threshold; that is chosen on training questions which the run held out, where the mean of
two parts is highest: gold passages that are answered, and others that are not. N is that of `retro fit`. The
table is of `squad@valid`, and the last columns are of the answers that are given.
"""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from retro.cli.console import RichNarrator, print_table
from retro.config import QuestionsConfig
from retro.questions.evaluation import choose_sample, evaluate_questions, read_answers, way_path
from retro.questions.examples import Question, read_questions
from retro.questions.finetuning import split
from retro.questions.scoring import is_silent, mean, percent
from retro.questions.ways import ways_of
from retro.workspace import OpenRun, open_run

VALID_FRACTION = 0.05
"""What `retro fit` holds out, unless it is told otherwise."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("work", type=Path)
    parser.add_argument("run")
    parser.add_argument("--num-questions", type=int, default=0)
    parser.add_argument("--valid", type=int, default=300)
    parser.add_argument("--test", type=int, default=500)
    parser.add_argument("--max-tokens", type=int, default=16)
    parser.add_argument("--search", default="hybrid")
    parser.add_argument("--n", type=int, default=5)
    parser.add_argument("--precision", default="auto")
    options = parser.parse_args()
    opened = open_run(options.work, options.run)
    known = choose_sample(read_questions("squad@train").with_answers(), options.num_questions)
    held_out = split(known, [VALID_FRACTION])[0]
    valid = answered(opened, held_out, options.valid, ("gold", "shuffled"), "held-out", options)
    least = threshold(valid["gold"], foreign(valid["shuffled"]))
    print(f"least log-probability, from {len(valid['gold'])} held-out questions: {least:.3f}")
    ways = ("none", "gold", "shuffled", options.search)
    dev = read_questions("squad@valid").with_answers()
    test = answered(opened, dev, options.test, ways, f"questions-squad-valid-{options.test}", options)
    searched = test[options.search]
    rows = {
        "gold passage": test["gold"],
        "that of another question, without the answer": foreign(test["shuffled"]),
        f"{options.search}, n = {options.n}, with the answer": [row for row in searched if row["recalled"]],
        f"{options.search}, n = {options.n}, without": foreign(searched),
    }
    headings = ["passages", "questions", "says nothing", "or withheld", "exact match", "F1", "of those given"]
    table = [[name, f"{len(found):,}", *parts_of(found, least)] for name, found in rows.items() if found]
    print_table(f"{options.run}: in %, with 95 % intervals", headings, table)


def answered(
    opened: OpenRun,
    questions: Sequence[Question],
    number: int,
    passages: tuple[str, ...],
    name: str,
    options: argparse.Namespace,
) -> dict[str, list[dict[str, Any]]]:
    """The answers to so many questions with each kind of passages."""
    config = QuestionsConfig(
        passages=passages,
        num_passages=(options.n,),
        num_questions=number,
        max_tokens=options.max_tokens,
        precision=options.precision,
    )
    path = opened.evaluation_path(name)
    with RichNarrator().progress(f"Answering with {opened.name}") as progress:
        evaluate_questions(opened, questions, path, config, progress)
    return {way.passages: read_answers(way_path(path, way)) for way in ways_of(config)}


def foreign(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those whose passages do not hold the answer; another question's sometimes do."""
    return [row for row in rows if not row["recalled"]]


def confidence(row: dict[str, Any]) -> float:
    """How sure the run is of an answer; of an empty one it is not."""
    return -math.inf if is_silent(row["answer"]) else float(row["log_prob"])


def threshold(gold: Sequence[dict[str, Any]], other: Sequence[dict[str, Any]]) -> float:
    """The least confidence at which answers with the gold passage are told best from those without it."""
    with_it, without = (np.array([confidence(row) for row in rows]) for rows in (gold, other))
    candidates = np.unique(with_it[np.isfinite(with_it)])
    told = [(with_it >= least).mean() + (without < least).mean() for least in candidates]
    above = (with_it[:, None] > without).mean() + 0.5 * (with_it[:, None] == without).mean()
    print(f"an answer with the gold passage is the surer one of two in {100 * above:.1f} %")
    return float(candidates[int(np.argmax(told))])


def parts_of(rows: Sequence[dict[str, Any]], least: float) -> list[str]:
    sure = np.array([confidence(row) for row in rows])
    given = [row for row, value in zip(rows, sure, strict=True) if value >= least]
    scores = [
        percent(mean(np.array([row[name] for row in given]))) if given else ""
        for name in ("exact_match", "f1")
    ]
    return [percent(mean(np.isinf(sure))), percent(mean(sure < least)), *scores, f"{len(given):,}"]


if __name__ == "__main__":
    main()
