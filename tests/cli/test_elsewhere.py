"""A run's folder that was given away, with a datastore of its tokenizer, by every command that uses a run."""

import importlib.util
import json
import shutil
from pathlib import Path

import pytest

from retro.cli.main import main
from retro.workspace import Workspace
from tests.scoring.runs import workspace_with_run
from tests.workspaces import small_workspace

SHAPE = ["--window", "32", "--stride", "16", "--num-neighbours", "1", "2"]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory, text_folder: Path, static_encoder: str) -> Workspace:
    return workspace_with_run(tmp_path_factory.mktemp("home") / "work", text_folder, static_encoder)


@pytest.fixture(scope="module")
def given(work: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run and the datastore, each in another place, and nothing else of the workspace."""
    folder = tmp_path_factory.mktemp("elsewhere")
    shutil.copytree(work.run_path("retro"), folder / "mine")
    shutil.copytree(work.datastore_path, folder / "memory")
    return folder


@pytest.fixture
def articles(tmp_path: Path, texts: list[str]) -> Path:
    rows = [
        {"id": f"a{number}", "text": f"News {number}. " + text[::-1]} for number, text in enumerate(texts[:4])
    ]
    path = tmp_path / "articles.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_it_is_evaluated_and_inspected(
    given: Path,
    articles: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    parts = ["--datastore", str(given / "memory"), "--on", str(articles)]
    assert main(["evaluate", str(given / "mine"), *parts, *SHAPE]) == 0
    assert "mine on" in capsys.readouterr().out
    (results,) = Path("evaluations").rglob("results.json")
    assert results.parts[1] == "mine"
    assert json.loads(results.read_text())["seen"]["documents"] == 4
    assert main(["inspect", str(given / "mine"), *parts, "--out", "page.html"]) == 0
    assert json.loads(Path("page.json").read_text())["run"] == "mine"
    assert main(["inspect", str(given / "mine"), *parts, "--list"]) == 0
    assert "a0" in capsys.readouterr().out


def test_its_scores_go_where_they_are_wanted_and_are_those_of_the_workspace(
    work: Workspace, given: Path, articles: Path, tmp_path: Path
) -> None:
    on = ["--on", str(articles), *SHAPE]
    out = tmp_path / "scores"
    assert main(["evaluate", str(work.path), "retro", *on]) == 0
    datastore = ["--datastore", str(work.path), "--out", str(out)]
    assert main(["evaluate", str(given / "mine"), *on, *datastore]) == 0
    (own,) = [path for path in (work.path / "evaluations").rglob("results.json") if "articles" in str(path)]
    (other,) = out.rglob("results.json")
    assert json.loads(other.read_text())["modes"] == json.loads(own.read_text())["modes"]


def test_a_foreign_run_is_scored_on_a_workspace_s_split(
    work: Workspace, given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["evaluate", str(work.path), str(given / "mine"), *SHAPE]) == 0
    assert list(Path("evaluations").rglob("results.json"))
    assert not list((work.path / "evaluations").rglob("*mine*"))


def test_it_samples_and_answers(given: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, datastore = str(given / "mine"), ["--datastore", str(given / "memory")]
    assert (
        main(["sample", run, "The licence permits anyone to", "--max-tokens", "9", "--json", *datastore]) == 0
    )
    record = json.loads(capsys.readouterr().out)
    assert record["retrieval"]
    assert main(["sample", run, "The licence", "--max-tokens", "2", "--off"]) == 0
    assert main(["answer", run, "who may use it?", "--json", *datastore]) == 0
    record = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert record["question"] == "who may use it?"
    assert len(record["passages"]) == 2


@pytest.mark.skipif(importlib.util.find_spec("lm_eval") is None, reason="the harness is not installed")
def test_the_harness_opens_it(given: Path) -> None:
    from retro.harness import RetroLM

    model = RetroLM(given / "mine", datastore=given / "memory")
    assert model.retriever is not None


def test_without_a_datastore_or_documents_one_line_says_what_to_name(
    given: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, expected in (
        (["sample", str(given / "mine"), "The licence"], "--datastore PATH"),
        (["evaluate", str(given / "mine"), "--datastore", str(given / "memory")], "--on SOURCE"),
        (["evaluate", str(given / "mine"), "--on", "x"], "--datastore PATH"),
    ):
        assert main(arguments) == 1
        error = capsys.readouterr().err
        assert expected in error
        assert error.count("\n") == 1


def test_a_datastore_of_another_tokenizer_is_refused_by_every_command(
    given: Path,
    articles: Path,
    tmp_path: Path,
    texts: list[str],
    static_encoder: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "other").mkdir()
    for number, text in enumerate(texts):
        (tmp_path / "other" / f"{number}.txt").write_text(text.upper())
    other = small_workspace(tmp_path / "work", tmp_path / "other", static_encoder, splits=())
    capsys.readouterr()
    run, datastore = str(given / "mine"), ["--datastore", str(other.path)]
    for arguments in (
        ["sample", run, "The licence"],
        ["evaluate", run, "--on", str(articles)],
        ["answer", run, "who may use it?"],
    ):
        assert main([*arguments, *datastore]) == 1
        error = capsys.readouterr().err
        assert f"{other.datastore_path} was made with tokenizer" in error
        assert error.count("\n") == 1


def test_other_tokens_are_told_and_are_no_reason_to_refuse(
    work: Workspace,
    given: Path,
    text_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A workspace with fewer training documents, cut by the same tokenizer."""
    monkeypatch.chdir(tmp_path)
    fewer = tmp_path / "fewer"
    shutil.copytree(work.tokenizer_path, fewer / "tokenizer")
    shutil.copytree(work.datastore_path, fewer / "datastore")
    documents = [str(file) for file in sorted(text_folder.iterdir())[:8]]
    tokens = ["--out", str(fewer / "tokens"), "--against", *documents]
    assert main(["decontaminate", str(work.path), *tokens]) == 0
    assert main(["neighbours", str(fewer)]) == 0
    capsys.readouterr()
    assert main(["evaluate", str(fewer), str(given / "mine"), *SHAPE]) == 0
    assert "was trained on other tokens" in capsys.readouterr().err.replace("\n", " ")
    assert main(["evaluate", str(work.path), str(given / "mine"), *SHAPE, "--out", "home"]) == 0
    assert "was trained on other tokens" not in capsys.readouterr().err
