"""retro answer"""

import json
import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from rich.table import Table
from rich.text import Text

from retro.cli.console import CONSOLE, RichNarrator, file_for, parse, print_table, read_argument, warn
from retro.cli.fetch import fetch_shown
from retro.errors import ConfigError
from retro.stages.files import atomic_write
from retro.stages.hints import quoted
from retro.stages.progress import no_progress
from retro.wording import counted

if TYPE_CHECKING:
    from retro.model.protocol import LanguageModel
    from retro.questions.answering import Answer, Answerer, Source
    from retro.questions.examples import Question
    from retro.workspace import OpenRun


NOTHING = "no passage that was read holds an answer, as far as the model can tell"


@dataclass(frozen=True)
class Options:
    """Answer a question, or all of a file, and show the passages that were read.

    Passages come from the datastore; those of a file bring their own. A run from elsewhere is named by its
    folder alone: retro answer FOLDER "the question" --datastore PATH
    """

    place: Annotated[Path, tyro.conf.Positional]
    """The workspace, a run's folder, or the name of a model that comes with retro."""
    name: Annotated[str, tyro.conf.Positional] = ""
    """The run, fine-tuned by retro fit --task qa: its name in the workspace, or its folder."""
    question: Annotated[str, tyro.conf.Positional] = ""
    """The question; - reads standard input."""
    questions: str = ""
    """A file of questions instead, as DPR, FiD or SQuAD write them, or squad@valid of the catalogue; what
    has answers is scored."""
    out: Path | None = None
    """Write the answers of a file there, one line of JSON each."""
    datastore: Path | None = None
    """A datastore of the run's tokenizer, or a workspace that has one, in place of the
    workspace's own."""
    passages: Path | None = None
    """A file of passages (title, text) that every question gets."""
    search: bool = False
    """Search the datastore, though the file brings passages."""
    bm25: bool = False
    """Search the datastore by BM25."""
    hybrid: bool = False
    """Search the datastore in both ways, and take what stands high in both."""
    closed_book: bool = False
    """Read no passages."""
    reading: Literal["neighbours", "prompt", "fused"] = "neighbours"
    """How passages are read: as neighbours, all in the prompt, or each by itself and all together from then
    on, which needs a fitted base."""
    compare: bool = False
    """Answer the file's questions closed book and with the passages of other questions too, and show what the
    passages are worth."""
    k: int = 0
    """Passages of a question; 0: as many as the run was fine-tuned with."""
    max_tokens: int = 32
    """Tokens of an answer at most."""
    least_log_prob: float = -math.inf
    """Withhold answers of a lower log-probability: the passages are taken to hold none."""
    batch_size: int = 16
    """Questions that are answered together."""
    json: bool = False
    """One line of JSON for each answer."""


def check(options: Options) -> None:
    """Refuse options that contradict each other."""
    named = (options.passages, options.bm25, options.hybrid, options.search, options.closed_book)
    rules = {
        "found both or neither of a question and --questions; expected exactly one, behind the run's name": (
            bool(options.question) == bool(options.questions)
        ),
        "--passages, --bm25, --hybrid, --search and --closed-book exclude each other; expected one of them": (
            sum(map(bool, named)) > 1
        ),
        "--compare needs questions with answers; expected --questions FILE": (
            options.compare and not options.questions
        ),
        "--compare is against closed book; expected passages": options.compare and options.closed_book,
        "--out takes the answers of a file; expected --questions FILE": options.out and not options.questions,
        f"k is {options.k}; expected a number of passages, or 0 for as many as the run was fine-tuned with": (
            options.k < 0
        ),
        f"least_log_prob is {options.least_log_prob}; expected a logarithm of a probability, at most 0": (
            not options.least_log_prob <= 0
        ),
        f"max_tokens is {options.max_tokens}; expected at least 1": options.max_tokens < 1,
        f"batch_size is {options.batch_size}; expected at least 1": options.batch_size < 1,
    }
    for message, broken in rules.items():
        if broken:
            raise ConfigError(message)


def main(arguments: list[str]) -> None:
    options = parse(Options, arguments, "answer")
    from retro.comparators.passages import Frame
    from retro.questions.answering import Answerer, own_passages, with_passages, withheld
    from retro.questions.format import ENDING
    from retro.questions.ways import model_for
    from retro.workspace import is_run, open_run

    if is_run(options.place) and options.name and not options.question:
        # The folder already names the run, so the next argument is the question.
        options = replace(options, name="", question=options.name)
    check(options)
    # Checked now, not after hours of answering.
    out = file_for(options.out, "--out") if options.out else None
    questions = _questions(options)
    opened = open_run(options.place, options.name or "questions", options.datastore)
    k = options.k or opened.num_neighbours
    frame = Frame(ending=tuple(opened.tokenizer.encode(ENDING)))
    model = (
        opened.model
        if options.reading == "neighbours"
        else model_for(options.reading, opened.model, frame=frame)
    )
    # Passages are looked up once, so that all modes of a comparison read the same ones.
    questions = with_passages(questions, _source(options, opened, model, k))
    answerer = Answerer(model, opened.tokenizer, own_passages(k), options.max_tokens, options.batch_size)
    warn(*_notes(opened))
    if options.compare:
        _compare(answerer, questions)
        return
    # No bar for a single question, and none beside JSON.
    shown = options.questions and not options.json
    title = f"Answering with {opened.name}"
    with RichNarrator().progress(title) if shown else nullcontext(no_progress) as progress:
        answers = [
            withheld(answer, options.least_log_prob) for answer in answerer.answer(questions, progress)
        ]
    lines = [json.dumps(_record(answer), ensure_ascii=False) for answer in answers]
    if out:
        with atomic_write(out) as file:
            file.writelines(f"{line}\n".encode() for line in lines)
    if options.json:
        for line in lines:
            print(line)
    elif options.questions:
        CONSOLE.print(f"{counted(len(answers), 'answer')}{f' in {out}' if out else ''}", soft_wrap=True)
        _print_unfounded(answers)
        _print_scores(opened.name, answers)
    else:
        _print_answer(answers[0])


