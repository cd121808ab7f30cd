"""How often what is found holds a right answer: embedders, BM25, and both orders together.

    python benchmarks/question_recall.py FOLDER [--questions squad@valid] [--embedders static minilm mpnet]
        [--numbers 1 5 20] [--sample 1000]

The datastore holds the passages of all questions of the file, each once, in chunks of 64 tokens of SmolLM2.
A row for each way of searching: the part of the questions for which one of the first n chunks, with what
follows it, holds an answer, word for word, with intervals over questions; and what it finds more often than
the first row does with the most chunks, paired by question. Run again, it reuses the datastores.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from retro import catalogue
from retro.cli.console import RichNarrator, print_table
from retro.config import CorpusConfig, DatastoreConfig
from retro.corpus.ingest import ingest
from retro.jobs.retrieval import build
from retro.questions.answering import FromBm25, Source, by_both_ranks, from_datastore
from retro.questions.evaluation import choose_sample
from retro.questions.examples import Question, read_questions
from retro.questions.scoring import holds_answer, mean, percent
from retro.retrieval.datastore import Datastore
from retro.stages.files import atomic_path
from retro.workspace import Workspace

TOKENIZER = "smollm2"
BLOCK = 64


def passages_of(questions: Sequence[Question], path: Path) -> None:
    passages = dict.fromkeys(passage for question in questions for passage in question.passages)
    rows = [json.dumps({"title": one.title, "text": one.text}, ensure_ascii=False) for one in passages]
    with atomic_path(path) as partial:
        partial.write_text("\n".join(rows) + "\n")


def datastore_with(embedder: str, passages: Path, narrator: RichNarrator) -> Datastore:
    for name in (TOKENIZER, embedder):
        with narrator.progress(f"Fetching {name}") as progress:
            catalogue.fetch(name, progress)
    work = Workspace(passages.parent / embedder)
    corpus = CorpusConfig(sources=(str(passages),), tokenizer=TOKENIZER, valid_fraction=0, test_fraction=0)
    with narrator.progress("Reading") as progress:
        ingest(work, [str(passages)], corpus, progress=progress)
    with narrator.progress(f"Keys of {embedder}") as progress:
        # Searched exactly, so that the embedders alone are compared.
        return build(work, DatastoreConfig(embedder=embedder, exact_below=10**9), progress=progress)


def found_by(source: Source, questions: Sequence[Question], number: int) -> np.ndarray:
    """For each question (row) and n (column) up to `number`, whether one of the first n holds an answer."""
    held = np.zeros((len(questions), number), dtype=bool)
    for start in range(0, len(questions), BLOCK):
        block = questions[start : start + BLOCK]
        for row, passages in enumerate(source(block), start):
            for rank, passage in enumerate(passages[:number]):
                held[row, rank] = holds_answer(passage, questions[row].answers)
    found: np.ndarray = np.logical_or.accumulate(held, axis=1)
    return found.astype(float)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--questions", default="squad@valid")
    parser.add_argument("--embedders", nargs="+", default=["static", "minilm", "mpnet"])
    parser.add_argument("--numbers", type=int, nargs="+", default=[1, 5, 20])
    parser.add_argument("--sample", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    narrator, most = RichNarrator(), max(options.numbers)
    options.folder.mkdir(parents=True, exist_ok=True)
    questions = read_questions(options.questions).with_answers()
    passages = options.folder / "passages.jsonl"
    passages_of(questions, passages)
    asked = choose_sample(questions, options.sample)
    found: dict[str, np.ndarray] = {}
    seconds: dict[str, float] = {}
    for embedder in options.embedders:
        datastore = datastore_with(embedder, passages, narrator)
        ways: dict[str, Callable[[Datastore, int], Source]] = {
            "bm25": FromBm25,
            embedder: from_datastore,
            f"{embedder} and bm25": by_both_ranks,
        }
        for name, way in ways.items():
            if name not in found:
                started = time.process_time()
                found[name] = found_by(way(datastore, most), asked, most)
                seconds[name] = time.process_time() - started
    first = next(iter(found))
    rows = []
    for name, held in found.items():
        gain = "" if name == first else percent(mean(held[:, most - 1] - found[first][:, most - 1]))
        recall = [percent(mean(held[:, number - 1])) for number in options.numbers]
        rows.append([name, *recall, gain, f"{1000 * seconds[name] / len(asked):.1f}"])
    headings = [
        "search",
        *(f"n = {n}" for n in options.numbers),
        f"over {first}",
        "ms a question",
    ]
    print_table(f"{len(asked):,} questions of {options.questions}; recall of the answer", headings, rows)


if __name__ == "__main__":
    main()
