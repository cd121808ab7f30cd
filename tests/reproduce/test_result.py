"""Results are written whole and read back as they were."""

import dataclasses
from pathlib import Path

from retro.reproduce.claims import CLAIMS, Claim, Verdict
from retro.reproduce.page import render
from retro.reproduce.result import Figure, Result, Table, text_of
from retro.scoring.intervals import Interval


def a_result() -> Result:
    table = Table(
        "numbers", ["name", "value", "count"], [["a <b>", Interval(1.0, 0.5, 1.5), 12_345], ["c", 0.25, None]]
    )
    number = Interval(0.01, -0.005, 0.015)
    claim = Claim("on-below-off", Verdict.TOO_SMALL, "1.0 % (−0.5 to 1.5) fewer bits", number, (0.01, 0.02))
    figure = Figure("curve", "A curve.", "<svg></svg>")
    return Result(
        "table-x",
        "A title",
        "What the paper says",
        [table],
        [figure],
        [claim],
        {"command": "retro reproduce table-x"},
    )


def test_a_result_survives_the_disk(tmp_path: Path) -> None:
    result = a_result()
    result.save(tmp_path)
    assert Result.load(tmp_path / "table-x.json") == result


def test_cells_are_legible() -> None:
    assert [text_of(cell) for cell in ("x", None, 1234, 0.25, 25.0, 1234.56, Interval(1.0, 0.5, 1.5))] == [
        "x",
        "",
        "1,234",
        "0.2500",
        "25.00",
        "1,234.6",
        "1.0000 (0.5000 to 1.5000)",
    ]


def test_the_page_lists_every_claim_and_escapes(tmp_path: Path) -> None:
    page = render([a_result()], "tiny")
    assert "? too small to tell" in page
    assert "seeds: 1.0, 2.0 %" in page
    assert page.count("not run") == len(CLAIMS) - 1
    assert "a &lt;b&gt;" in page
    assert "retro reproduce table-x" in page


def test_without_a_claim_there_is_no_checklist() -> None:
    page = render([dataclasses.replace(a_result(), claims=[])], "tiny")
    assert "decides no claim" in page
    assert "not run" not in page
