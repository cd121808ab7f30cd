"""The plan of a study, made in two parts and kept in its workspace.

What concerns the text is chosen after the text was surveyed and a few batches were timed: vocabulary,
splits, chunks, embedder. What concerns the models is chosen when the neighbours are found: then the tokens
are counted, and the time that is left is known.
"""

import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from retro import recipes
from retro.config import CorpusConfig, DatastoreConfig, RunConfig, TrainingConfig
from retro.config.as_json import from_dict, to_dict
from retro.errors import ArtifactError, ConfigError
from retro.planning import choices
from retro.planning.speed import KeyTimes, TokenTimes, time_training
from retro.planning.survey import MIN_DOCUMENTS, SPLIT_SEED, Survey, describe
from retro.stages.files import write_json
from retro.training.announcement import describe_steps, duration
from retro.wording import counted

TOKENIZER_BYTES = 8 << 20
"""Text that the tokenizer is trained on: more takes minutes and hardly changes a small vocabulary."""
SETUP_SECONDS = 20.0
"""For loading the embedder and starting workers."""


@dataclass(frozen=True)
class Plan:
    """A study's config, and what it was chosen by."""

    minutes: float
    sources: tuple[str, ...]
    run: RunConfig
    choices: tuple[tuple[str, str], ...]
    """What was chosen and why: pairs of a name and a sentence, for people."""
    complete: bool = False
    """Whether models and training are chosen as well."""

    @property
    def seconds(self) -> float:
        return 60 * self.minutes

    def write(self, folder: Path) -> None:
        """Keep the plan in a workspace: the config as a recipe, the rest beside it."""
        record = to_dict(self)
        del record["run"]
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / recipes.FILE, to_dict(self.run))
        # Last: where the record is, the recipe is whole.
        write_json(folder / recipes.RECORD, record)

    @staticmethod
    def read(folder: Path) -> "Plan | None":
        """The plan of a workspace, if it has one."""
        if not (folder / recipes.RECORD).exists():
            return None
        try:
            record: dict[str, Any] = json.loads((folder / recipes.RECORD).read_text())
            rows = tuple((str(name), str(text)) for name, text in record.pop("choices"))
            run = recipes.read(folder / recipes.FILE)
            return replace(from_dict(Plan, {**record, "choices": [], "run": to_dict(run)}), choices=rows)
        except (ValueError, LookupError, AttributeError, TypeError):
            raise ArtifactError(
                f"{folder / recipes.RECORD} or {recipes.FILE} beside it is not readable; expected what retro "
                "study wrote there; remove both and run the same command again"
            ) from None


@dataclass(frozen=True)
class Speeds:
    """What was measured before the text is read."""

    training: TokenTimes
    """Of the first model to try."""
    keys: dict[str, KeyTimes]
    """Of each embedder that was tried; the last one is taken."""

    @property
    def embedder(self) -> str:
        return list(self.keys)[-1]


def plan_text(sources: Sequence[str], minutes: float, survey: Survey, speeds: Speeds) -> Plan:
    """Choose vocabulary, splits, chunks, and how much of the text is used."""
    seconds = 60 * minutes
    _expect_time(minutes, speeds.training)
    recipe = recipes.tiny()
    chunk_len = choices.chunk_len(survey)
    vocab_size = choices.vocabulary(survey.num_bytes, seconds, speeds.training)
    num_chunks = choices.num_chunks(survey)
    preparing = SETUP_SECONDS + speeds.keys[speeds.embedder].datastore(num_chunks)
    whole = math.ceil(preparing / choices.PREPARING_SHARE / 60)
    part = min(1.0, round(choices.PREPARING_SHARE * seconds / preparing, 3))
    sampled = survey.sampled(part)
    if sampled.num_documents < MIN_DOCUMENTS:
        raise ConfigError(
            f"--minutes is {minutes:g}, enough for {part:.1%} of the text, "
            f"{describe(sampled.num_documents, sampled.num_bytes)}; "
            f"expected at least {counted(whole, 'minute')}, or shorter documents"
        )
    held_out = choices.splits(sampled, seconds, speeds.training, recipe.training.num_neighbours)
    run = RunConfig(
        name="study",
        model=choices.model(choices.FIRST_SIZE, vocab_size, chunk_len),
        corpus=CorpusConfig(
            sources=tuple(sources),
            vocab_size=vocab_size,
            tokenizer_sample_bytes=TOKENIZER_BYTES,
            split_seed=SPLIT_SEED,
            test_fraction=held_out.test_fraction,
            valid_fraction=held_out.valid_fraction,
            sample_fraction=part,
        ),
        datastore=DatastoreConfig(
            embedder=speeds.embedder,
            embedder_precision=choices.PRECISION,
            chunk_len=chunk_len,
            num_neighbours=10,
        ),
        training=recipe.training,
        evaluation=recipe.evaluation,
    )
    rows = [
        ("text", describe(survey.num_documents, survey.num_bytes)),
        ("time", f"{minutes:g} minutes"),
        ("vocabulary", f"{vocab_size:,} tokens, near the square root of the bytes that training can read"),
        ("held out", _why_held_out(held_out)),
        ("chunks", _why_chunks(chunk_len, choices.retrieving(survey, chunk_len))),
        ("embedder", _why_embedder(speeds, num_chunks)),
    ]
    if part < 1.0:
        why = f"as {minutes:g} minutes are too few for all; about {whole:,.0f} would do"
        rows.append(("sampled", f"{part:.1%} of the documents, {why}"))
    return Plan(minutes, tuple(sources), run, tuple(rows))


