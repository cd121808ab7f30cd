"""All kinds of pages, held to what every page must be."""

from pathlib import Path

import pytest

from retro.pages.inspection import inspection_page
from retro.pages.report import report_page, report_record
from retro.pages.samples import ENDED, FIRST, NONE_FOLLOWS, NOT_RETRIEVED, Pair, samples_page
from retro.pages.shell import Made, numbers_table
from retro.reproduce.claims import Claim, Verdict
from retro.reproduce.page import render, tally
from retro.reproduce.result import Figure, Result, Table
from retro.retrieval.search import Place
from retro.retrieval.shared_runs import ColouredChunk, ColouredNeighbour, Span
from retro.scoring.inspection import InspectedChunk, InspectedDocument
from tests.pages.checks import check_made, check_page
from tests.pages.test_report import a_report

MADE = Made('retro sample "a <b>"', "notes & more: 3 documents, 40 tokens")
COMMAND, CORPUS = "retro sample &quot;a &lt;b&gt;&quot;", "notes &amp; more: 3 documents, 40 tokens"
RUN = [Span("one", 1, 3, 0), Span(" two", 2, 3, 0), Span(" three", 3, 3, 0), Span(" x", 0, 0, None)]


def neighbour(document: str) -> ColouredNeighbour:
    text = [Span("n", 0, 0), Span("one", 1, 2), Span(" two", 2, 2)]
    return ColouredNeighbour(document, "", "notes", 0.5, text, [Span("f", 7)], Place(0, 2, 0, 4))


def chunks() -> list[ColouredChunk]:
    """Four chunks: with two neighbours, with one, with none though one follows, and the last."""
    return [
        ColouredChunk([Span("prompt", None)], [neighbour("a"), neighbour("b")], prompt_len=1),
        ColouredChunk(RUN, [neighbour("a")]),
        ColouredChunk(RUN, []),
        ColouredChunk([Span("end", None)], []),
    ]


def results() -> list[Result]:
    """Two experiments, each with a verdict on one of its two claims."""
    table = Table("bits", ["model", "gain"], [["baseline", ""], ["RETRO", 0.25]])
    figure = Figure("f", "caption", '<svg role="img" aria-label="t"></svg>')
    claims = {
        "table-retrieval": Claim("on-below-off", Verdict.REPRODUCED, "x"),
        "figure-leakage": Claim("unseen-text", Verdict.TOO_SMALL, "y"),
    }
    command = {"command": "retro reproduce"}
    return [Result(name, "T", "P", [table], [figure], [claim], command) for name, claim in claims.items()]


def test_samples() -> None:
    pairs = [Pair("one", chunks()[:2], chunks()), Pair("two", [], chunks())]
    page = samples_page("T", "n", pairs, MADE)
    outline = check_page(page)
    check_made(page, COMMAND, CORPUS)
    assert page.count('class="legend"') == 1
    # A run leads to the neighbour that it came from, that one's run back, and its title to the sources.
    assert '<a href="#s1-c1-n1"><mark class=o3>one two three</mark></a>' in page
    assert '<a href="#s1-c2"><mark class=o2>one two</mark></a>' in page
    assert {"s1-c1-n1", "s1-c1-n2", "s1-c2-n1", "s2-c1-n1", "s2-c4", "sources"} <= set(outline.ids)
    for reason in (FIRST, ENDED, NONE_FOLLOWS, NOT_RETRIEVED, "Only 1 found for this chunk."):
        assert reason in page
    assert "<td></td>" not in page


def test_inspection() -> None:
    parts = [InspectedChunk(chunk, [2.0] * n, [1.0] * n, 9) for chunk in chunks() if (n := len(chunk.spans))]
    page = inspection_page(InspectedDocument("doc", "", "notes", 2, parts), "run x", MADE)
    outline = check_page(page)
    check_made(page, COMMAND, CORPUS)
    assert {"c1", "c4", "n1-1", "n1-2", "n2-1"} <= set(outline.ids)
    assert '<a href="#n1-1"><mark class=o3>one two three</mark></a>' in page
    assert "There is no chunk before it" in page
    assert "No chunk follows" in page
    assert "No neighbour was saved" in page
    assert page.count('class="legend"') == 2
    # The map has an axis, and a value at every bar.
    assert page.count("<rect") == 4
    assert ">bits</text>" in page
    assert ">C4</text>" in page
    assert ">4</text>" in page


def test_report(tmp_path: Path) -> None:
    report = a_report(tmp_path, [0.0, 0.125, 0.5, 1.0])
    page = report_page(report)
    check_page(page)
    check_made(page, "make demo", "some &lt;text&gt;")
    assert report_record(report)["made"]["command"] == "make demo"
    # Two ranges of overlap hold no text, which their cells say.
    assert page.count('title="no chunk of the test documents falls into this range"') == 2 * 4


def test_reproduce() -> None:
    page = render(results(), "tiny", MADE)
    check_page(page)
    check_made(page, COMMAND, CORPUS)
    words = (
        "Of 16 claims of the paper 2 were tested here: 1 reproduced, 0 not reproduced, 1 too small to tell; "
    )
    assert tally(results()) == words + "14 were not tested."
    assert words in page
    assert page.count("was run, but this data or scale cannot decide it") == 2
    assert page.count("would decide it") == 12
    assert '<td class="empty" title="' in page


def test_options_of_the_command_are_not_broken() -> None:
    assert (
        "retro sample a-b <span>--both</span> <span>--max-tokens</span> 3"
        in Made("retro sample a-b --both --max-tokens 3", "").html()
    )


def test_an_empty_cell_says_why() -> None:
    assert '<td class="empty" title="no &lt;k&gt;">–</td>' in numbers_table(["a"], [[""]], "no <k>")


@pytest.mark.parametrize("broken", ["<h1>a</h1><h3>b</h3>", '<h1>a</h1><a href="#x">b</a>', "<h1>a"])
def test_a_broken_page_is_noticed(broken: str) -> None:
    with pytest.raises(AssertionError):
        check_page(f'<html lang="en"><meta name="viewport">{broken}</html>')
