"""retro answer"""

import json
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table

from retro.cli.console import CONSOLE, RichNarrator, parse, print_table, read_argument
from retro.errors import ConfigError
from retro.stages.files import atomic_write

if TYPE_CHECKING:
    from retro.questions.answering import Answer, Answerer
    from retro.questions.examples import Question
    from retro.questions.sources import Source
    from retro.workspace import Workspace


@dataclass(frozen=True)
class Options:
    """Answer a question, or all of a file, and show the passages that were read.

    Passages come from the datastore; those of a file bring their own.
    """

    work: Annotated[Path, tyro.conf.Positional]
    """The workspace."""
    run: Annotated[str, tyro.conf.Positional]
    """The run, fine-tuned by retro fit --task qa."""
    question: Annotated[str, tyro.conf.Positional] = ""
    """The question; - reads standard input."""
    questions: Path | None = None
    """A file of questions instead, as DPR and FiD write them; what has answers is scored."""
    out: Path | None = None
    """Write the answers of a file there, one line of JSON each."""
    passages: Path | None = None
    """A file of passages (title, text) that every question gets."""
    bm25: bool = False
    """Search the datastore by BM25."""
    datastore: bool = False
    """Search the datastore, though the file brings passages."""
    closed_book: bool = False
    """Read no passages."""
    compare: bool = False
    """Answer the file's questions closed book and with the passages of other questions too, and show what the passages are worth."""
    k: int = 0
    """Passages of a question; 0: as many as the run was fine-tuned with."""
    max_tokens: int = 32
    """Tokens of an answer at most."""
    batch_size: int = 16
    json: bool = False
    """One line of JSON for each answer."""


def check(options: Options) -> None:
    """Refuse options that contradict each other."""
    sources = (options.passages is not None) + options.bm25 + options.datastore + options.closed_book
    for wrong, message in (
        (
            bool(options.question) == bool(options.questions),
            "there must be one of a question and --questions; expected exactly one of them",
        ),
        (
            sources > 1,
            "--passages, --bm25, --datastore and --closed-book exclude each other; expected one of them",
        ),
        (
            options.compare and not options.questions,
            "--compare needs questions with answers; expected --questions FILE",
        ),
        (options.compare and options.closed_book, "--compare is against closed book; expected passages"),
        (
            options.out and not options.questions,
            "--out takes the answers of a file; expected --questions FILE",
        ),
        (
            options.k < 0,
            f"k is {options.k}; expected a number of passages, or 0 for as many as the run was fine-tuned with",
        ),
    ):
        if wrong:
            raise ConfigError(message)


def main(arguments: list[str]) -> None:
    options = parse(Options, arguments, "answer")
    check(options)
    from retro.corpus.tokenizers.tokenizer import Tokenizer
    from retro.questions.answering import Answerer
    from retro.questions.sources import own_passages, with_passages
    from retro.workspace import Workspace

    work, questions = Workspace(options.work), _questions(options)
    model, artifact = work.model(options.run)
    k = options.k or int(artifact.config["training"]["num_neighbours"])
    questions = with_passages(questions, _source(options, work, k, model.facts.retrieves))
    answerer = Answerer(
        model, Tokenizer.open(work.tokenizer_path), own_passages(k), options.max_tokens, options.batch_size
    )
    if options.compare:
        _compare(answerer, questions)
        return
    shown = options.questions and not options.json
    with RichNarrator().progress(f"Answering with {options.run}") if shown else nullcontext() as told:
        answers = answerer.answer(questions, told)
    if options.out:
        with atomic_write(options.out) as file:
            file.writelines(
                f"{json.dumps(_record(answer), ensure_ascii=False)}\n".encode() for answer in answers
            )
    if options.json:
        for answer in answers:
            print(json.dumps(_record(answer), ensure_ascii=False))
    elif options.questions:
        _show_scores(options, answers)
    else:
        _show(answers[0])


def _questions(options: Options) -> list["Question"]:
    from retro.questions.examples import Question, read_questions

    if options.questions is None:
        return [Question(" ".join(read_argument(options.question).split()))]
    found = read_questions(options.questions)
    warn(*found.warnings())
    return found.rows


def _source(options: Options, work: "Workspace", k: int, uses_retrieval: bool) -> "Source":
    from retro.questions import sources
    from retro.questions.examples import read_passages

    if options.passages:
        return sources.given_passages(read_passages(options.passages), k)
    if options.bm25:
        return sources.FromBm25(work.datastore(), k)
    if options.closed_book or not (uses_retrieval or options.datastore):
        return sources.closed_book
    return (
        sources.own_passages(k)
        if options.questions and not options.datastore
        else sources.from_datastore(work.datastore(), k)
    )


def warn(*lines: str) -> None:
    """Tell what is not as it should be, beside the output."""
    for line in lines:
        Console(stderr=True).print(f"[yellow]![/] {line}", soft_wrap=True, highlight=False)


def _record(answer: "Answer") -> dict[str, Any]:
    from retro.questions.scoring import best, exact_match, f1, holds_answer

    right = answer.question.answers
    scores = (
        {"exact_match": best(exact_match, answer.text, right), "f1": best(f1, answer.text, right)}
        if right
        else {}
    )
    return {
        "question": answer.question.text,
        "answer": answer.text,
        "log_prob": round(answer.log_prob, 4),
        "answers": right,
        **scores,
        "passages": [
            {**asdict(passage), "holds_answer": holds_answer(passage, [answer.text])}
            for passage in answer.passages
        ],
    }


def _show(answer: "Answer") -> None:
    from retro.questions.scoring import holds_answer

    CONSOLE.print(
        f"[bold]{answer.text or '(nothing)'}[/]  (log-probability {answer.log_prob:.2f})", highlight=False
    )
    if not answer.passages:
        CONSOLE.print("closed book: no passages were read", highlight=False)
        return
    table = Table(
        "",
        "score",
        "title",
        "passage",
        title="passages that were read; ● holds the answer",
        title_justify="left",
    )
    for passage in answer.passages:
        mark, score = (
            "●" if holds_answer(passage, [answer.text]) else "",
            "" if passage.score is None else f"{passage.score:.3f}",
        )
        table.add_row(mark, score, passage.title, " ".join(passage.text.split())[:300])
    CONSOLE.print(table)


def _show_scores(options: Options, answers: Sequence["Answer"]) -> None:
    from retro.questions.experiment import percent
    from retro.questions.scoring import score

    CONSOLE.print(f"{len(answers):,} answers{f' in {options.out}' if options.out else ''}", soft_wrap=True)
    if not any(answer.question.answers for answer in answers):
        return
    scores = score(answers)
    parts = {
        "all": scores.all,
        "a passage holds the answer": scores.with_answer,
        "none does": scores.without_answer,
    }
    rows = [
        [name, f"{part.num_questions:,}", percent(part.exact_match), percent(part.f1)]
        for name, part in parts.items()
        if part
    ]
    print_table(
        f"{options.run}: recall of the passages {percent(scores.recall)} %",
        ["", "questions", "exact match %", "F1 %"],
        rows,
    )


def _compare(answerer: "Answerer", questions: Sequence["Question"]) -> None:
    from retro.questions.experiment import HEADINGS, compare

    with RichNarrator().progress("Answering") as told:
        found = compare(answerer, questions, progress=told)
    print_table(f"{found.num_questions:,} questions; in %, with 95 % intervals", HEADINGS, found.rows())
