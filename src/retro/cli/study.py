"""retro study"""

import shlex
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.text import Text

from retro.cli.console import CONSOLE, RichNarrator, parse, place_for, warn
from retro.cli.demo import print_result, print_shown
from retro.cli.ingest import print_all_left_out
from retro.cli.train import say
from retro.corpus.readers.records import FieldMap
from retro.errors import ConfigError

if TYPE_CHECKING:
    from retro.planning.plan import Plan

MOST_MINUTES = 60 * 24 * 365


@dataclass(frozen=True)
class Options:
    """Your own text → datastore → baseline and RETRO → report.html, within the minutes that you give.

    With --fitted nothing is trained: a pretrained model with additions that come with retro reads the text.
    Vocabulary, model, embedder and steps are chosen by the size of the text and the measured speed of this
    machine, and kept in the workspace as recipe.json, which the other commands then use. Run again, it goes
    on with the same plan and reuses what is finished.
    """

    sources: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE …")]
    """What to read: folders, files, names of the catalogue, hub datasets, as retro ingest reads them."""
    out: Path = Path("work")
    """The workspace."""
    minutes: float = 30.0
    """How long all of it may take."""
    embedder: str = ""
    """What makes the keys; empty: minilm, or static where that would take too long, and with --fitted."""
    fitted: bool = False
    """Train nothing: a fitted model that comes with retro reads the text, and is scored on held-out documents
    beside its base and beside the same neighbours in its prompt."""
    model: str = ""
    """Another fitted run for --fitted, by its name or its folder."""
    fields: FieldMap = field(default_factory=FieldMap)
    """Which fields of a record hold what."""


def main(arguments: list[str]) -> None:
    options = parse(Options, arguments, "study")
    if not options.sources:
        raise ConfigError(
            "no source was named; expected a file or a folder with text; run: retro study FOLDER"
        )
    if not options.minutes > 0:
        raise ConfigError(f"--minutes is {options.minutes:g}; expected a positive number")
    # Nothing can be planned with infinite seconds.
    if options.minutes > MOST_MINUTES:
        raise ConfigError(f"--minutes is {options.minutes:g}; expected at most {MOST_MINUTES:,}, a year")
    if options.model and not options.fitted:
        raise ConfigError(f"--model is {options.model}, which is used as it is; expected --fitted with it")
    place_for(options.out)
    if options.fitted:
        study_fitted(options)
        return
    from retro.own_text import first_words, study_text

    result = study_text(
        options.out,
        options.sources,
        options.minutes,
        RichNarrator(),
        options.fields,
        options.embedder,
        partial(print_plan, options.minutes, []),
        say,
        print_all_left_out,
    )
    print_result(result)
    command = shlex.join(["retro", "sample", str(options.out), first_words(result.folder), "--both"])
    CONSOLE.print(f"\nNext: {command}", soft_wrap=True, markup=False, highlight=False)


def study_fitted(options: Options) -> None:
    """With additions that are there, and no training."""
    from retro.showing import own_text

    model = options.model or own_text.RUN
    shown = own_text.study_fitted(
        options.out,
        options.sources,
        options.minutes,
        RichNarrator(),
        options.fields,
        options.embedder,
        model,
        print_all_left_out,
    )
    print_shown(shown, options.out, model)


def print_plan(minutes: float, shown: list[tuple[str, str]], plan: "Plan") -> None:
    """Show what was chosen, and why: what has not been shown before."""
    if not shown and plan.minutes != minutes:
        warn(f"this study was planned for {plan.minutes:g} minutes and goes on with that plan")
    rows = [row for row in plan.choices if row not in shown]
    width = max(len(name) for name, _ in plan.choices)
    for name, text in rows:
        line = Text.assemble((name.rjust(width), "bold"), f"  {text}")
        CONSOLE.print(line, soft_wrap=True, highlight=False)
    shown += rows