def _notes(opened: "OpenRun") -> list[str]:
    """What a user should know before believing an answer."""
    if "questions" in opened.run.trained_on:
        return []
    place = quoted(opened.work.path) if opened.work else "WORK"
    return [
        f"{opened.path} was never taught to answer questions, and its answers may be any text; "
        f"teach it; run: retro fit {place} --task qa --from {quoted(opened.path)}"
    ]


def _questions(options: Options) -> list["Question"]:
    from retro.questions.examples import Question, read_questions

    if not options.questions:
        return [Question(" ".join(read_argument(options.question).split()))]
    if not options.json:
        fetch_shown(options.questions)
    found = read_questions(options.questions)
    warn(*found.warnings())
    return found.rows


def _source(options: Options, opened: "OpenRun", model: "LanguageModel", k: int) -> "Source":
    """Where the passages come from. A baseline reads none unless asked to, which is then refused."""
    from retro.questions import answering
    from retro.questions.examples import read_passages

    if options.passages:
        return answering.given_passages(read_passages(options.passages), k)
    if options.bm25:
        return answering.FromBm25(opened.datastore(), k)
    if options.hybrid:
        return answering.by_both_ranks(opened.datastore(), k)
    if options.closed_book or not (model.facts.retrieves or options.search):
        return answering.closed_book
    if options.questions and not options.search:
        return answering.own_passages(k)
    return answering.from_datastore(opened.datastore(), k)


def _record(answer: "Answer") -> dict[str, Any]:
    from retro.questions.scoring import best, exact_match, f1, holds_answer, in_no_passage

    # Without known answers there is nothing to score, and the fields are left out.
    right = answer.question.answers
    scores = {}
    if right:
        scores["exact_match"] = best(exact_match, answer.text, right)
        scores["f1"] = best(f1, answer.text, right)
    # Marked by the model's own answer, not by the right one: these are the passages it may come
    # from.
    passages = [
        {**asdict(passage), "holds_answer": holds_answer(passage, [answer.text])}
        for passage in answer.passages
    ]
    return {
        "question": answer.question.text,
        "answer": answer.text,
        "log_prob": round(answer.log_prob, 4),
        "in_no_passage": in_no_passage(answer),
        "answers": right,
        **scores,
        "passages": passages,
    }


def _print_answer(answer: "Answer") -> None:
    from retro.questions.scoring import holds_answer, in_no_passage, is_silent

    text = answer.text or "(nothing)"
    log_prob = f"  (log-probability {answer.log_prob:.2f})"
    CONSOLE.print(Text.assemble((text, "bold"), log_prob), highlight=False)
    if not answer.passages:
        CONSOLE.print("closed book: no passages were read", highlight=False)
        return
    if is_silent(answer.text):
        CONSOLE.print(NOTHING, highlight=False)
    elif in_no_passage(answer):
        CONSOLE.print("no passage that was read holds this answer; it is the model's own", highlight=False)
    title = "passages that were read; ● holds the answer"
    table = Table("", "score", "title", "passage", title=title, title_justify="left")
    for passage in answer.passages:
        mark = "●" if holds_answer(passage, [answer.text]) else ""
        score = "" if passage.score is None else f"{passage.score:.3f}"
        table.add_row(mark, score, passage.title, " ".join(passage.text.split())[:300])
    CONSOLE.print(table)


def _print_unfounded(answers: Sequence["Answer"]) -> None:
    """Say how many answers are empty and how many in no passage, of those that passages were read for."""
    from retro.questions.scoring import in_no_passage, is_silent

    read = [answer for answer in answers if answer.passages]
    open_book = [answer for answer in read if not is_silent(answer.text)]
    if len(read) > len(open_book):
        silent = counted(len(read) - len(open_book), "question")
        CONSOLE.print(f"answered with nothing, as no passage holds an answer: {silent} of {len(read):,}")
    number = sum(map(in_no_passage, open_book))
    if number:
        CONSOLE.print(f"in no passage that was read: {number:,} of {counted(len(open_book), 'answer')}")


def _print_scores(run: str, answers: Sequence["Answer"]) -> None:
    from retro.questions.scoring import percent, score

    # A file may hold questions without answers; then there are no scores to show.
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
    title = f"{run}: recall of the passages {percent(scores.recall)} %"
    print_table(title, ["", "questions", "exact match %", "F1 %"], rows)


def _compare(answerer: "Answerer", questions: Sequence["Question"]) -> None:
    from retro.questions.scoring import HEADINGS, compare

    with RichNarrator().progress("Answering") as progress:
        found = compare(answerer, questions, progress=progress)
    print_table(
        f"{counted(found.num_questions, 'question')}; in %, with 95 % intervals", HEADINGS, found.rows()
    )
