"""The scoreboard, on a fitted base in small and on models of our own."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from retro.config import CorpusConfig, DatastoreConfig, EvaluationConfig
from retro.errors import ConfigError
from retro.reproduce import scales
from retro.reproduce.claims import Verdict
from retro.reproduce.runner import finished, reproduce
from retro.reproduce.scales import Scale
from retro.scoring.intervals import Interval
from tests.bases import save_small_base
from tests.pages.checks import check_page
from tests.workspaces import Silent, small_run

DECIDED = (
    "table-retrieval",
    "figure-leakage",
    "figure-datastore-size",
    "figure-neighbours",
    "table-new-facts",
)
"""What a base that was trained elsewhere can decide."""


@pytest.fixture(scope="module")
def scale(
    tmp_path_factory: pytest.TempPathFactory, bert: str, static_encoder: str, texts: list[str]
) -> Scale:
    base = save_small_base(tmp_path_factory.mktemp("base"), texts)
    run = small_run(bert)
    run = replace(
        run,
        corpus=CorpusConfig(tokenizer=str(base), valid_fraction=0.15, test_fraction=0.15),
        datastore=DatastoreConfig(embedder=static_encoder, chunk_len=8, num_neighbours=2),
        training=replace(run.training, seq_len=64, num_steps=2, warmup_steps=1),
        evaluation=EvaluationConfig(window=64, stride=64, num_neighbours=(2,)),
    )
    return Scale(
        name="test",
        run=run,
        fit_steps=2,
        sizes=(),
        ablation=run,
        compared_documents=3,
        neighbours=(1, 2),
        fractions=(0.5, 1.0),
        experiments=("table-scoreboard", *DECIDED),
    )


def test_a_fitted_base_beside_what_else_could_be_done(
    scale: Scale, text_folder: Path, tmp_path: Path
) -> None:
    # As if both had been begun before: here they take less than a clock counts.
    (tmp_path / "seconds.json").write_text(json.dumps({"datastore": 5.0, "fit retro": 0.5}))
    (result,) = reproduce(("table-scoreboard",), scale, tmp_path, Silent(), [str(text_folder)])
    bits, costs, by_overlap, prepared, systems = result.tables
    rows = [str(row[0]) for row in bits.rows]
    assert rows[:3] == ["off", "on-2", "plus-2"]
    assert rows == [str(row[0]) for row in costs.rows]
    assert {"prompt-2", "prompt-1-every-2", "lora", "knn", "spalm", "cache"} <= set(rows)
    numbers = {str(row[0]): dict(zip(costs.headings, row, strict=True)) for row in costs.rows}
    assert numbers["off"]["of off's"] == 1.0
    assert numbers["off"]["MB"] == 0.0
    assert numbers["on-2"]["drawn a second"] > 0
    # The seconds of a fit and of a datastore are in what a row took.
    assert numbers["prompt-2"]["seconds"] >= 5.0
    assert numbers["on-2"]["seconds"] >= numbers["prompt-2"]["seconds"] + 0.5
    assert numbers["knn"]["seconds"] < 5.0
    assert [row[0] for row in prepared.rows] == ["lora", "knn", "spalm", "cache"]
    assert sum(cell for cell in by_overlap.rows[0][1:] if isinstance(cell, int)) > 0
    assert {str(row[1]) for row in systems.rows} >= {
        "RETRO++",
        "kNN-LM",
        "SPALM",
        "the continuous cache",
        "FiD",
    }
    assert [figure.name for figure in result.figures] == ["time", "memory"]
    check_page((tmp_path / "reproduce" / "report.html").read_text())
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "comparison").rglob("*.*")}
    assert before
    (again,) = reproduce(("table-scoreboard",), scale, tmp_path, Silent(), [str(text_folder)])
    assert again == result == finished(tmp_path)[0]
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "comparison").rglob("*.*")} == before


def test_a_scale_may_be_for_some_experiments_only(scale: Scale, text_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not for table-ablation; expected table-scoreboard"):
        reproduce(("table-ablation",), scale, tmp_path, Silent(), [str(text_folder)])
    assert scales.get("smollm2").memory


def test_models_of_our_own_have_a_baseline_and_a_retro(bert: str, text_folder: Path, tmp_path: Path) -> None:
    run = small_run(bert)
    own = Scale(name="test", run=run, fit_steps=2, sizes=(), ablation=run, compared_documents=3)
    (result,) = reproduce(("table-scoreboard",), own, tmp_path, Silent(), [str(text_folder)])
    rows = [str(row[0]) for row in result.tables[0].rows]
    costs = result.tables[1]
    assert rows[:4] == ["off", "RETRO[OFF]", "on-2", "plus-2"]
    held = {str(row[0]): row[costs.headings.index("MB")] for row in costs.rows}
    assert held["off"] == held["RETRO[OFF]"] == 0.0
    assert held["on-2"] > held["prompt-2"]  # by the weights that read neighbours


def test_a_fitted_base_decides_claims_and_is_its_own_baseline(
    scale: Scale, text_folder: Path, tmp_path: Path
) -> None:
    results = reproduce(DECIDED, scale, tmp_path, Silent(), [str(text_folder)])
    claims = {claim.key: claim for result in results for claim in result.claims}
    assert set(claims) == {
        *("on-below-off", "off-like-baseline", "unseen-text", "leakage-slope"),
        *("datastore-size", "new-facts"),
    }
    off = claims["off-like-baseline"]
    assert off.verdict is Verdict.REPRODUCED
    assert off.number == Interval(0.0, 0.0, 0.0)
    assert "the same to the bit" in claims["new-facts"].found
    assert not (tmp_path / "runs" / "baseline").exists()
