"""retro evaluate"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from retro.cli.console import CONSOLE, RichNarrator, parse, print_table, recipe_of
from retro.config import EvaluationConfig
from retro.corpus.readers.records import FieldMap

if TYPE_CHECKING:
    from retro.scoring.evaluate import Evaluation
    from retro.scoring.intervals import Interval
    from retro.scoring.sets import Seen
    from retro.stages.stage import Artifact
    from retro.workspace import Workspace


@dataclass(frozen=True)
class Options:
    """Bits per byte of a run over whole documents, or its score in a task, without retrieval and with each number of neighbours."""

    work: Annotated[Path, tyro.conf.Positional]
    """The workspace."""
    name: Annotated[str, tyro.conf.Positional]
    """The run."""
    evaluation: Annotated[EvaluationConfig, tyro.conf.arg(name="")]
    recipe: str = "tiny"
    """The recipe that gives the defaults."""
    split: str = "test"
    """The split of the workspace that is scored, unless --on or --task is given."""
    on: str = ""
    """Other documents: a name of the catalogue, alone or with a split (wikitext-2@test), a file or a folder."""
    fields: FieldMap = field(default_factory=FieldMap)
    """Which fields of a record hold what, with --on."""
    task: str = ""
    """lambada (the last word of each passage) or summaries (TL;DR: of articles; needs --on)."""


def main(arguments: list[str]) -> None:
    default = Options(work=tyro.MISSING, name=tyro.MISSING, evaluation=recipe_of(arguments).evaluation)
    options = parse(Options, arguments, "evaluate", default)
    from retro.workspace import Workspace

    work = Workspace(options.work)
    if options.task:
        _run_task(work, options)
    elif options.on:
        _run_set(work, options)
    else:
        with RichNarrator().progress(f"Evaluating {options.name}") as told:
            evaluation = work.evaluate(options.name, options.split, options.evaluation, told)
        _show(evaluation, f"{options.name} on {options.split}")
        _tell_version(work, evaluation.artifact)


def _run_task(work: "Workspace", options: Options) -> None:
    with RichNarrator().progress(f"{options.name} on {options.task}") as told:
        result = work.evaluate_task(options.name, options.task, options.evaluation, options.on, told)
    names = list(next(iter(result.modes.values())))
    rows = [
        [mode, *(_with_interval(metrics[name]) for name in names)] for mode, metrics in result.modes.items()
    ]
    print_table(f"{options.name} on {result.artifact.counts['items']:,} items", ["retrieval", *names], rows)
    _tell_version(work, result.artifact)
    _warn(result.seen)


def _run_set(work: "Workspace", options: Options) -> None:
    from retro.scoring.new_articles import by_kind

    with RichNarrator().progress(f"Finding neighbours of {options.on}") as told:
        found = work.evaluation_set(options.on, options.fields, told)
    with RichNarrator().progress(f"Evaluating {options.name}") as told_mode:
        evaluation = work.evaluate_on(options.name, found, options.evaluation, told_mode)
    _show(evaluation, f"{options.name} on {options.on}")
    groups = by_kind(found, evaluation)
    if len(groups) > 1:
        headings = ["documents are", "documents", "bytes", *evaluation.modes]
        rows = [
            [
                g.name,
                f"{g.documents:,}",
                f"{g.num_bytes:,}",
                *(_with_interval(v) for v in g.bits_per_byte.values()),
            ]
            for g in groups
        ]
        print_table("bits per byte by what the datastore knows of them", headings, rows)
    _tell_version(work, evaluation.artifact)
    _warn(found.seen)


def _show(evaluation: "Evaluation", title: str) -> None:
    _print_modes(title, evaluation)
    sources = evaluation.results["sources"]
    if len(sources) > 1:
        rows = [
            [source, *(f"{modes[mode]['bits_per_byte']['estimate']:.4f}" for mode in evaluation.modes)]
            for source, modes in sources.items()
        ]
        print_table("bits per byte by source", ["source", *evaluation.modes], rows)


def _print_modes(title: str, evaluation: "Evaluation") -> None:
    rows = []
    for mode in evaluation.modes:
        found = evaluation.metrics(mode)
        value = found.bits_per_byte
        perplexities = (found.perplexity_per_token.estimate, found.perplexity_per_word.estimate)
        rows.append(
            [
                mode,
                f"{value.estimate:.4f}",
                f"{value.low:.4f} – {value.high:.4f}",
                *(f"{number:.2f}" for number in perplexities),
            ]
        )
    print_table(
        title, ["retrieval", "bits per byte", "95 % interval", "perplexity per token", "per word"], rows
    )
    by_mode = [[point for point in evaluation.filtered(mode) if point.is_eighth] for mode in evaluation.modes]
    rows = [
        [
            f"{points[0].alpha:.1%}",
            f"{points[0].share_of_bytes:.1%}",
            *(f"{point.bits_per_byte.estimate:.4f}" for point in points),
        ]
        for points in zip(*by_mode, strict=True)
    ]
    print_table(
        "bits per byte of chunks that share at most α with the datastore",
        ["α", "of the text", *evaluation.modes],
        rows,
    )


def _with_interval(value: "Interval") -> str:
    return f"{value.estimate:.4g} ({value.low:.4g} – {value.high:.4g})"


def _tell_version(work: "Workspace", artifact: "Artifact") -> None:
    """Say so where a finished evaluation is shown that was made with an earlier version of the datastore."""
    from retro.scoring.evaluate import version_note

    note = version_note(artifact, work.datastore())
    if note:
        CONSOLE.print(note, soft_wrap=True, markup=False, highlight=False)


def _warn(seen: "Seen") -> None:
    """Say how many documents are no news; in colour where there are any."""
    CONSOLE.print(f"{'[bold red]warning[/]: ' if seen.count else ''}{seen}", soft_wrap=True)
