"""retro fit, and its ways with options of their own: --base, --from, --task qa, --check."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from retro import recipes
from retro.cli.console import CONSOLE, RichNarrator, option_of, parse, print_table, recipe_of, warn
from retro.cli.fetch import fetch_shown
from retro.cli.train import print_run, redo_run, say
from retro.config import FineTuningConfig, RetrievalConfig, ShownConfig, TrainingConfig
from retro.config.fit import FitConfig
from retro.errors import ConfigError, DataError
from retro.stages.hints import quoted
from retro.wording import counted

if TYPE_CHECKING:
    from retro.questions.examples import Question, Questions
    from retro.stages.progress import Progress
    from retro.workspace import Workspace

QUESTIONS_RECIPE = "questions-tiny"


@dataclass(frozen=True)
class Options:
    """RETROfit a trained baseline: add retrieval to it and train that alone.

    Run again, it goes on from the last checkpoint.
    """

    work: Annotated[Path, tyro.conf.Positional]
    """The workspace."""
    fit: RetrievalConfig
    training: Annotated[TrainingConfig, tyro.conf.arg(name="")]
    baseline: str = "baseline"
    """A run of the workspace, or the folder of a run with the same tokenizer."""
    recipe: str = "tiny"
    """The recipe that gives the defaults."""
    name: str = "retrofit"
    """The run's name."""
    redo: bool = False
    """Begin anew: remove the run of this name, finished or begun, which is named first. At a terminal it is
    asked before a run is removed."""
    task: Literal["lm", "qa"] = "lm"
    """`lm` fits retrieval to the corpus; `qa` fine-tunes on questions and has options of its own:
    retro fit --task qa --help."""


@dataclass(frozen=True)
class QuestionOptions:
    """Fine-tune a run on questions with passages, the loss on the answers alone.

    Run again, it goes on from the last checkpoint.
    """

    work: Annotated[Path, tyro.conf.Positional]
    """The workspace."""
    base: Annotated[str, tyro.conf.arg(name="from")]
    """A run of the workspace, or the folder of a run with the same tokenizer."""
    training: Annotated[TrainingConfig, tyro.conf.arg(name="")]
    tuning: Annotated[FineTuningConfig, tyro.conf.arg(name="")]
    shown: Annotated[ShownConfig, tyro.conf.arg(name="")]
    questions: str = ""
    """A file of questions as DPR and FiD write them: JSON or JSON Lines with question, answers and ctxs
    (title, text, score); or one of SQuAD's, or squad@train of the catalogue. None: cloze questions are made
    out of the workspace's training text, which teach to look things up before there are many real ones to
    learn from."""
    num_questions: int = 0
    """Questions that are used, chosen by their text; 0: all. Those that are held out are among them."""
    name: str = "questions"
    """The run's name."""
    recipe: str = QUESTIONS_RECIPE
    """The recipe that gives the defaults; questions-7.5b is the paper's."""
    valid_fraction: float = 0.05
    """Part of the questions that is held out for validation."""
    redo: bool = False
    """Begin anew: remove the run of this name, finished or begun, which is named first. At a terminal it is
    asked before a run is removed."""
    task: Literal["qa"] = "qa"


@dataclass(frozen=True)
class BaseOptions:
    """RETROfit a pretrained language model: it stays as it is, and learns to use neighbours.

    Run again, it goes on from the last checkpoint.
    """

    work: Annotated[Path, tyro.conf.Positional]
    """The workspace, its text cut by the base's own tokenizer: retro ingest SOURCE --base NAME."""
    base: str
    """A model of the catalogue (smollm2), the folder of a causal LM, or an id of the hub."""
    fit: FitConfig
    training: Annotated[TrainingConfig, tyro.conf.arg(name="")]
    name: str = "fitted"
    """The run's name."""
    redo: bool = False
    """Begin anew: remove the run of this name, finished or begun, which is named first. At a terminal it is
    asked before a run is removed."""


@dataclass(frozen=True)
class FurtherOptions:
    """Go on from a fitted model, for text of one's own. It stays as it is; what is learned is a new run.

    Run again, it goes on from the last checkpoint.
    """

    work: Annotated[Path, tyro.conf.Positional]
    """The workspace, its text cut by the base's own tokenizer: retro ingest SOURCE --base NAME."""
    start: Annotated[str, tyro.conf.arg(name="from")]
    """A model that comes with retro (smollm2-135m-retro), a fitted run of the workspace, or its folder."""
    training: Annotated[TrainingConfig, tyro.conf.arg(name="")]
    name: str = "fitted"
    """The run's name."""
    redo: bool = False
    """Begin anew: remove the run of this name, finished or begun, which is named first. At a terminal it is
    asked before a run is removed."""


@dataclass(frozen=True)
class CheckOptions:
    """Say what a pretrained model can be fitted with, and why not with the rest. No workspace is needed."""

    check: str
    """A model of the catalogue (smollm2), the folder of a causal LM, or an id of the hub."""


def main(arguments: list[str]) -> None:
    # The task decides which options exist, so it is looked for before they are parsed.
    if _has(arguments, "--check"):
        check_base(arguments)
    elif "--task=qa" in arguments or ("--task", "qa") in pairwise(arguments):
        fit_questions(arguments)
    elif _has(arguments, "--base"):
        fit_base(arguments)
    elif _has(arguments, "--from"):
        fit_further(arguments)
    else:
        fit(arguments)


def _has(arguments: list[str], option: str) -> bool:
    return any(word == option or word.startswith(f"{option}=") for word in arguments)


