"""retro evaluate, and --task questions with options of its own."""

from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from retro.cli.console import CONSOLE, RichNarrator, begin_anew, parse, print_table, recipe_of, warn
from retro.cli.fetch import fetch_shown
from retro.config import EvaluationConfig, QuestionsConfig
from retro.corpus.readers.records import FieldMap
from retro.errors import ConfigError
from retro.stages.hints import quoted
from retro.wording import counted

if TYPE_CHECKING:
    from retro.scoring.evaluate import Evaluation
    from retro.scoring.intervals import Interval
    from retro.scoring.sets import EvaluationSet, Seen
    from retro.stages.executor import Executor
    from retro.stages.stage import Artifact
    from retro.workspace import OpenRun


@dataclass(frozen=True, kw_only=True)
class Options:
    """Bits per byte of a run over whole documents, or its score in a task.

    Each is measured without retrieval and with each number of neighbours. A run from elsewhere is scored with
    --datastore and --on.
    """

    place: Annotated[Path, tyro.conf.Positional]
    """The workspace, a run's folder, or the name of a model that comes with retro."""
    name: Annotated[str, tyro.conf.Positional] = ""
    """The run: its name in the workspace, retro if none is given, or its folder."""
    evaluation: Annotated[EvaluationConfig, tyro.conf.arg(name="")]
    recipe: str = "tiny"
    """The recipe that gives the defaults."""
    split: str = "test"
    """The split of the workspace that is scored, unless --on or --task is given."""
    on: str = ""
    """Other documents: a name of the catalogue, alone or with a split (wikitext-2@test), a file or a
    folder."""
    fields: FieldMap = field(default_factory=FieldMap)
    """Which fields of a record hold what, with --on."""
    task: str = ""
    """lambada (the last word of each passage) or summaries (TL;DR: of articles; needs --on); questions has
    options of its own: retro evaluate --task questions --help."""
    datastore: Path | None = None
    """A datastore of the run's tokenizer, or a workspace that has one, in place of the
    workspace's own."""
    rows: tuple[str, ...] = ()
    """Systems beside each other on the beginnings of the same documents, up to --window tokens: off, on-K,
    plus-K, prompt-K, prompt-K-every-N, bm25-K, lora, knn, spalm, cache."""
    documents: int = 24
    """Documents that are drawn for --rows."""
    seconds: float = 360.0
    """CPU time that lora, and the memory of knn and spalm, may take to prepare."""
    executor: Literal["local", "ray"] = "local"
    """Where documents are scored and, with --on, searched: by processes of this machine, or by tasks of a Ray
    cluster, which RAY_ADDRESS may name."""
    workers: int = 0
    """Processes or tasks at once; 0: this process alone, with all its threads, or one task for each core of
    the cluster."""
    redo: bool = False
    """Begin anew: remove the scores of this run on these documents, which are named first, and score with the
    neighbours of today. Another k is added to scores without it."""
    out: Path | None = None
    """Where the scores go; the workspace, or `evaluations` for a run or a datastore from
    elsewhere."""


@dataclass(frozen=True, kw_only=True)
class QuestionsOptions:
    """Answer questions in many ways, and score each: closed book, from gold passages, from what is found.

    Ways can be added later. Run again, it goes on where it was.
    """

    place: Annotated[Path, tyro.conf.Positional]
    """The workspace, a run's folder, or the name of a model that comes with retro."""
    name: Annotated[str, tyro.conf.Positional] = ""
    """The run: its name in the workspace, questions if none is given, or its folder."""
    questions: Annotated[QuestionsConfig, tyro.conf.arg(name="")] = field(default_factory=QuestionsConfig)
    on: str = "squad@valid"
    """A file of questions as DPR, FiD or SQuAD write them, or a split of the catalogue's."""
    examples: str = "squad@train"
    """The questions that --num-examples are chosen from."""
    datastore: Path | None = None
    """A datastore of the run's tokenizer, or a workspace that has one, in place of the
    workspace's own."""
    redo: bool = False
    """Begin anew: remove the answers of this run to these questions, which are named first."""
    out: Path | None = None
    """Where the answers go; the workspace, or `evaluations` for a run or a datastore from
    elsewhere."""
    task: Literal["questions"] = "questions"


def main(arguments: list[str]) -> None:
    # The task decides which options exist, so it is looked for before they are parsed.
    if "--task=questions" in arguments or ("--task", "questions") in pairwise(arguments):
        evaluate_questions(arguments)
    else:
        evaluate(arguments)