def _why_held_out(found: choices.Splits) -> str:
    return (
        f"{counted(found.test_documents, 'document')} to measure on ({found.test_bytes / 1e6:.2f} MB), "
        f"{found.valid_documents:,} to watch the training by"
    )


def _why_chunks(chunk_len: int, retrieving: float) -> str:
    return (
        f"{chunk_len} tokens; {retrieving:.0%} of the text comes after the first of a document, "
        "and so has neighbours"
    )


def _expect_time(minutes: float, times: TokenTimes) -> None:
    """Refuse minutes in which not even the fewest steps can be trained."""
    steps = choices.LEAST_STEPS * choices.LEAST_STEP_TOKENS * times.both
    needed = SETUP_SECONDS + steps / choices.PREPARING_SHARE + choices.CLOSING_SECONDS
    if needed > 60 * minutes:
        raise ConfigError(
            f"--minutes is {minutes:g}, and the fewest steps that teach anything take {steps:.0f} seconds "
            f"here, besides reading and scoring; expected at least {math.ceil(needed / 60)}"
        )


def _why_embedder(speeds: Speeds, num_chunks: float) -> str:
    taken = speeds.keys[speeds.embedder]
    text = (
        f"{speeds.embedder}, {1 / taken.embedding:,.0f} chunks a second: "
        f"{duration(taken.embedding_all(num_chunks))} for all"
    )
    slower = [name for name in speeds.keys if name != speeds.embedder]
    for name in slower:
        text += f"; {name} would take {duration(speeds.keys[name].embedding_all(num_chunks))}"
    return text


@dataclass(frozen=True)
class Counted:
    """What is known of the tokens when the models are chosen."""

    epoch_tokens: int
    test_tokens: int
    vocab_size: int


def plan_training(plan: Plan, counted: Counted, seconds: float) -> Plan:
    """Choose model, schedule and evaluation for the seconds that are left, by timing the models."""
    run = plan.run
    k = run.training.num_neighbours
    deadline = time.perf_counter() + seconds - choices.CLOSING_SECONDS

    def usable() -> float:
        # Timing takes some of the seconds, too.
        return choices.SPARE * max(0.0, deadline - time.perf_counter())

    def tried(size: int) -> tuple[TokenTimes, choices.Amount]:
        model = choices.model(size, counted.vocab_size, run.model.chunk_len)
        times = time_training(model, replace(run.training, precision=choices.PRECISION))
        # Scoring takes its share, or more if the test documents are long.
        scoring = choices.scoring_seconds((k,), counted.test_tokens, times, k)
        scoring = max(scoring, choices.EVALUATION_SHARE * usable())
        return times, choices.amount(usable() - scoring, times, counted.epoch_tokens)

    size = choices.FIRST_SIZE
    times, amount = tried(size)
    if not amount.is_worth_it(size):
        size -= 1
        times, amount = tried(size)
    # The next larger one is timed only if it could be good even at the speed of this one.
    while size + 1 < len(choices.SIZES) and amount.suits(size + 1):
        larger = tried(size + 1)
        if not larger[1].suits(size + 1):
            break
        size += 1
        times, amount = larger
    training = choices.training(amount, size)
    chosen = replace(
        run,
        model=choices.model(size, counted.vocab_size, run.model.chunk_len),
        training=training,
        evaluation=choices.evaluation(usable(), counted.test_tokens, times, k, training.seq_len),
    )
    width, num_layers = choices.SIZES[size]
    rows = [
        (
            "model",
            f"{num_layers} layers of width {width}, as {1 / times.baseline:,.0f} tokens a second are trained "
            f"without retrieval and {1 / times.retro:,.0f} with it",
        ),
        ("training", _why_training(training, amount, times, counted)),
    ]
    return replace(plan, run=chosen, choices=(*plan.choices, *rows), complete=True)


def _why_training(
    training: TrainingConfig, amount: choices.Amount, times: TokenTimes, counted: Counted
) -> str:
    tokens = training.num_steps * training.batch_size * training.seq_len
    text = (
        f"{describe_steps(training, counted.epoch_tokens)}, {duration(tokens * times.baseline)} for the "
        f"baseline and {duration(tokens * times.retro)} for RETRO; the weights with the best validation loss "
        "are kept"
    )
    if amount.capped:
        text += f"; there is time for more, but after {choices.MAX_EPOCHS} epochs a text is known by heart"
    return text
