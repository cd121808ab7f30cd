"""The whole way on built-in defaults, to a report: a base fitted to a manual, or RETRO from scratch."""

from collections.abc import Callable, Sequence
from pathlib import Path

from retro.config import RunConfig
from retro.errors import ConfigError
from retro.pages.plots import require_extra
from retro.recipes import DEMO_CORPUS, DEMO_MEMORY
from retro.road import RoadResult, Words, take_road
from retro.showing.report import Shown, write_report
from retro.showing.road import Extent, take_fitted_road
from retro.stages.hints import FIELDS, quoted
from retro.stages.progress import Narrator
from retro.stages.stage import recorded_inputs
from retro.study import Study
from retro.workspace import Workspace

RUN = "retro"
"""What the fitted run is called: the name that the other commands look for."""


def run_fitted_demo(
    folder: Path,
    run: RunConfig,
    narrator: Narrator,
    say: Callable[[str], None] = lambda line: None,
    memory: Sequence[str] | None = None,
    extent: Extent | None = None,
) -> Shown:
    """Fetch, tokenise, build, fit a base, score it beside itself, sample, take a source out, report.

    Finished parts are reused. `memory` are the sources that only the datastore holds; by default the demo's.
    """
    sources, base = run.corpus.sources, run.corpus.tokenizer
    if not base or not sources:
        raise ConfigError(
            f"recipe {run.name} names no base and no text to fit it to; expected one that does, as demo; "
            f"run: retro demo --from-scratch --recipe {quoted(run.name)}"
        )
    command = f"make demo    # or: retro demo --out {folder.name}"
    expect_own(folder, sources, f"retro demo --from-scratch --out {quoted(folder)}")
    require_extra()  # before the minutes that would end without a page
    memory = DEMO_MEMORY if memory is None else memory
    study = Study(folder, run, sources, narrator, say=say, memory=memory)
    study.prepare()
    study.fit_base(RUN)
    opened = study.opened(RUN)
    result = take_fitted_road(study, opened, extent or Extent(), command)
    title = f"{Path(base).name}, fitted to {' and '.join(Path(source).name for source in sources)}"
    return write_report(study, opened, result, title, command)


def run_demo(
    folder: Path, run: RunConfig, narrator: Narrator, say: Callable[[str], None] = lambda line: None
) -> RoadResult:
    """From scratch: fetch, tokenise, build, find neighbours, train twice, evaluate, sample, report.

    Finished parts are reused.
    """
    expect_own(folder, [DEMO_CORPUS], f"retro demo --out {quoted(folder)}")
    study = Study(folder, run, [DEMO_CORPUS], narrator, say=say)
    study.prepare()
    command = f"retro demo --from-scratch --out {folder.name}"
    return take_road(study, Words("RETRO on licence texts", command, DEMO_CORPUS))


def expect_own(folder: Path, sources: Sequence[str], other: str) -> None:
    """Refuse a folder that was begun with other text; `other` goes on with the other demo there."""
    begun = [name for name in recorded_inputs(Workspace(folder).text_path) if not name.startswith(FIELDS)]
    if begun and set(begun) != set(sources):
        raise ConfigError(
            f"{folder} holds a workspace of {' and '.join(begun)}; expected one of {' and '.join(sources)}, "
            f"or a new folder; name another with --out; if it is the other demo's, run: {other}"
        )