def evaluate_questions(arguments: list[str]) -> None:
    """Score a run on questions."""
    options = parse(QuestionsOptions, arguments, "evaluate --task questions")
    from retro.questions import evaluation
    from retro.questions.examples import read_questions
    from retro.questions.ways import HEADINGS
    from retro.stages.redo import removal_of
    from retro.workspace import open_run

    fetch_shown(options.on)
    found = read_questions(options.on)
    warn(*found.warnings())
    opened = open_run(options.place, options.name or "questions", options.datastore, options.out)
    config = options.questions
    examples = read_questions(options.examples).rows if config.num_examples else []
    if not config.num_examples and "questions" not in opened.run.trained_on:
        warn(f"{opened.path} was never taught to answer questions; show it some: --num-examples 2")
    path = opened.evaluation_path(evaluation.name_of_evaluation(options.on, config.num_questions))
    if options.redo:
        begin_anew(removal_of(evaluation.stages_of(path, config)))
    command = f"retro evaluate WORK {quoted(opened.name)} --task questions --on {quoted(options.on)}"
    with RichNarrator().progress(f"Answering with {opened.name}") as progress:
        scores = evaluation.evaluate_questions(opened, found.rows, path, config, progress, command, examples)
    title = f"{opened.name} on {counted(scores[0].num_questions, 'question')}; in %, with 95 % intervals"
    print_table(title, HEADINGS, [score.row() for score in scores])
    CONSOLE.print(f"answers are in {path}", soft_wrap=True, markup=False, highlight=False)


def evaluate(arguments: list[str]) -> None:
    """Score a run on documents, or in a task with prompts and targets."""
    default = Options(place=tyro.MISSING, evaluation=recipe_of(arguments).evaluation)
    options = parse(Options, arguments, "evaluate", default)
    from retro.jobs.scoring import evaluate_split
    from retro.stages.cluster import open_executor
    from retro.stages.redo import removal_of
    from retro.workspace import open_run

    opened = open_run(options.place, options.name or "retro", options.datastore, options.out)
    warn(*opened.notes())
    executor = open_executor(options.executor, options.workers, default=1)
    if (options.rows or options.task) and (options.executor != "local" or options.workers > 1):
        raise ConfigError(
            "--rows and --task are scored by one process; expected neither --executor nor --workers with "
            "them; leave these out"
        )
    if options.rows:
        _compare(opened, options)
        return
    if options.redo:
        begin_anew(removal_of(_places(opened, options)))
    if options.task:
        _run_task(opened, options)
    elif options.on:
        _run_set(opened, options, executor)
    else:
        with RichNarrator().progress(f"Evaluating {opened.name}") as progress:
            evaluation = evaluate_split(opened, options.split, options.evaluation, progress, executor)
        _print_evaluation(evaluation, f"{opened.name} on {options.split}")
        print_version(opened, evaluation.artifact)


def _compare(opened: "OpenRun", options: Options) -> None:
    from retro.comparators.rows import CHANGED, OFF
    from retro.jobs.comparing import Entry, Extent, compare_rows
    from retro.scoring.wording import part, percent

    if options.on or options.task or options.redo:
        raise ConfigError(
            "--rows compares on a split, and keeps what is done; expected none of --on, --task and --redo; "
            "leave them out"
        )
    # Whatever is saved is saved of the bits without retrieval.
    rows = dict.fromkeys((OFF, *options.rows))
    extent = Extent(options.documents, options.evaluation.window, options.seconds)
    with RichNarrator().progress(f"Comparing rows of {opened.name}") as progress:
        found = compare_rows([Entry(row, opened, row) for row in rows], options.split, extent, progress)
    lines = []
    for row in rows:
        result, cost = found.rows.result(row), found.costs[row]
        value = result.bits_per_byte
        gained = ["", "", ""] if row == OFF else [percent(result.gain), *map(part, found.rows.changed(row))]
        lines.append(
            [
                row,
                f"{value.estimate:.4f} ({value.low:.4f} – {value.high:.4f})",
                *gained,
                f"{result.tokens_per_second:,.0f}",
                f"{cost.num_bytes / 1e6:,.2f}",
                f"{cost.seconds:,.0f}",
            ]
        )
    headings = ["row", "bits per byte", "saved", "helped", "hurt", "tokens/s", "MB", "prepared in s"]
    documents = counted(len(found.rows.found), "document")
    print_table(f"{opened.name} on the beginnings of {documents} of {options.split}", headings, lines)
    CONSOLE.print(
        f"helped, hurt: tokens that cost {CHANGED} bits less or more; MB: beyond the model", style="dim"
    )
    for row, cost in found.costs.items():
        if cost.note:
            CONSOLE.print(f"{row}: {cost.note}", soft_wrap=True, markup=False, highlight=False)


def _places(opened: "OpenRun", options: Options) -> list[Path]:
    """Where the scores that are asked for are, or will be, and what was made for them alone."""
    from retro.jobs.scoring import name_of_task

    if options.task:
        return [opened.evaluation_path(name_of_task(options.task, options.on))]
    if options.on:
        documents = opened.set_path(options.on, options.fields)
        stages = [documents / name for name in ("seen", "neighbours", "tokens")]
        return [opened.evaluation_path(documents.name), *stages]
    return [opened.evaluation_path(options.split)]


