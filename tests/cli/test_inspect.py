"""`retro inspect` as a user meets it."""

import json
import shutil
from pathlib import Path

import pytest

from retro.cli.main import main
from retro.jobs.scoring import document_gains, evaluate_split, open_evaluation
from retro.jobs.training import train_run
from tests.test_road import MODEL
from tests.workspaces import small_run, small_workspace


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory, text_folder: Path, bert: str) -> str:
    """A workspace with a trained and evaluated run."""
    run, folder = small_run(bert), tmp_path_factory.mktemp("inspect")
    workspace = small_workspace(folder, text_folder, bert)
    train_run(workspace, "retro", run.model, run.training)
    evaluate_split(workspace.run("retro"), "test", run.evaluation)
    return str(folder)


def test_the_document_with_the_largest_gain_is_shown(
    capsys: pytest.CaptureFixture[str], work: str, tmp_path: Path
) -> None:
    from retro.workspace import Workspace

    assert main(["inspect", work, "retro", "--out", str(tmp_path / "page.html")]) == 0
    assert "page.json" in capsys.readouterr().out
    record = json.loads((tmp_path / "page.json").read_text())
    gains = document_gains(open_evaluation(Workspace(Path(work)).run("retro"), "test"), 2)
    assert record["id"] == gains[0].id
    assert gains == sorted(gains, key=lambda row: -row.gain)
    assert record["on"] == pytest.approx(gains[0].on, rel=1e-5)
    assert (record["run"], record["split"], record["num_neighbours"]) == ("retro", "test", 2)
    assert gains[0].title in (tmp_path / "page.html").read_text()


def test_a_pointer_is_trained_evaluated_inspected_and_sampled_by_commands(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text_folder: Path, bert: str
) -> None:
    small_workspace(tmp_path / "work", text_folder, bert)
    work, page = str(tmp_path / "work"), tmp_path / "page.html"
    assert main(["train", work, *MODEL, "--name", "pointing", "--model.retrieval.pointer"]) == 0
    evaluation = ["--window", "32", "--stride", "16", "--num-neighbours", "1", "2"]
    assert main(["evaluate", work, "pointing", *evaluation]) == 0
    assert main(["inspect", work, "pointing", "--out", str(page)]) == 0
    record = json.loads(page.with_suffix(".json").read_text())
    results = json.loads((tmp_path / "work/evaluations/pointing/test/results.json").read_text())
    assert results["modes"]["on-2"] != results["modes"]["off"]
    assert record["on"] != record["off"]
    assert "| pointer | states of layer 2 |" in (tmp_path / "work/runs/pointing/README.md").read_text()
    assert main(["sample", work, "The licence", "--name", "pointing", "--max-tokens", "12"]) == 0
    capsys.readouterr()


def test_a_named_document_and_the_list(capsys: pytest.CaptureFixture[str], work: str, tmp_path: Path) -> None:
    assert main(["inspect", work, "retro", "--list"]) == 0
    shown = capsys.readouterr().out
    name = next(word for word in shown.split() if "/" in word and word.endswith(".txt"))
    assert (
        main(
            [
                "inspect",
                work,
                "retro",
                "--document",
                name,
                "--num-neighbours",
                "1",
                "--out",
                str(tmp_path / "page.html"),
            ]
        )
        == 0
    )
    record = json.loads((tmp_path / "page.json").read_text())
    assert f"{record['source']}/{record['id']}" == name
    assert {len(chunk["neighbours"]) for chunk in record["chunks"][:-1]} == {1}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["retro", "--document", "absent"], "have the id 'absent'"),
        (["retro", "--num-neighbours", "4"], "expected on-4"),
        (["retro", "--split", "valid"], "run: retro evaluate"),
        (["absent"], "run: retro evaluate"),
        (["retro", "--out", "page.json"], "expected the name of a page"),
    ],
)
def test_bad_requests_get_one_clear_line(
    capsys: pytest.CaptureFixture[str], work: str, arguments: list[str], message: str
) -> None:
    assert main(["inspect", work, *arguments]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("retro inspect: ")
    assert error.count("\n") == 1


def test_an_evaluation_of_another_datastore_is_refused(
    capsys: pytest.CaptureFixture[str], work: str, tmp_path: Path
) -> None:
    from retro.workspace import Workspace

    shutil.copytree(work, tmp_path / "copy")
    Workspace(tmp_path / "copy").datastore().delete(ids=["00.txt"])
    assert main(["inspect", str(tmp_path / "copy"), "retro", "--list"]) == 1
    assert "was made with other neighbours than are here now" in capsys.readouterr().err
