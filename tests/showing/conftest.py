"""A base in small, a manual to fit it to, and the manual's older edition."""

from dataclasses import replace
from pathlib import Path

import pytest

from retro import recipes
from retro.config import CorpusConfig, DatastoreConfig, EvaluationConfig, RunConfig
from retro.demo import run_fitted_demo
from retro.showing.report import Shown
from retro.showing.road import Extent
from tests.bases import save_small_base
from tests.workspaces import Silent

SMALL = Extent(num_documents=5, sample_tokens=40)


@pytest.fixture(scope="session")
def fitted_base(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> Path:
    return save_small_base(tmp_path_factory.mktemp("fitted") / "small-base", texts, max_context=512)


@pytest.fixture(scope="session")
def older(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> Path:
    """The same pages under the same ids, each with another beginning."""
    folder = tmp_path_factory.mktemp("older") / "edition-1"
    folder.mkdir()
    for number, text in enumerate(texts):
        (folder / f"{number:02d}.txt").write_text("An older edition. " + text)
    return folder


@pytest.fixture(scope="session")
def small_demo(fitted_base: Path, text_folder: Path, static_encoder: str) -> RunConfig:
    """The demo's recipe with everything in it made small."""
    run = recipes.demo()
    return replace(
        run,
        name="small-demo",
        model=replace(run.model, chunk_len=16),
        corpus=CorpusConfig(
            sources=(str(text_folder),),
            tokenizer=str(fitted_base),
            valid_fraction=0.1,
            test_fraction=0.2,
        ),
        datastore=DatastoreConfig(embedder=static_encoder, chunk_len=16, num_neighbours=4),
        training=replace(
            run.training, num_steps=2, seq_len=64, warmup_steps=1, validate_every=2, validate_batches=1
        ),
        evaluation=EvaluationConfig(window=64, stride=64),
        start="",  # the package's additions are for another base
    )


@pytest.fixture(scope="session")
def shown(small_demo: RunConfig, older: Path, tmp_path_factory: pytest.TempPathFactory) -> Shown:
    """The demo, finished."""
    folder = tmp_path_factory.mktemp("shown") / "demo"
    return run_fitted_demo(folder, small_demo, Silent(), memory=[str(older)], extent=SMALL)
