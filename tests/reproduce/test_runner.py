"""Experiments on a small corpus with everything real, and what a second run reuses."""

import dataclasses
import json
from pathlib import Path

import pytest

from retro.cli.main import main
from retro.errors import ConfigError
from retro.reproduce import scales
from retro.reproduce.claims import TESTED_BY
from retro.reproduce.runner import EXPERIMENTS, finished, reproduce
from retro.reproduce.scales import Scale
from retro.workspace import Workspace
from tests.pages.checks import check_page
from tests.workspaces import Silent, small_run

NAMES = (
    "table-retrieval",
    "figure-model-size",
    "figure-datastore-size",
    "figure-neighbours",
    "figure-leakage",
    "figure-decontamination",
    "figure-sources",
    "figure-retrofit",
    "table-knn-lm",
    "table-wikitext103",
    "table-new-facts",
)
"""Those that need neither the catalogue nor long training."""


@pytest.fixture(scope="module")
def small_scale(bert: str, text_folder: Path) -> Scale:
    run = small_run(bert)
    return Scale(
        name="test",
        run=run,
        wikitext=str(text_folder),
        fit_steps=4,
        fractions=(0.2, 1.0),
        neighbours=(1, 4),
        ablation=run,
        sizes=(("half", scales.scaled(run.model, 0.5)), ("whole", run.model)),
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, small_scale: Scale, text_folder: Path) -> Path:
    path = tmp_path_factory.mktemp("study")
    reproduce(NAMES, small_scale, path, Silent(), [str(text_folder)])
    return path


def test_every_experiment_leaves_numbers_and_where_they_come_from(folder: Path) -> None:
    results = finished(folder)
    assert {result.name for result in results} == set(NAMES)
    for result in results:
        assert result.tables
        assert result.provenance["command"].startswith(f"retro reproduce {result.name} --scale test")
        assert {"datastore", "tokens of test"} <= set(result.provenance["fingerprints"])
        assert all(TESTED_BY[claim.key] == result.name for claim in result.claims)
    page = (folder / "reproduce" / "report.html").read_text()
    assert all(f'id="{result.name}"' in page for result in results)
    check_page(page)
    command = f"retro reproduce {' '.join(NAMES)} <span>--scale</span> test <span>--out</span> {folder}"
    # It is long, so it is folded, and stands there whole.
    assert "<dt>command</dt><dd><details>" in page
    assert f"<code>{command}" in page
    assert " documents, " in page.split("<dt>corpus</dt>")[1].split("</dd>")[0]


def test_a_retrofit_with_retrieval_off_is_the_baseline(folder: Path) -> None:
    retrofit = next(result for result in finished(folder) if result.name == "figure-retrofit")
    assert "equal to the bit" in retrofit.claims[0].found


def test_all_of_the_datastore_is_what_the_evaluation_saw(folder: Path) -> None:
    """Exact search here, so the thinned neighbours of everything are the saved ones."""
    results = {result.name: result for result in finished(folder)}
    whole = results["figure-datastore-size"].tables[0].rows[-1][-1]
    assert whole == results["table-retrieval"].tables[0].rows[-1][1]


def test_a_second_run_trains_nothing(folder: Path, small_scale: Scale, text_folder: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("manifest.json")}
    again = reproduce(("table-retrieval",), small_scale, folder, Silent(), [str(text_folder)])
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("manifest.json")} == before
    assert again[0] == finished(folder)[0]


def test_other_seeds_stand_beside_the_first(folder: Path, small_scale: Scale, text_folder: Path) -> None:
    before = (folder / "runs" / "retro" / "model.safetensors").read_bytes()
    scale = dataclasses.replace(small_scale, more_seeds=(1,))
    (first,) = [result for result in finished(folder) if result.name == "table-retrieval"]
    (result,) = reproduce(("table-retrieval",), scale, folder, Silent(), [str(text_folder)])
    for claim, alone in zip(result.claims, first.claims, strict=True):
        assert (claim.found, claim.number) == (alone.found, alone.number)
        assert len(claim.seeds) == 2
        assert claim.seeds[0] == alone.number.estimate  # type: ignore[union-attr]
        assert claim.seeds[1] != claim.seeds[0]
    assert result.tables[-1].headings == ["claim", "seed 0", "seed 1", "verdicts"]
    assert {"retro", "retro-seed-1"} <= set(result.provenance["fingerprints"])
    other = (folder / "runs" / "retro-seed-1" / "model.safetensors").read_bytes()
    assert other != before == (folder / "runs" / "retro" / "model.safetensors").read_bytes()
    first.save(folder / "reproduce")


def test_both_memories_hold_the_same_part_of_the_text(
    folder: Path, small_scale: Scale, text_folder: Path
) -> None:
    scale = dataclasses.replace(small_scale, knn_part=0.5, with_pointer=True)
    (result,) = reproduce(("table-knn-lm",), scale, folder, Silent(), [str(text_folder)])
    labels = [str(row[0]) for row in result.tables[0].rows]
    assert labels[-2:] == ["RETRO[ON], k = 10", "RETROfit[ON] with the pointer, k = 10"]
    keys = {str(row[0]): row[4] for row in result.tables[0].rows}
    thinned = Workspace(folder).path / "thinned" / "test" / "0.5-10-0" / "manifest.json"
    counts = json.loads(thinned.read_text())["counts"]
    assert keys["RETRO[ON], k = 10"] == counts["keys"]
    # A key for every token but the first of each document.
    assert keys["kNN-LM"] == counts["tokens"] - counts["documents"]
    assert "both over the same 50% of the text" in result.claims[0].found


@pytest.mark.slow
def test_the_ablation_table(folder: Path, small_scale: Scale, text_folder: Path) -> None:
    (result,) = reproduce(("table-ablation",), small_scale, folder, Silent(), [str(text_folder)])
    assert len(result.tables[0].rows) == 15
    assert [claim.key for claim in result.claims] == ["continuations", "conditioning", "positions"]


def test_unknown_names_and_missing_data_are_told(
    tmp_path: Path, small_scale: Scale, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match="there is no experiment 'table-9'"):
        reproduce(("table-9",), small_scale, tmp_path, Silent(), ["x"])
    with pytest.raises(ConfigError, match="has no data of its own"):
        reproduce((), dataclasses.replace(small_scale, sources=()), tmp_path, Silent())
    assert main(["reproduce", "table-retrieval", "--scale", "huge"]) == 1
    assert "there is no scale 'huge'; expected one of tiny, small, paper" in capsys.readouterr().err
    assert main(["reproduce"]) == 0
    assert all(name in capsys.readouterr().out for name in list(EXPERIMENTS)[:1])
