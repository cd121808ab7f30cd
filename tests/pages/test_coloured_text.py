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
