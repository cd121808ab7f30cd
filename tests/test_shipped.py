"""Models that come with the package: found by name wherever a run is taken, in a checkout and in a wheel."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

import retro
from retro import shipped
from retro.card import write_card
from retro.cli.main import main
from retro.errors import ArtifactError
from retro.workspace import open_run
from tests.bases import save_small_base

ROOT = Path(__file__).parent.parent
NAME = "small-retro"
FIT = ["--num-steps", "2", "--seq-len", "64", "--validate-every", "2", "--warmup-steps", "1"]
SHAPE = ["--window", "64", "--stride", "32", "--num-neighbours", "1"]


@pytest.fixture(scope="module")
def work(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], text_folder: Path, static_encoder: str
) -> Path:
    base = save_small_base(tmp_path_factory.mktemp("base"), texts)
    folder = tmp_path_factory.mktemp("shipped") / "work"
    parts = ["--valid-fraction", "0.1", "--test-fraction", "0.1", "--workers", "1"]
    assert main(["ingest", str(text_folder), "--base", str(base), "--out", str(folder), *parts]) == 0
    built = ["--embedder", static_encoder, "--chunk-len", "16", "--num-neighbours", "2"]
    assert main(["build", str(folder), *built]) == 0
    assert main(["neighbours", str(folder)]) == 0
    assert main(["fit", str(folder), "--base", str(base), *FIT]) == 0
    return folder


@pytest.fixture(autouse=True)
def models(work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of shipped models that holds the fitted run, and none of what its base has."""
    folder = tmp_path / "models"
    shipped.ship(work / "runs" / "fitted", folder / NAME)
    monkeypatch.setattr(shipped, "FOLDER", folder)
    monkeypatch.chdir(tmp_path)
    return folder


def test_it_is_the_run_without_its_tokenizer(work: Path, models: Path) -> None:
    assert sorted(file.name for file in (models / NAME).iterdir()) == sorted(shipped.FILES)
    run = open_run(work, "fitted")
    tokens = torch.randint(0, 300, (1, 40), generator=torch.Generator().manual_seed(0))
    given = [torch.randint(0, 300, (1, 2, 1, 32)), torch.ones(1, 2, 1, dtype=torch.bool)]
    assert torch.equal(retro.load(NAME)(tokens, *given), run.model(tokens, *given))
    assert retro.Run(NAME).tokenizer.fingerprint == run.tokenizer.fingerprint


def test_its_card_says_where_the_tokenizer_is(work: Path, models: Path) -> None:
    write_card(models / NAME)
    card = (models / NAME / "README.md").read_text()
    assert f"its base's: `retro ingest SOURCE --base {retro.Run(NAME).base_id}`" in card
    assert f'retro sample {NAME} "The first words" --datastore' in card
    assert "which is in `tokenizer/`" in (work / "runs" / "fitted" / "README.md").read_text()


def test_every_command_that_takes_a_run_takes_its_name(
    work: Path, texts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    place = ["--datastore", str(work)]
    assert main(["sample", NAME, texts[0][:200], *place, "--json", "--max-tokens", "8"]) == 0
    sample = json.loads(capsys.readouterr().out)
    assert sample["run"] == NAME
    assert sample["chunks"][0]["neighbours"]
    # In the workspace's own folder, by its name there.
    assert main(["sample", str(work), "The licence", "--name", NAME, "--off", "--max-tokens", "4"]) == 0
    assert main(["evaluate", NAME, *place, "--on", str(_document(texts)), *SHAPE]) == 0
    inspected = ["--on", "one.txt", "--num-neighbours", "1"]
    assert main(["inspect", NAME, *place, *inspected]) == 0
    assert main(["evaluate", str(work), NAME, *SHAPE]) == 0
    assert (Path("evaluations") / NAME / "test").exists()


def _document(texts: list[str]) -> Path:
    Path("one.txt").write_text(texts[0][::-1] + texts[1])
    return Path("one.txt")


def test_a_run_of_ones_own_goes_before_it(work: Path, models: Path) -> None:
    Path(NAME).mkdir()
    assert shipped.find(NAME) is None
    with pytest.raises(ArtifactError, match=r"holds no run\.json"):
        retro.load(NAME)
    shutil.copytree(work / "runs" / "fitted", work / "runs" / NAME)
    try:
        assert open_run(work, NAME).path == work / "runs" / NAME
    finally:
        shutil.rmtree(work / "runs" / NAME)


def test_what_is_not_there_is_told_with_what_is(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["sample", "nothing", "x"], ["evaluate", str(work), "nothing"]):
        assert main(words) == 1
        error = capsys.readouterr().err
        assert f"or the name of one that comes with retro: {NAME}" in error
        assert error.count("\n") == 1
    with pytest.raises(ArtifactError, match=f"comes with retro: {NAME}"):
        retro.load("nothing")


def test_a_datastore_of_another_tokenizer_is_told_which_base_to_cut_it_for(
    workspace: retro.Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sample", NAME, "The licence permits", "--datastore", str(workspace.path)]) == 1
    assert "retro ingest SOURCE --base " in capsys.readouterr().err


@pytest.mark.slow
def test_a_wheel_holds_what_the_repository_holds(tmp_path: Path) -> None:
    """Built from a copy, installed without dependencies, and asked by another Python."""
    copy = tmp_path / "copy"
    kept = shutil.ignore_patterns(".git", ".venv*", "*.egg-info", "__pycache__", "docs", "tests", "demo*")
    shutil.copytree(ROOT, copy, symlinks=True, ignore=kept)
    shutil.copytree(shipped.FOLDER / NAME, copy / "models" / NAME)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    wheel = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--no-index", str(copy)]
    subprocess.run([*wheel, "--wheel-dir", str(tmp_path)], check=True)
    (built,) = tmp_path.glob("retro_lm-*.whl")
    with zipfile.ZipFile(built) as archive:
        held = {name for name in archive.namelist() if name.startswith("retro/models/")}
    assert {"retro/models/README.md", *(f"retro/models/{NAME}/{name}" for name in shipped.FILES)} <= held
    target = tmp_path / "target"
    subprocess.run([*pip, "install", "--no-deps", "--target", str(target), str(built)], check=True)
    asked = "from retro import shipped; print(shipped.find('small-retro'), shipped.names())"
    environment = {**os.environ, "PYTHONPATH": str(target)}
    done = subprocess.run(
        [sys.executable, "-c", asked], env=environment, capture_output=True, text=True, check=True
    )
    found, names = done.stdout.split(" ", 1)
    assert found == str(target / "retro" / "models" / NAME)
    assert f"'{NAME}'" in names