def _run_task(opened: "OpenRun", options: Options) -> None:
    from retro.jobs.scoring import evaluate_task

    with RichNarrator().progress(f"{opened.name} on {options.task}") as progress:
        result = evaluate_task(opened, options.task, options.evaluation, options.on, progress)
    names = list(next(iter(result.modes.values())))
    rows = [
        [mode, *(_with_interval(metrics[name]) for name in names)] for mode, metrics in result.modes.items()
    ]
    print_table(
        f"{opened.name} on {counted(result.artifact.counts['items'], 'item')}", ["retrieval", *names], rows
    )
    print_version(opened, result.artifact)
    _print_seen(result.seen)


def _run_set(opened: "OpenRun", options: Options, executor: "Executor") -> None:
    from retro.jobs.scoring import evaluate_set, evaluation_set
    from retro.scoring.sets import Seen

    with RichNarrator().progress(f"Finding neighbours of {options.on}") as progress:
        found = evaluation_set(opened, options.on, options.fields, progress, executor)
    with RichNarrator().progress(f"Evaluating {opened.name}") as progress:
        evaluation = evaluate_set(opened, found, options.evaluation, progress, executor)
    _print_evaluation(evaluation, f"{opened.name} on {options.on}")
    _print_kinds(found, evaluation)
    print_version(opened, evaluation.artifact)
    # As kept with the scores: what came into the datastore later had no part in them.
    _print_seen(Seen.read(evaluation.results["seen"]))


def print_version(opened: "OpenRun", artifact: "Artifact") -> None:
    """Say so if the scores shown were made with an earlier version of the datastore."""
    from retro.scoring.evaluate import version_note

    note = version_note(artifact, opened.datastore())
    if note:
        CONSOLE.print(note, soft_wrap=True, markup=False, highlight=False)


def _print_evaluation(evaluation: "Evaluation", title: str) -> None:
    _print_modes(evaluation, title)
    _print_filtered(evaluation)
    # With a single source the table would repeat the one above.
    sources = evaluation.results["sources"]
    if len(sources) > 1:
        rows = [
            [source, *(f"{modes[mode]['bits_per_byte']['estimate']:.4f}" for mode in evaluation.modes)]
            for source, modes in sources.items()
        ]
        print_table("bits per byte by source", ["source", *evaluation.modes], rows)


def _print_modes(evaluation: "Evaluation", title: str) -> None:
    rows = []
    for mode in evaluation.modes:
        found = evaluation.metrics(mode)
        value = found.bits_per_byte
        rows.append(
            [
                mode,
                f"{value.estimate:.4f}",
                f"{value.low:.4f} – {value.high:.4f}",
                f"{found.perplexity_per_token.estimate:.2f}",
                f"{found.perplexity_per_word.estimate:.2f}",
            ]
        )
    headings = ["retrieval", "bits per byte", "95 % interval", "perplexity per token", "per word"]
    print_table(title, headings, rows)


def _print_filtered(evaluation: "Evaluation") -> None:
    """bpb(α) at every eighth, one column per mode."""
    by_mode = [[point for point in evaluation.filtered(mode) if point.is_eighth] for mode in evaluation.modes]
    rows = []
    # All modes have the same values of α, since these follow from the overlaps alone.
    for points in zip(*by_mode, strict=True):
        first = points[0]
        values = [f"{point.bits_per_byte.estimate:.4f}" for point in points]
        rows.append([f"{first.alpha:.1%}", f"{first.share_of_bytes:.1%}", *values])
    title = "bits per byte of chunks that share at most α with the datastore"
    print_table(title, ["α", "of the text", *evaluation.modes], rows)


def _print_kinds(found: "EvaluationSet", evaluation: "Evaluation") -> None:
    from retro.scoring.new_articles import by_kind

    # One group alone is the whole set, which has been shown already.
    groups = by_kind(found, evaluation)
    if len(groups) < 2:
        return
    rows = []
    for group in groups:
        values = [_with_interval(value) for value in group.bits_per_byte.values()]
        rows.append([group.name, f"{group.documents:,}", f"{group.num_bytes:,}", *values])
    headings = ["documents are", "documents", "bytes", *evaluation.modes]
    print_table("bits per byte by what the datastore knows of them", headings, rows)


def _with_interval(value: "Interval") -> str:
    return f"{value.estimate:.4g} ({value.low:.4g} – {value.high:.4g})"


def _print_seen(seen: "Seen") -> None:
    """Say how many documents were seen before, in colour if there are any."""
    CONSOLE.print(f"{'[bold red]warning[/]: ' if seen.count else ''}{seen}", soft_wrap=True, markup=True)
