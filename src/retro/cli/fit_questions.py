"""retro fit --task qa"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from retro.cli.answer import warn
from retro.cli.console import CONSOLE, RichNarrator, parse, recipe_of
from retro.cli.train import tell
from retro.config import FineTuningConfig, TrainingConfig

RECIPE = "questions-tiny"


@dataclass(frozen=True)
class Options:
    """Fine-tune a run on questions with passages, the loss on the answers alone. Run again, it goes on from the last checkpoint."""

    work: Annotated[Path, tyro.conf.Positional]
    """The workspace."""
    base: Annotated[str, tyro.conf.arg(name="from")]
    """A run of the workspace, or the folder of a model with the same tokenizer."""
    training: Annotated[TrainingConfig, tyro.conf.arg(name="")]
    tuning: Annotated[FineTuningConfig, tyro.conf.arg(name="")]
    questions: Path | None = None
    """Questions as DPR and FiD write them: JSON or JSON Lines with question, answers and ctxs (title, text, score). None: cloze questions
    are made out of the workspace's training text, which teach to look things up before there are many real ones to learn from."""
    name: str = "questions"
    """The run's name."""
    recipe: str = RECIPE
    """The recipe that gives the defaults; questions-7.5b is the paper's."""
    valid_fraction: float = 0.05
    """Part of the questions that is held out for validation."""
    task: Literal["qa"] = "qa"


def main(arguments: list[str]) -> None:
    default = Options(
        work=tyro.MISSING, base=tyro.MISSING, training=recipe_of(arguments, RECIPE).training, tuning=FineTuningConfig()
    )  # fmt: skip
    options = parse(Options, arguments, "fit --task qa", default)
    from retro.corpus.tokenizers.tokenizer import Tokenizer
    from retro.questions.cloze import cloze_questions, documents_of
    from retro.questions.examples import Questions, read_questions
    from retro.questions.finetuning import finetune, split
    from retro.workspace import Workspace

    work = Workspace(options.work)
    if options.questions is not None:
        found = read_questions(options.questions, options.training.num_neighbours)
    else:
        found = Questions(
            list(cloze_questions(documents_of(work.corpus().train, Tokenizer.open(work.tokenizer_path))))
        )
        CONSOLE.print(f"{len(found.rows):,} questions made out of the training text")
    valid, train = split(found.with_answers(), [options.valid_fraction])
    warn(*found.warnings())
    with RichNarrator().progress(f"Fine-tuning {options.name}") as told:
        _, artifact = finetune(
            work, options.name, options.base, train, options.training, options.tuning, valid, told, warn
        )
    tell(artifact)
