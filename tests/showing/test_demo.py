"""The fitted demo on a small base and manual: to its page, again, interrupted, and beside the other demo."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from retro import demo, recipes
from retro.cli.main import main
from retro.config import RunConfig
from retro.config.as_json import to_dict
from retro.demo import run_fitted_demo
from retro.errors import ConfigError, MissingExtraError
from retro.pages import plots
from retro.pages.fitted_report import findings
from retro.showing.report import Shown
from retro.stages.parts import JSON, Parts
from retro.stages.progress import Progress, no_progress
from retro.study import Study
from tests.pages.checks import check_page
from tests.showing.conftest import SMALL
from tests.workspaces import Silent


class StoppedAt(Silent):
    """Stops where the user pressed Ctrl-C: in the part with this title, at its first report."""

    def __init__(self, title: str) -> None:
        self.title = title

    @contextmanager
    def progress(self, title: str) -> Iterator[Progress]:
        def stop(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        yield stop if title == self.title else no_progress


def bits_of(folder: Path) -> dict[str, dict[str, list[float]]]:
    kept = Parts(folder / "scores" / "beginnings", JSON)
    names = sorted(file.stem for file in kept.folder.glob("[0-9]*.json"))
    return {name: {row: found["bits"] for row, found in kept.read(name).items()} for name in names}


def test_the_page_says_what_was_measured(shown: Shown) -> None:
    report = shown.report
    page = shown.page.read_text()
    outline = check_page(page)
    twin = json.loads(shown.page.with_suffix(".json").read_text())
    assert twin["findings"] == findings(report)
    assert len(twin["findings"]) == 2
    rows = twin["rows"]
    assert list(rows) == ["base", "off", "on", "prompt"]
    assert rows["on"]["all"]["num_documents"] == 5
    assert rows["base"]["all"]["bits_per_byte"] == rows["off"]["all"]["bits_per_byte"]
    assert twin["taken_out"]["copied"].keys() == {"off", "on", "without"}
    for column in report.columns:
        assert column.heading in page
    assert {"on-c1-n1", "out-c1-n1", "sources"} <= set(outline.ids)
    assert page.count("<figure>") == 3
    assert "<ins>" in page
    assert {"tokens", "datastore", "memory", "fit retro", "score", "sample"} <= twin["seconds"].keys()


def test_without_neighbours_it_is_the_base_to_the_bit(shown: Shown) -> None:
    assert shown.report.off_is_base
    for rows in bits_of(shown.folder).values():
        assert rows["base"] == rows["off"]
        assert not np.array_equal(rows["on-2"], rows["off"])
        assert not np.array_equal(rows["prompt-2"], rows["on-2"])


def test_the_source_that_was_worth_most_is_out(shown: Shown) -> None:
    samples = Parts(shown.folder / "samples", JSON)
    saved = samples.read("saved")
    assert shown.document == max(saved, key=saved.get)

    def read_by(name: str) -> set[str]:
        return {found["document"] for row in samples.read(name)["neighbours"] for found in row}

    assert shown.document in read_by("on")
    assert shown.document not in read_by("without")
    assert read_by("without")
    assert not read_by("off")
    # It is still in the datastore: it was left out of one request.
    texts = {name: samples.read(name) for name in ("off", "on", "without")}
    assert len({tuple(text["tokens"][: text["prompt_len"]]) for text in texts.values()}) == 1
    assert texts["on"]["tokens"] != texts["without"]["tokens"]


def test_the_sampled_document_is_chosen_by_its_gain(shown: Shown) -> None:
    gains = dict(shown.report.documents)
    assert list(gains.values()) == sorted(gains.values(), reverse=True)
    gaining = [name for name, gain in gains.items() if gain > 0]
    expected = gaining[len(gaining) // 2] if gaining else next(iter(gains))
    assert shown.report.sampled == expected


def test_run_again_it_makes_nothing_anew(shown: Shown, small_demo: RunConfig, older: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in shown.folder.rglob("manifest.json")}
    seconds = (shown.folder / "seconds.json").read_text()
    again = run_fitted_demo(shown.folder, small_demo, Silent(), memory=[str(older)], extent=SMALL)
    assert {path: path.stat().st_mtime_ns for path in shown.folder.rglob("manifest.json")} == before
    assert (shown.folder / "seconds.json").read_text() == seconds
    assert again.report.rows == shown.report.rows
    assert again.report.columns == shown.report.columns


def test_interrupted_at_any_stage_it_goes_on(
    shown: Shown, small_demo: RunConfig, older: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "demo"
    titles = [
        "Reading",
        "Embedding the datastore's chunks",
        "Embedding what only the memory holds",
        "Neighbours of train",
        "Neighbours of test",
        "Fitting retro",
        "Scoring",
        "Sampling",
    ]
    for title in titles:
        with pytest.raises(KeyboardInterrupt):
            run_fitted_demo(folder, small_demo, StoppedAt(title), memory=[str(older)], extent=SMALL)
        assert not (folder / "report.html").exists()
    result = run_fitted_demo(folder, small_demo, Silent(), memory=[str(older)], extent=SMALL)
    assert bits_of(folder) == bits_of(shown.folder)
    assert result.report.columns == shown.report.columns


def test_it_begins_with_what_a_recipe_names(shown: Shown, small_demo: RunConfig, older: Path) -> None:
    run = replace(small_demo, start=str(shown.folder / "runs" / "retro"))
    study = Study(shown.folder, run, run.corpus.sources, Silent(), memory=[str(older)])
    assert "start" in study.fit_base("further").inputs
    assert "start" not in study.opened("retro").run.trained_on


def test_by_the_command(
    small_demo: RunConfig,
    older: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    recipe = tmp_path / "recipe.json"
    recipe.write_text(json.dumps(to_dict(small_demo)))
    monkeypatch.setattr(demo, "DEMO_MEMORY", (str(older),))
    monkeypatch.setattr(demo, "Extent", lambda: SMALL)
    monkeypatch.chdir(tmp_path)
    assert main(["demo", "--recipe", str(recipe)]) == 0
    printed = capsys.readouterr().out
    assert "Next: retro serve demo\n" in printed
    (line,) = [line for line in printed.splitlines() if line.startswith("Next: retro sample demo ")]
    assert " --exclude " in line
    twin = json.loads(Path("demo/report.json").read_text())
    for sentence in twin["findings"]:
        assert sentence in printed
    # The other demo has a folder of its own, and leaves this one alone.
    assert main(["demo", "--from-scratch", "--out", "demo"]) == 1
    error = capsys.readouterr().err
    assert "run: retro demo --out demo" in error
    assert error.count("\n") == 1


def test_the_folder_of_the_other_demo_is_refused_by_name(tmp_path: Path, small_demo: RunConfig) -> None:
    text = tmp_path / "demo" / "text"
    text.mkdir(parents=True)
    (text / "manifest.json").write_text(json.dumps({"inputs": {"licences": "x"}}))
    with pytest.raises(ConfigError, match="run: retro demo --from-scratch --out"):
        run_fitted_demo(tmp_path / "demo", small_demo, Silent())


def test_without_what_draws_plots_it_does_not_begin(
    tmp_path: Path, small_demo: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plots.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="matplotlib"):
        run_fitted_demo(tmp_path / "demo", small_demo, Silent())
    assert not (tmp_path / "demo").exists()


def test_a_recipe_without_a_base_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="recipe tiny names no base"):
        run_fitted_demo(tmp_path / "demo", recipes.tiny(), Silent())
    assert not (tmp_path / "demo").exists()
