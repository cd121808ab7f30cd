from retro.pages.coloured_text import legend_html, spans_html
from retro.pages.shell import page as page_html
from retro.retrieval.shared_runs import Span


def test_equal_colours_run_together_and_the_last_tells_its_length() -> None:
    spans = [
        Span("a", None),
        Span("<", None),
        Span("b", 0),
        Span("c", 0),
        Span("d", 5),
        Span("e", 9),
        Span("", 1),
    ]
    assert spans_html(spans) == 'a&lt;<mark class=o0>bc</mark><mark class=o5 title="9 in common">de</mark>'
    assert spans_html([]) == ""


def test_a_page_holds_the_colours_that_it_uses() -> None:
    page = page_html("A & B", legend_html(), ".more { }")
    for level in range(6):
        assert f".o{level} {{ background:" in page
        assert f"<mark class=o{level}>" in page
    assert "<title>A &amp; B</title>" in page
    assert ".more { }" in page


def test_a_single_token_has_no_colour_and_leads_nowhere() -> None:
    single, blank = [Span("a", 1, 1), Span("b", 0, 0)], [Span(".", 1, 2), Span("\n", 2, 2)]
    run = [Span("c", 1, 2), Span("d", 2, 2)]

    def html(spans: list[Span]) -> str:
        return spans_html(spans, lambda _: "there")

    assert html(single) == "<mark class=o1>a</mark><mark class=o0>b</mark>"
    assert html(blank) == ".\n"
    assert html(run) == '<a href="#there"><mark class=o2>cd</mark></a>'
    assert ".o1 { background: none; }" in page_html("", "")
