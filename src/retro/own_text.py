"""A study of anybody's text: surveyed, planned by the minutes that are given, and taken the whole way."""

import shlex
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from retro import catalogue, recipes
from retro.config import TrainingConfig
from retro.corpus.readers import FieldMap
from retro.errors import ConfigError, DataError
from retro.pages.report import Curves
from retro.planning import choices
from retro.planning.plan import Counted, Plan, Speeds, plan_text, plan_training
from retro.planning.speed import KeyTimes, time_keys, time_training
from retro.planning.survey import Survey, survey
from retro.road import RoadResult, Words, take_road
from retro.scoring.evaluate import Evaluation
from retro.scoring.verdict import Evidence, verdict
from retro.stages.progress import Narrator
from retro.study import Study
from retro.training.announcement import epoch_tokens
from retro.workspace import Workspace

EMBEDDERS = ("minilm", "static")
"""Tried in this order: the first that is fast enough is taken, and the last whatever its speed."""
TIMED_CHUNKS = 1024
FIRST_VOCABULARY = 2048
"""Of the first model that is timed, when the vocabulary is not chosen yet."""


def study_text(
    folder: Path,
    sources: Sequence[str],
    minutes: float,
    narrator: Narrator,
    fields: FieldMap | None = None,
    embedder: str = "",
    show: Callable[[Plan], None] = lambda plan: None,
    say: Callable[[str], None] = lambda line: None,
    tell: Callable[[Workspace], None] = lambda work: None,
) -> RoadResult:
    """From text to a report within the minutes; an interrupted study goes on with its plan.

    `embedder` is used in place of those that are tried. `show` is called with the plan when its first part
    is made, and again when it is complete; `say` with a line before each training; and `tell` when the
    text is read, for what was left out of it.
    """
    study, plan = _begin(folder, sources, minutes, narrator, fields, embedder)
    study.say = say
    show(plan)
    study.prepare()
    tell(study.work)
    if not plan.complete:
        with study.part("measure", folder / "runs", "Timing the models"):
            left = plan.seconds - sum(study.clock.seconds.values())
            plan = plan_training(plan, _counted(study), left)
            plan.write(folder)
        show(plan)
    study.run = plan.run
    words = Words(
        title=f"RETRO on {_name(sources)}",
        command=shlex.join(
            ["retro", "study", *sources, "--out", str(folder), "--minutes", f"{plan.minutes:g}"]
        ),
        corpus=_name(sources),
        choices=plan.choices,
        judge=lambda retro, comparison, curves: verdict(
            comparison, _evidence(retro, curves, plan.run.training)
        ),
    )
    return take_road(study, words)


def _begin(
    folder: Path,
    sources: Sequence[str],
    minutes: float,
    narrator: Narrator,
    fields: FieldMap | None,
    embedder: str,
) -> tuple[Study, Plan]:
    """The study with the plan it was begun with, or with a new one."""
    Workspace(folder).expect_outside(sources, "study")
    plan = Plan.read(folder)
    if plan is not None and plan.sources != tuple(sources):
        raise ConfigError(
            f"{folder} holds a study of {' '.join(plan.sources)}; expected the same sources; "
            "name another folder with --out"
        )
    if plan is None and (folder / "tokens").exists():
        raise ConfigError(
            f"{folder} is a workspace that no study began; expected a new folder; name another with --out"
        )
    if plan is not None:
        return Study(folder, plan.run, sources, narrator, fields, strict=False), plan
    started = time.perf_counter()
    with narrator.progress("Looking through the text") as progress:
        found = survey(sources, fields, progress)
    found.expect_enough(sources)
    # The folder is made only now that there is enough to go on with.
    study = Study(folder, recipes.tiny(), sources, narrator, fields, strict=False)
    study.clock.add("survey", time.perf_counter() - started)
    speeds = _measure(study, found, minutes, (embedder,) if embedder else EMBEDDERS)
    plan = plan_text(sources, minutes, found, speeds)
    plan.write(folder)
    study.run = plan.run
    return study, plan


def _measure(study: Study, found: Survey, minutes: float, embedders: Sequence[str]) -> Speeds:
    """Time the first model to try, and embedders until one is fast enough."""
    chunk_len = choices.chunk_len(found)
    num_chunks = choices.num_chunks(found)
    size = round(found.num_bytes / num_chunks)
    keys: dict[str, KeyTimes] = {}
    for name in embedders:
        if name in catalogue.ENTRIES:
            with study.part(f"fetch {name}", catalogue.folder_of(name), f"Fetching {name}") as progress:
                catalogue.fetch(name, progress)
        with study.part("measure", study.folder / recipes.RECORD, f"Timing {name}"):
            keys[name] = time_keys(name, choices.PRECISION, found.pieces(size, TIMED_CHUNKS))
        if keys[name].embedding_all(num_chunks) <= choices.EMBEDDING_SHARE * 60 * minutes:
            break
    with study.part("measure", study.folder / recipes.RECORD, "Timing a model"):
        model = choices.model(choices.FIRST_SIZE, FIRST_VOCABULARY, chunk_len)
        times = time_training(model, TrainingConfig(precision=choices.PRECISION))
    return Speeds(times, keys)


def _counted(study: Study) -> Counted:
    stores = study.work.corpus().stores()
    if "test" not in stores:
        raise DataError(
            f"no test document is left in {study.work.tokens_path}, as all are copies of others; expected "
            "different documents; add more text"
        )
    vocab_size = stores["train"].artifact.counts["vocab_size"]
    num_tokens = epoch_tokens(stores["train"], study.run.model.chunk_len)
    return Counted(num_tokens, stores["test"].artifact.counts["tokens"], vocab_size)


def _evidence(retro: Evaluation, curves: Curves, training: TrainingConfig) -> Evidence:
    documents = retro.arrays["documents"]
    num_bytes = retro.arrays["num_bytes"]
    # The first chunk of every document: where the number of the document changes.
    is_first = np.concatenate([[True], documents[1:] != documents[:-1]])
    return Evidence(
        num_tokens=training.num_steps * training.batch_size * training.seq_len,
        losses=curves.on[1],
        retrieving=float(num_bytes[~is_first].sum() / num_bytes.sum()),
    )


def _name(sources: Sequence[str]) -> str:
    """What the text is called in the report."""
    names = [Path(source).resolve().name if Path(source).exists() else source for source in sources]
    return " and ".join(names)


def first_words(folder: Path, number: int = 6) -> str:
    """The beginning of a test document, as a prompt to try."""
    work = Workspace(folder)
    tokens = work.store("test").document(0)[: 16 * number].tolist()
    return " ".join(work.tokenizer().decode(tokens).split()[:number])
