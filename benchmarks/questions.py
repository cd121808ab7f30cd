"""What passages are worth: a fine-tuned model closed book, open book, and with the passages of another
question.

    python benchmarks/questions.py probe [--steps 400] [--plain-start] [--passages 4] [--out FOLDER]
    python benchmarks/questions.py experiment WORK RUN QUESTIONS [--baseline RUN] [--steps N] [--k N]
        [--frozen] [--name NAME]
    python benchmarks/questions.py split QUESTIONS FOLDER

`probe` trains a small RETRO from scratch on a task that only the passages can solve. `experiment`
fine-tunes a run of a workspace on a file of questions with passages, split by question, each filled up to k
passages from the workspace's datastore with such as do not hold the answer; with `--baseline` that run is
fine-tuned closed book beside it. Run again, it goes on from its last checkpoint. `split` writes four fifths
of a file as `train.jsonl`, a fifth as `test.jsonl`, and the passages of both, each once, as `passages.jsonl`,
a text to make a datastore of.
"""

import argparse
import json
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import torch

from retro import recipes
from retro.cli.console import RichNarrator, print_table
from retro.config import FineTuningConfig
from retro.questions.examples import Question, read_questions
from retro.questions.finetuning import run_experiment, split
from retro.questions.scoring import HEADINGS, Comparison
from retro.questions.synthetic import probe_training, run_probe
from retro.stages.files import atomic_path
from retro.workspace import Workspace


def main() -> None:
    options = arguments()
    torch.set_num_threads(options.threads)
    if options.task == "split":
        write_split(options.questions, options.folder)
    else:
        compare(options)


def compare(options: argparse.Namespace) -> None:
    found = probe(options) if options.task == "probe" else experiment(options)
    print_table(
        f"{options.task}: {found.num_questions:,} questions; in %, with 95 % intervals",
        HEADINGS,
        found.rows(),
    )
    for way, gain in found.f1_gains.items():
        print(
            f"F1 of open book above {way}: {100 * gain.estimate:.1f} ({100 * gain.low:.1f} – "
            f"{100 * gain.high:.1f})"
        )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    tasks = parser.add_subparsers(dest="task", required=True)
    probing, real, splitting = (tasks.add_parser(name) for name in ("probe", "experiment", "split"))
    splitting.add_argument("questions")
    splitting.add_argument("folder", type=Path)
    probing.add_argument("--steps", type=int, default=400)
    probing.add_argument("--passages", type=int, default=4)
    probing.add_argument("--plain-start", action="store_true")
    probing.add_argument("--out", type=Path)
    real.add_argument("work", type=Path)
    real.add_argument("run")
    real.add_argument("questions")
    real.add_argument("--baseline", default="")
    real.add_argument("--name", default="questions")
    real.add_argument("--recipe", default="questions-tiny")
    real.add_argument("--frozen", action="store_true")
    for name in ("--steps", "--k"):
        real.add_argument(name, type=int, default=0)
    real.add_argument("--rate", type=float, default=0.0)
    return parser.parse_args()


def probe(options: argparse.Namespace) -> Comparison:
    config = replace(probe_training(options.steps), num_neighbours=options.passages)
    with tempfile.TemporaryDirectory() as folder, RichNarrator().progress("Training on the probe") as told:
        return run_probe(
            options.out or Path(folder) / "probe", config, not options.plain_start, progress=told
        )


def experiment(options: argparse.Namespace) -> Comparison:
    config = recipes.get(options.recipe).training
    rate = options.rate or config.learning_rate
    config = replace(
        config,
        num_steps=options.steps or config.num_steps,
        num_neighbours=options.k or config.num_neighbours,
        learning_rate=rate,
        min_learning_rate=rate / 10,
    )
    questions, tuning = read_questions(options.questions).rows, FineTuningConfig(frozen=options.frozen)
    with RichNarrator().progress(f"Fine-tuning {options.name}") as told:
        found = run_experiment(
            Workspace(options.work),
            options.run,
            questions,
            config,
            options.name,
            tuning,
            options.baseline,
            progress=told,
        )
    print(
        f"{found.num_train:,} questions to train on, {found.num_valid:,} to validate, "
        f"{found.num_test:,} to test"
    )
    return found.comparison


def write_split(source: str, folder: Path) -> None:
    test, train = split(read_questions(source).with_answers(), [0.2])
    passages = dict.fromkeys(passage for question in train + test for passage in question.passages)
    write_lines(folder / "train.jsonl", map(as_record, train))
    write_lines(folder / "test.jsonl", map(as_record, test))
    write_lines(folder / "passages.jsonl", ({"title": found.title, "text": found.text} for found in passages))
    print(f"{len(train):,} questions to train on, {len(test):,} to test, {len(passages):,} passages")


def as_record(question: Question) -> Mapping[str, object]:
    contexts = [{"title": passage.title, "text": passage.text} for passage in question.passages]
    return {"question": question.text, "answers": question.answers, "ctxs": contexts}


def write_lines(path: Path, records: Iterable[Mapping[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as partial:
        partial.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))


if __name__ == "__main__":
    main()