def fit(arguments: list[str]) -> None:
    """Add retrieval to a baseline."""
    recipe = recipe_of(arguments)
    default = Options(
        work=tyro.MISSING, fit=recipe.model.retrieval or RetrievalConfig(), training=recipe.training
    )
    options = parse(Options, arguments, "fit", default)
    from retro.jobs.training import fit_run

    with _fitting(options) as (work, progress):
        artifact = fit_run(work, options.name, options.baseline, options.fit, options.training, progress)
    print_run(artifact)


def fit_base(arguments: list[str]) -> None:
    """Add retrieval to a pretrained model."""
    # How neighbours are read decides what a good rate is.
    recipe = recipes.pretrained(option_of(arguments, "--fit.reading") or FitConfig.reading)
    default = BaseOptions(work=tyro.MISSING, base=tyro.MISSING, fit=FitConfig(), training=recipe.training)
    options = parse(BaseOptions, arguments, "fit --base", default)
    from retro.jobs import training

    with _fitting(options) as (work, progress):
        artifact = training.fit_base(
            work, options.name, options.base, options.fit, options.training, progress
        )
    print_run(artifact)


def fit_further(arguments: list[str]) -> None:
    """Go on from a fitted model."""
    default = FurtherOptions(
        work=tyro.MISSING, start=tyro.MISSING, training=recipes.pretrained_further().training
    )
    options = parse(FurtherOptions, arguments, "fit --from", default)
    from retro.jobs import training

    with _fitting(options) as (work, progress):
        artifact = training.fit_further(work, options.name, options.start, options.training, progress)
    print_run(artifact)


@contextmanager
def _fitting(options: Options | BaseOptions | FurtherOptions) -> "Iterator[tuple[Workspace, Progress]]":
    """The workspace, begun anew if that is asked for, and the progress of a fit, which says how long it
    will take."""
    from retro.training.announcement import announced, epoch_tokens
    from retro.workspace import Workspace

    work = Workspace(options.work)
    if options.redo:
        redo_run(work, options.name)
    with RichNarrator().progress(f"Fitting {options.name}") as progress:
        line = announced(
            progress,
            say,
            options.training,
            lambda: epoch_tokens(work.corpus().train, work.datastore().chunk_len),
        )
        yield work, line


def check_base(arguments: list[str]) -> None:
    """Print a pretrained model's passport."""
    options = parse(CheckOptions, arguments, "fit --check")
    from retro.fitting.base import open_base
    from retro.fitting.passport import inspect_base

    model, _ = open_base(options.check)
    passport = inspect_base(model)
    rows = [(check.name, check.verdict, check.reason) for check in passport.checks]
    print_table(f"{options.check}: {passport.base}", ("check", "verdict", "why"), rows, words=True)
    if not passport.readings:
        raise DataError(
            f"{options.check} cannot be fitted ({passport.fault('none')}); "
            "expected a causal LM that can read neighbours, or let them vote; fit another model"
        )
    CONSOLE.print(f"It can be fitted with reading {', '.join(passport.readings)}.", soft_wrap=True)


def fit_questions(arguments: list[str]) -> None:
    """Fine-tune on questions."""
    default = QuestionOptions(
        work=tyro.MISSING,
        base=tyro.MISSING,
        training=recipe_of(arguments, QUESTIONS_RECIPE).training,
        tuning=FineTuningConfig(),
        shown=ShownConfig(),
    )
    options = parse(QuestionOptions, arguments, "fit --task qa", default)
    if not 0 <= options.valid_fraction < 1:
        raise ConfigError(f"valid_fraction is {options.valid_fraction}; expected 0 ≤ valid_fraction < 1")
    from retro.questions.evaluation import choose_sample
    from retro.questions.finetuning import finetune, settled, split
    from retro.workspace import Workspace

    work = Workspace(options.work)
    # Before a run is removed, and before the questions are read, which takes a while.
    work.run_path(options.name)
    tuning = settled(work, options.base, options.tuning)
    if options.redo:
        redo_run(work, options.name)
    found = _questions(work, options)
    warn(*found.warnings())
    # Questions without answers cannot be learned from.
    asked = choose_sample(found.with_answers(), options.num_questions)
    if options.shown.search != "none":
        asked = _with_searched(work, options, asked)
    valid, train = split(asked, [options.valid_fraction])
    with RichNarrator().progress(f"Fine-tuning {options.name}") as progress:
        _, artifact = finetune(
            work, options.name, options.base, train, options.training, tuning, valid, progress, warn
        )
    print_run(artifact)


def _with_searched(
    work: "Workspace", options: QuestionOptions, asked: Sequence["Question"]
) -> list["Question"]:
    """The questions with passages that the datastore has for them."""
    from retro.questions.evaluation import set_name
    from retro.questions.finetuning import with_searched

    name = set_name(options.questions or "cloze", options.num_questions)
    command = f"retro fit {quoted(options.work)} --task qa --from {quoted(options.base)}"
    command += f" --search {options.shown.search}"
    with RichNarrator().progress(f"Passages for {counted(len(asked), 'question')}") as progress:
        return with_searched(work, name, asked, options.shown, options.training, command, progress, warn)


def _questions(work: "Workspace", options: QuestionOptions) -> "Questions":
    """The questions of the file, or cloze questions if none is named."""
    from retro.corpus.tokenizers.tokenizer import Tokenizer
    from retro.questions.examples import Questions, read_questions
    from retro.questions.synthetic import cloze_questions, documents_of

    if options.questions:
        fetch_shown(options.questions)
        return read_questions(options.questions, options.training.num_neighbours)
    documents = documents_of(work.corpus().train, Tokenizer.open(work.tokenizer_path))
    found = Questions(list(cloze_questions(documents)))
    CONSOLE.print(f"{counted(len(found.rows), 'question')} made out of the training text")
    return found
