"""The fitted demo as a process, killed in each of its stages: the end is that of an unbroken run."""

import json
import random
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from retro.config import RunConfig
from retro.config.as_json import to_dict
from retro.showing.report import Shown
from tests.showing.test_demo import bits_of

DEMO = """
import sys
from contextlib import contextmanager
from pathlib import Path
from retro import recipes
from retro.demo import run_fitted_demo
from tests.showing.conftest import SMALL
from tests.workspaces import Silent

class Telling(Silent):
    @contextmanager
    def progress(self, title):
        print(title, flush=True)
        with super().progress(title) as progress:
            yield progress

recipe, older, folder = sys.argv[1:]
run_fitted_demo(Path(folder), recipes.read(Path(recipe)), Telling(), memory=[older], extent=SMALL)
"""
STAGES = (
    "Reading",
    "Embedding the datastore's chunks",
    "Embedding what only the memory holds",
    "Neighbours of train",
    "Neighbours of valid",
    "Neighbours of test",
    "Fitting retro",
    "Scoring",
    "Sampling",
)


def start(recipe: Path, older: Path, folder: Path) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", DEMO, str(recipe), str(older), str(folder)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_killed_in_every_stage_it_goes_on(
    shown: Shown, small_demo: RunConfig, older: Path, tmp_path: Path
) -> None:
    # As the real one does, it begins with what another has learned.
    run = replace(small_demo, start=str(shown.folder / "runs" / "retro"))
    recipe = tmp_path / "recipe.json"
    recipe.write_text(json.dumps(to_dict(run)))
    whole, broken = tmp_path / "whole" / "demo", tmp_path / "broken" / "demo"
    with start(recipe, older, whole) as unbroken:
        told = unbroken.communicate()[0].splitlines()
    assert unbroken.returncode == 0
    assert set(STAGES) <= set(told)
    moments = random.Random(0)
    for stage in STAGES:
        with start(recipe, older, broken) as process:
            assert process.stdout is not None
            assert any(line.strip() == stage for line in process.stdout), f"{stage} was never begun"
            time.sleep(moments.uniform(0, 0.3))
            process.kill()
    with start(recipe, older, broken) as last:
        last.communicate()
    assert last.returncode == 0
    assert bits_of(broken) == bits_of(whole)
    for name in ("off", "on", "without"):
        sampled = [
            json.loads((folder / "samples" / f"{name}.json").read_text()) for folder in (whole, broken)
        ]
        assert sampled[0]["tokens"] == sampled[1]["tokens"]
    weights = [(folder / "runs" / "retro" / "model.safetensors").read_bytes() for folder in (whole, broken)]
    assert weights[0] == weights[1]
