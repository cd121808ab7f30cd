"""Anybody's text with a model that is fitted already: by the command, by Python, and what is refused."""

import json
import re
from pathlib import Path

import pytest

import retro
from retro import shipped
from retro.cli.main import main
from retro.errors import ConfigError
from retro.showing import own_text as fitted_text
from retro.showing.report import Shown
from tests.pages.checks import check_page

NAME = "small-retro"


@pytest.fixture(autouse=True)
def models(shown: Shown, static_encoder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo's run stands for the model that comes with the package."""
    shipped.ship(shown.folder / "runs" / "retro", tmp_path / "models" / NAME)
    monkeypatch.setattr(shipped, "FOLDER", tmp_path / "models")
    monkeypatch.setattr(fitted_text, "RUN", NAME)
    monkeypatch.setattr(fitted_text, "EMBEDDER", static_encoder)
    monkeypatch.setattr(fitted_text, "WINDOW", 64)
    monkeypatch.chdir(tmp_path)


def test_a_folder_is_scored_and_sampled_without_training(
    own_text: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # No time at all: the fewest documents are scored all the same.
    words = ["study", str(own_text), "--fitted", "--minutes", "0.01"]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert f"Next: retro serve work --name {NAME}\n" in printed
    assert f"Next: retro sample work --name {NAME} --file work/prompt.txt --exclude " in printed
    page = Path("work/report.html").read_text()
    check_page(page)
    assert f"{NAME} on {own_text.name}" in page
    twin = json.loads(Path("work/report.json").read_text())
    assert twin["off_is_base"]
    assert twin["rows"]["on"]["all"]["num_documents"] == 4
    assert twin["fit"] == {}
    assert twin["made"]["command"] == f"retro study {own_text} --fitted --out work --minutes 0.01"
    # Nothing was trained, and only what is scored was searched for.
    assert not Path("work/runs").exists()
    assert [path.name for path in Path("work/neighbours").iterdir()] == ["test"]
    # What is held out is not in the datastore.
    store = retro.Workspace(Path("work")).store("test")
    assert len(store) == 8
    held_out = {row["id"] for row in store.documents}
    samples = json.loads(Path("work/samples/on.json").read_text())
    assert not held_out & {found["document"] for row in samples["neighbours"] for found in row}

    before = {path: path.stat().st_mtime_ns for path in Path("work").rglob("manifest.json")}
    assert main([*words[:3], "--minutes", "30"]) == 0
    assert {path: path.stat().st_mtime_ns for path in Path("work").rglob("manifest.json")} == before
    capsys.readouterr()
    # The printed commands work.
    assert main(["sample", "work", "--name", NAME, "--file", "work/prompt.txt", "--max-tokens", "4"]) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["OWN", "--fitted", "--model", "nothing"], f"comes with retro: {NAME}"),
        (["OWN", "--model", NAME], "expected --fitted with it"),
        (["few", "--fitted"], "expected at least 10 different documents"),
        (["nowhere", "--fitted"], "nowhere"),
        (["OWN", "--fitted", "--out", "tokenised"], "a workspace that no study began"),
        (["OWN", "--fitted", "--out", "scratch"], "holds a study from scratch"),
        (["OWN", "--fitted", "--out", "begun"], "holds a study of other with another"),
        (["OWN", "--fitted", "--out", "broken"], "fitted.json"),
        (["OWN", "--fitted", "--out", "OWN/inside"], "would be read as text"),
    ],
)
def test_what_cannot_be_studied_is_told_in_one_line(
    own_text: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str], shown: Shown
) -> None:
    for folder in ("few", "tokenised/tokens", "scratch", "begun", "broken"):
        Path(folder).mkdir(parents=True)
    Path("few/a.txt").write_text("One short text.")
    Path("scratch/study.json").write_text("{}")
    Path("broken/fitted.json").write_text('{"model": 3}')
    run = json.loads(json.dumps(retro.config.as_json.to_dict(retro.recipes.tiny())))
    record = {"model": "another", "sources": ["other"], "minutes": 1.0, "run": run}
    Path("begun/fitted.json").write_text(json.dumps(record))
    assert main(["study", *(word.replace("OWN", str(own_text)) for word in words)]) == 1
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not Path("work").exists()


def test_a_run_that_is_no_fitted_base_is_refused(workspace: retro.Workspace, own_text: Path) -> None:
    from tests.model.models import small_model

    small_model().save("mine")
    with pytest.raises(ConfigError, match="mine is not a fitted base"):
        retro.open_text(own_text, run="mine")


def test_three_lines_of_python_are_enough(own_text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those of the front page, as they stand there."""
    page = (Path(__file__).parent.parent.parent / "README.md").read_text()
    (lines,) = re.findall(r"```python\nimport retro\n\n(sampler = retro\.open_text.*?)```", page, re.DOTALL)
    assert len(lines.strip().splitlines()) == 3
    Path("my-texts").symlink_to(own_text)
    paragraph = (own_text / "07.txt").read_text()[:400]
    exec(f"import retro\n{lines}", {"first_paragraph": paragraph})
    text, _, titles = capsys.readouterr().out.rpartition("{")
    assert text.strip()
    assert ".txt" in titles
    # Again it opens what is there; other text is refused.
    before = {path: path.stat().st_mtime_ns for path in Path("work").rglob("manifest.json")}
    assert retro.open_text("my-texts/").retriever is not None
    assert {path: path.stat().st_mtime_ns for path in Path("work").rglob("manifest.json")} == before
    with pytest.raises(ConfigError, match="is a workspace of my-texts/"):
        retro.open_text("other-texts/")
    with pytest.raises(ConfigError, match="what was named is nothing"):
        retro.open_text()
