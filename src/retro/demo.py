"""The whole way on built-in defaults: from licence texts to a report on what retrieval did."""

from collections.abc import Callable
from pathlib import Path

from retro.config import RunConfig
from retro.recipes import DEMO_CORPUS
from retro.road import RoadResult, Words, take_road
from retro.stages.progress import Narrator
from retro.study import Study


def run_demo(
    folder: Path, run: RunConfig, narrator: Narrator, say: Callable[[str], None] = lambda line: None
) -> RoadResult:
    """Fetch, tokenise, build, find neighbours, train twice, evaluate, sample, report.

    Finished parts are reused.
    """
    study = Study(folder, run, [DEMO_CORPUS], narrator, say=say)
    study.prepare()
    command = f"make demo    # or: retro demo --out {folder.name}"
    return take_road(study, Words("RETRO on licence texts", command, DEMO_CORPUS))
