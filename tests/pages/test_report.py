"""The report on two evaluations whose numbers are made up: the page, and the same as JSON."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from retro.pages.report import Curves, Report, report_page, report_record
from retro.pages.samples import Pair
from retro.retrieval.shared_runs import ColouredChunk, ColouredNeighbour, Span
from retro.scoring.comparison import compare
from retro.scoring.evaluate import Evaluation
from retro.stages.stage import Artifact

ALPHAS = (0.0, 0.125, 0.5, 1.0)


def interval(value: float) -> dict[str, float]:
    return {"estimate": value, "low": value - 0.1, "high": value + 0.1}


def evaluation(folder: Path, overlaps: list[float], **bits: list[float]) -> Evaluation:
    """Four chunks of 10 bytes in two documents, with the bits of each chunk in every mode."""
    folder.mkdir()
    arrays = {
        "overlaps": np.array(overlaps),
        "num_bytes": np.full(4, 10),
        "documents": np.array([0, 0, 1, 1]),
    }
    modes, filtered = {}, {}
    for name, values in bits.items():
        mode = name.replace("_", "-")
        arrays[f"chunks/{mode}"] = np.array(values)
        arrays[f"documents/{mode}"] = np.array(values).reshape(2, 2).sum(1)
        score = interval(sum(values) / 40)
        modes[mode] = {
            "bits_per_byte": score,
            "perplexity_per_token": interval(9.0),
            "perplexity_per_word": interval(99.0),
        }
        filtered[mode] = [{"alpha": alpha, "bits_per_byte": score, "share_of_bytes": 1.0} for alpha in ALPHAS]
    np.savez(folder / "scores.npz", allow_pickle=False, **arrays)
    (folder / "results.json").write_text(json.dumps({"modes": modes, "filtered": filtered}))
    return Evaluation(Artifact(folder, {"inputs": {"tokens": "t"}}))


def a_report(folder: Path, overlaps: list[float]) -> Report:
    baseline = evaluation(folder / "baseline", overlaps, off=[20.0] * 4)
    retro = evaluation(
        folder / "retro", overlaps, off=[22.0] * 4, on_1=[21.0] * 4, on_2=[21.0, 20.0, 15.0, 4.0]
    )
    neighbour = ColouredNeighbour("id", "A <title>", "source", 0.5, [Span("n", 1)], [Span("f", 7)])
    chunks = [ColouredChunk([Span("a", None)], [neighbour], prompt_len=1), ColouredChunk([Span("b", 2)], [])]
    curve = ([1000, 2000], [3.0, 2.0])
    return Report(
        "A & B",
        baseline,
        retro,
        compare(baseline, retro, "on-2"),
        Curves(curve, curve, curve),
        Pair("One prompt", chunks, chunks),
        [("corpus", "some <text>")],
        "make demo",
    )


@pytest.fixture
def report(tmp_path: Path) -> Report:
    return a_report(tmp_path, [0.0, 0.125, 0.5, 1.0])


def test_the_page_shows_numbers_pictures_and_a_sample(report: Report) -> None:
    page = report_page(report)
    assert "<title>A &amp; B</title>" in page
    assert page.count("<figure>") == 5
    assert "saves 25.0 %" in page
    assert "RETRO[ON], k = 1" in page
    assert '<table class="sample">' in page
    assert "A &lt;title&gt;" in page
    assert "some &lt;text&gt;" in page
    assert "<script" not in page
    assert page.count("<!doctype html>") == 1


def test_the_record_holds_what_the_page_shows(report: Report) -> None:
    record = json.loads(json.dumps(report_record(report), allow_nan=False))
    assert record["title"] == "A & B"
    assert "saves 25.0 %" in record["summary"]
    assert record["results"]["baseline"]["off"]["bits_per_byte"]["estimate"] == 2.0
    assert list(record["results"]["retro"]) == ["off", "on-1", "on-2"]
    assert record["comparison"]["gain_over_baseline"]["estimate"] == pytest.approx(0.25)
    assert [bucket["label"] for bucket in record["comparison"]["buckets"]] == [
        bucket.label for bucket in report.comparison.buckets
    ]
    assert record["training"]["retro_on"] == {"tokens": [1000, 2000], "nats": [3.0, 2.0]}
    assert [point["alpha"] for point in record["filtered"]["RETRO[ON]"]] == [0.125, 0.5, 1.0]
    assert record["sample"]["on"][0]["neighbours"][0]["continuation"] == {"text": "f", "overlap": [7]}
    assert record["facts"] == {"corpus": "some <text>"}


def test_what_is_not_known_is_null(tmp_path: Path) -> None:
    """No chunk is new here, so nothing is known of new chunks; JSON has no NaN."""
    report = a_report(tmp_path, [0.5] * 4)
    record = json.loads(json.dumps(report_record(report), allow_nan=False))
    assert record["comparison"]["gain_on_new_chunks"] == {"estimate": None, "low": None, "high": None}
    assert report_page(report)


def test_a_verdict_leads_and_choices_are_listed(tmp_path: Path) -> None:
    report = a_report(tmp_path, [0.0, 0.1, 0.3, 1.0])
    judged = replace(report, verdict="Retrieval helps <here>.", choices=[("model", "4 layers & more")])
    page = report_page(judged)
    assert '<p class="lead">Retrieval helps &lt;here&gt;.</p>' in page
    assert "What was chosen, and why" in page
    assert "4 layers &amp; more" in page
    assert report_record(judged)["verdict"] == judged.verdict
    plain = report_page(report)
    assert "What was chosen" not in plain
    assert plain.count('class="lead"') == 1
