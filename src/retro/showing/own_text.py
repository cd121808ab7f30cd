"""Anybody's text with a model that is fitted already: a datastore of it, and what that is worth."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from retro import recipes
from retro.config import CorpusConfig, DatastoreConfig, EvaluationConfig, RunConfig
from retro.config.as_json import from_dict, to_dict
from retro.corpus.readers import FieldMap
from retro.errors import ArtifactError, ConfigError
from retro.generation.sampler import Sampler
from retro.pages.plots import require_extra
from retro.planning.survey import Survey, survey
from retro.run import Run
from retro.showing.report import Shown, write_report
from retro.showing.road import Extent, take_fitted_road
from retro.stages.files import DAMAGED, read_object, write_json
from retro.stages.hints import FIELDS, quoted
from retro.stages.progress import Narrator, SilentNarrator
from retro.stages.stage import recorded_inputs
from retro.study import Study
from retro.workspace import Workspace, open_run

RUN = "smollm2-135m-retro"
"""The model that comes with the package."""
EMBEDDER = "static"
"""What its additions were fitted with; fast enough for any folder."""
RECORD = "fitted.json"
"""What a study with a fitted model was begun with."""
TEST_DOCUMENTS = 24
"""Over more an interval hardly narrows in the minutes that people have."""
WINDOW = 512
CLOSING_SECONDS = 90.0
"""For the samples and the page."""


@dataclass(frozen=True)
class FittedPlan:
    """What a study was begun with."""

    model: str
    """The fitted run, by its name or its folder."""
    sources: tuple[str, ...]
    minutes: float
    run: RunConfig

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / RECORD, to_dict(self))

    @staticmethod
    def read(folder: Path) -> "FittedPlan | None":
        if not (folder / RECORD).exists():
            return None
        remedy = "remove it and run the same command again"
        record: dict[str, Any] = read_object(folder / RECORD, remedy)
        try:
            return from_dict(FittedPlan, record, str(folder / RECORD))
        except DAMAGED as error:
            raise ArtifactError(
                f"{folder / RECORD} is damaged ({error}); expected what retro study --fitted wrote; {remedy}"
            ) from None


def study_fitted(
    folder: Path,
    sources: Sequence[str],
    minutes: float,
    narrator: Narrator,
    fields: FieldMap | None = None,
    embedder: str = "",
    model: str = RUN,
    tell: Callable[[Workspace], None] = lambda work: None,
) -> Shown:
    """From text to a report within the minutes, with a fitted run and no training.

    What is scored is held out of the datastore. An interrupted study goes on as it was begun; `tell` is
    called when the text is read, for what was left out of it.
    """
    require_extra()
    Workspace(folder).expect_outside(sources, "study --fitted")
    plan = FittedPlan.read(folder)
    if plan is not None and (plan.sources, plan.model) != (tuple(sources), model):
        raise ConfigError(
            f"{folder} holds a study of {' '.join(plan.sources)} with {plan.model}; expected the same; "
            "name another folder with --out"
        )
    if plan is None:
        _expect_new(folder)
        run = open_run(folder, model).run  # first: a user should hear at once of a model that is not there
        with narrator.progress("Looking through the text") as progress:
            found = survey(sources, fields, progress)
        found.expect_enough(sources)
        plan = FittedPlan(model, tuple(sources), minutes, _config(run, embedder or EMBEDDER, found))
        plan.write(folder)
    study = Study(folder, plan.run, sources, narrator, fields, strict=False)
    study.prepare(splits=("test",))
    tell(study.work)
    opened = open_run(folder, model)
    seconds = 60 * plan.minutes - sum(study.clock.seconds.values()) - CLOSING_SECONDS
    words = ["retro", "study", *sources, "--fitted", "--out", str(folder), "--minutes", f"{plan.minutes:g}"]
    command = shlex.join([*words, *(["--model", model] if model != RUN else [])])
    result = take_fitted_road(study, opened, Extent(TEST_DOCUMENTS, seconds=seconds), command)
    names = [Path(source).resolve().name if Path(source).exists() else source for source in sources]
    return write_report(study, opened, result, f"{opened.name} on {' and '.join(names)}", command)


def open_text(*sources: str | Path, work: str | Path = "work", run: str = "", embedder: str = "") -> Sampler:
    """A sampler that reads anybody's text: files, folders, or names of the catalogue.

    The text is read and embedded into the workspace `work`, once. `run` continues what it is given: the
    fitted model that comes with the package, or another by its name or its folder. A prompt of a chunk or
    more, 64 tokens, finds its sources at once; `sample.neighbours` names them.
    """
    folder, named = Path(work), [str(source) for source in sources]
    Workspace(folder).expect_outside(named)
    begun = [name for name in recorded_inputs(Workspace(folder).text_path) if not name.startswith(FIELDS)]
    if not named or (begun and set(begun) != set(named)):
        raise ConfigError(
            f"{folder} is a workspace of {' and '.join(begun) or 'nothing'}, and what was named is "
            f"{' and '.join(named) or 'nothing'}; expected the same text, or a new folder; "
            "name another: open_text(SOURCE, work=FOLDER)"
        )
    opened = open_run(folder, run or RUN)
    study = Study(folder, _config(opened.run, embedder or EMBEDDER), named, SilentNarrator(), strict=False)
    study.prepare(splits=())
    opened.model.quicken()
    return opened.sampler(opened.num_neighbours)


def _config(run: Run, embedder: str, found: Survey | None = None) -> RunConfig:
    """How text is cut and embedded for a fitted run, with some documents held out if they were looked at."""
    settings = run.record["model"]
    try:
        chunk_len, base = int(settings["fit"]["chunk_len"]), str(settings["base"]["id"])
    except DAMAGED:
        raise ConfigError(
            f"{run.path} is not a fitted base; expected one, as it is used without training; "
            f"run: retro fit WORK --base NAME"
        ) from None
    recipe = recipes.pretrained()
    held_out = 0.0
    if found is not None:
        held_out = found.edge(max(2, min(TEST_DOCUMENTS, found.num_documents // 5)))
    neighbours = int(run.record.get("training", {}).get("num_neighbours", 2))
    window = max(chunk_len, WINDOW // chunk_len * chunk_len)
    return replace(
        recipe,
        name="fitted",
        model=replace(recipe.model, chunk_len=chunk_len),
        corpus=CorpusConfig(tokenizer=base, test_fraction=held_out, valid_fraction=0.0),
        datastore=DatastoreConfig(embedder=embedder, chunk_len=chunk_len, num_neighbours=10),
        training=replace(recipe.training, num_neighbours=neighbours, seq_len=window),
        evaluation=EvaluationConfig(window=window, stride=window),
    )


def _expect_new(folder: Path) -> None:
    """Refuse a workspace that something else began."""
    if (folder / recipes.RECORD).exists():
        raise ConfigError(
            f"{folder} holds a study from scratch; expected a new folder; name another with --out, or go on "
            f"with it; run: retro study SOURCE --out {quoted(folder)}"
        )
    if (folder / "tokens").exists():
        raise ConfigError(
            f"{folder} is a workspace that no study began; expected a new folder; name another with --out"
        )
