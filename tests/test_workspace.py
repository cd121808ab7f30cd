"""A run is found by its name or its folder, and works with any datastore of its tokenizer."""

import dataclasses
import shutil
from pathlib import Path

import pytest

from retro.errors import ArtifactError, ConfigError
from retro.jobs.retrieval import build
from retro.workspace import Workspace, open_run
from tests.scoring.runs import workspace_with_run
from tests.workspaces import small_run, small_workspace


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory, text_folder: Path, static_encoder: str) -> Workspace:
    return workspace_with_run(tmp_path_factory.mktemp("runs") / "work", text_folder, static_encoder)


@pytest.fixture
def moved(work: Workspace, tmp_path: Path) -> Path:
    """The run's folder, given away."""
    return Path(shutil.copytree(work.run_path("retro"), tmp_path / "given" / "mine"))


def test_a_run_is_named_by_name_or_by_folder(work: Workspace, moved: Path) -> None:
    for opened in (
        open_run(work.path, "retro"),
        open_run(work.path / "runs" / "retro"),
        open_run(work.path, str(moved)),
        open_run(moved, datastore=work.path),
        open_run(moved, datastore=work.datastore_path),
    ):
        assert opened.run.fingerprint == open_run(work.path).run.fingerprint
        assert opened.model.facts.retrieves
        assert opened.datastore().path.resolve() == work.datastore_path.resolve()
        assert opened.tokenizer.fingerprint == opened.datastore().tokenizer.fingerprint


def test_a_run_from_elsewhere_wants_a_datastore_only_to_retrieve(moved: Path) -> None:
    opened = open_run(moved)
    assert opened.model.facts.retrieves
    with pytest.raises(ArtifactError, match="--datastore PATH"):
        opened.datastore()


def test_a_missing_run_says_how_to_train_it(work: Workspace) -> None:
    with pytest.raises(ArtifactError, match=f"run: retro train {work.path} --name absent"):
        _ = open_run(work.path, "absent").model


def test_a_datastore_of_another_tokenizer_is_refused_by_name(
    moved: Path, tmp_path: Path, texts: list[str], static_encoder: str
) -> None:
    (tmp_path / "other").mkdir()
    for number, text in enumerate(texts):
        (tmp_path / "other" / f"{number}.txt").write_text(text.upper())
    other = small_workspace(tmp_path / "work", tmp_path / "other", static_encoder, splits=())
    with pytest.raises(ArtifactError) as error:
        open_run(moved, datastore=other.path).datastore()
    assert str(other.datastore_path) in str(error.value)
    assert str(moved) in str(error.value)


def test_a_datastore_of_other_chunks_is_refused(
    work: Workspace, moved: Path, tmp_path: Path, static_encoder: str
) -> None:
    shutil.copytree(work.path, tmp_path / "copy", ignore=shutil.ignore_patterns("datastore", "runs"))
    copy = Workspace(tmp_path / "copy")
    build(copy, dataclasses.replace(small_run(static_encoder).datastore, chunk_len=16))
    with pytest.raises(ConfigError, match="chunks of 16 tokens; expected the 8"):
        open_run(moved, datastore=copy.path).datastore()
