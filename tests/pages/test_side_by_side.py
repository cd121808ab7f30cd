"""Samples side by side: what is new in one of them, and where its colours lead."""

from retro.pages.samples import samples_table, shown_neighbours
from retro.pages.shell import page
from retro.pages.side_by_side import Column, new_tokens, side_by_side
from retro.pages.sources import sources_html
from retro.retrieval.shared_runs import ColouredChunk, ColouredNeighbour, Span
from tests.pages.checks import check_page

RUN = [Span("one", 1, 2, 0), Span(" two", 2, 2, 0)]


def chunks() -> list[ColouredChunk]:
    neighbour = ColouredNeighbour("a", "", "s", 0.5, RUN, [])
    return [
        ColouredChunk([Span("the", None), Span(" <b>", None)], [neighbour], prompt_len=1),
        ColouredChunk(RUN, []),
    ]


def test_new_tokens_are_those_that_stand_elsewhere_or_nowhere() -> None:
    text = [1, 2, 3, 4, 5, 6, 7, 8]
    assert new_tokens(text, [1, 2, 3, 4, 9, 5, 6, 7, 8]) == [False] * 4 + [True] + [False] * 4
    # A few tokens that happen to stand in both are no part that has stayed.
    assert new_tokens(text, [1, 2, 3, 4, 9, 9, 7, 8]) == [False] * 4 + [True] * 4
    assert new_tokens([1, 2], [1, 2]) == [False, False]
    # A token that is frequent in a long text is no junk.
    assert not any(new_tokens([7] * 300, [7] * 300))


def test_columns_stand_side_by_side_with_links_to_what_was_read() -> None:
    columns = [
        Column("off", chunks()[:1], "off-"),
        Column("on & on", chunks(), "on-", [False, True, True, False]),
    ]
    table = side_by_side(columns)
    below = samples_table([], chunks(), 1, "on-") + sources_html(shown_neighbours(chunks(), "on-"))
    whole = page("T", table + below)
    check_page(whole)
    assert "<th>on &amp; on</th>" in table
    assert "The sample ended above." in table
    # A chunk that is all prompt stands there once.
    prompt = ColouredChunk([Span("all prompt", None)], [], prompt_len=1)
    once = side_by_side([Column("off", [prompt], "off-"), Column("on", [prompt, *chunks()], "on-")])
    assert once.count("all prompt") == 1
    assert '<td colspan="2" data-column="the prompt"><span class="prompt">all prompt</span></td>' in once
    # The prompt is apart, what is new is marked within colours, and each part leads to its neighbour.
    assert '<span class="prompt">the</span><ins> &lt;b&gt;</ins>' in table
    assert '<a href="#on-c1-n1"><mark class=o2><ins>one</ins> two</mark></a>' in table
