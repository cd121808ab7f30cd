"""Anybody's text to a report: planned, interrupted, taken up again, and open to the single commands."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from retro import recipes
from retro.cli.main import main
from retro.errors import ConfigError
from retro.own_text import first_words, study_text
from retro.stages.progress import Progress, no_progress
from tests.full_disk import disk_of
from tests.workspaces import Silent


class Interrupting(Silent):
    """Stops where the user pressed Ctrl-C."""

    @contextmanager
    def progress(self, title: str) -> Iterator[Progress]:
        if title == "Training retro":
            raise KeyboardInterrupt
        yield no_progress


@pytest.mark.usefixtures("small_models")
def test_own_text_to_a_report(
    tmp_path: Path, own_text: Path, static_encoder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    work = tmp_path / "work"
    lines: list[str] = []

    def begin(narrator: Silent, minutes: float):
        return study_text(work, [str(own_text)], minutes, narrator, embedder=static_encoder, say=lines.append)

    with pytest.raises(KeyboardInterrupt):
        begin(Interrupting(), 30)
    recipe = (work / recipes.FILE).read_bytes()
    assert "epochs of" in lines[0]
    assert "to go" in lines[0]

    # Other minutes change nothing: what was planned is planned.
    result = begin(Silent(), 300)
    assert (work / recipes.FILE).read_bytes() == recipe
    record = json.loads((work / recipes.RECORD).read_text())
    assert record["minutes"] == 30
    assert record["complete"]

    page = result.report.read_text()
    assert f"RETRO on {own_text.name}" in page
    assert "What was chosen, and why" in page
    assert "licence" not in page
    # A plot by the number of neighbours needs more than one.
    assert page.count("<figure>") == (5 if len(result.retro.modes) > 2 else 4)
    assert result.verdict.startswith("Retrieval ")
    twin = json.loads(result.report.with_suffix(".json").read_text())
    assert twin["verdict"] == result.verdict
    assert {"text", "vocabulary", "embedder", "model", "training"} <= twin["choices"].keys()
    assert "known by heart" in twin["choices"]["training"]
    assert twin["commands"] == f"retro study {own_text} --out {work} --minutes 30"
    assert len(first_words(work).split()) == 6

    # A report that does not fit on the disk is told in one line, and written when there is room.
    result.report.unlink()
    study = ["study", str(own_text), "--out", str(work), "--minutes", "30", "--embedder", static_encoder]
    with disk_of(20_000):
        assert main(study) == 1
    error = capsys.readouterr().err
    assert "the disk is full" in error
    assert error.count("\n") == 1
    assert not result.report.exists()
    assert main(study) == 0
    assert result.report.read_text().count("<h2") == page.count("<h2")

    # The single commands have the same recipe: they find everything finished.
    before = {path: path.stat().st_mtime_ns for path in work.rglob("manifest.json")}
    for command in (
        ["ingest", "--out", str(work)],
        ["build", str(work)],
        ["neighbours", str(work)],
        ["train", str(work)],
        ["train", str(work), "--baseline"],
        ["evaluate", str(work)],
        ["evaluate", str(work / "runs" / "baseline")],
    ):
        assert main(command) == 0, capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in work.rglob("manifest.json")} == before
    assert main(["train", str(work), "--recipe", "tiny"]) == 1  # another recipe makes another run
    assert "made with other settings" in capsys.readouterr().err

    with pytest.raises(ConfigError, match="holds a study of"):
        study_text(work, ["elsewhere"], 30, Silent())


def test_a_recipe_can_be_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from retro.config.as_json import to_dict

    file = tmp_path / "mine.json"
    file.write_text(json.dumps(to_dict(recipes.get("tiny"))))
    assert recipes.get(str(file)) == recipes.get("tiny")
    for content, message in (
        ("{", "is not JSON"),
        ("[]", "holds no object"),
        ('{"name": "x", "modle": {}}', "unknown keys"),
    ):
        file.write_text(content)
        assert main(["build", str(tmp_path), "--recipe", str(file)]) == 1
        assert message in capsys.readouterr().err
    assert main(["build", str(tmp_path), "--recipe", "absent.json"]) == 1
    assert "absent.json cannot be read" in capsys.readouterr().err


def test_a_file_that_only_has_the_name_is_no_recipe(tmp_path: Path) -> None:
    (tmp_path / recipes.FILE).write_text('{"dish": "soup"}')
    assert recipes.of_workspace(tmp_path) is None


@pytest.mark.usefixtures("small_models")
def test_too_few_minutes_are_refused_before_the_text_is_read(
    tmp_path: Path, own_text: Path, static_encoder: str
) -> None:
    with pytest.raises(ConfigError, match=r"--minutes is 0\.2, .* expected at least 1"):
        study_text(tmp_path / "work", [str(own_text)], 0.2, Silent(), embedder=static_encoder)
    assert not (tmp_path / "work" / "tokens").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no source was named"),
        (["texts", "--minutes", "0"], "--minutes is 0; expected a positive number"),
        (["texts", "--minutes", "nan"], "--minutes is nan; expected a positive number"),
        (["texts", "--minutes", "inf"], "--minutes is inf; expected at most 525,600, a year"),
        (["absent"], "absent is no file, no folder and no corpus"),
    ],
)
def test_mistakes_are_told_in_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    work = tmp_path / "work"
    assert main(["study", *arguments, "--out", str(work)]) == 1
    assert message in capsys.readouterr().err
    assert not work.exists()


def test_a_workspace_of_another_kind_is_left_alone(tmp_path: Path, own_text: Path) -> None:
    (tmp_path / "tokens").mkdir()
    with pytest.raises(ConfigError, match="a workspace that no study began"):
        study_text(tmp_path, [str(own_text)], 30, Silent())
