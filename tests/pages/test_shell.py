"""One shell and one style: whatever a page says by a class or a variable, the style knows."""

import re

from retro.pages import inspection, shell
from retro.pages.shell import STYLE, Made, figure, numbers_table, page
from retro.reproduce import page as checklist


def test_every_colour_has_one_place() -> None:
    """Rules name variables, never a colour; and each variable that is used is there."""
    variables, rules = STYLE.split("}\n", 1)
    for style in (rules, inspection.STYLE, checklist.STYLE):
        assert not re.findall(r"#[0-9a-f]{3,6}\b", style)
        used = set(re.findall(r"var\(--([a-z0-9-]+)\)", style))
        assert used
        assert used <= set(re.findall(r"--([a-z0-9-]+):", variables))


def test_a_page_is_whole_and_escapes_its_title() -> None:
    whole = page("A <b>", "<p>body</p>", ".mine { }\n")
    assert whole.startswith("<!doctype html>")
    assert whole.count("A &lt;b&gt;") == 2
    assert ".mine { }\n</style>" in whole
    assert "<body>" in whole
    assert '<body class="wide">' in page("t", "", wide=True)


def test_tables_and_figures_escape_words_but_not_pictures() -> None:
    assert "<td>&lt;x&gt;</td>" in numbers_table(["a"], [["<x>"]])
    assert figure("<svg/>", "a & b") == "<figure><svg/><figcaption>a &amp; b</figcaption></figure>"
    assert len(shell.WORSE) == len(shell.BETTER)


def test_a_column_with_a_sentence_is_one_of_words() -> None:
    sentence = "what the weights have learned of it stays there"
    table = numbers_table(["a", "b"], [["1", sentence], ["2", "short"], ["", ""]], "none")
    assert '<th scope="col">a</th><th scope="col" class="words">b</th>' in table
    assert f'<td>1</td><td class="words">{sentence}</td>' in table
    assert '<td>2</td><td class="words">short</td>' in table
    assert '<td class="empty" title="none">–</td><td class="empty words" title="none">–</td>' in table


def test_a_long_command_is_folded_and_kept_line_for_line() -> None:
    short = Made("retro inspect w", "some text").html()
    assert "<details>" not in short
    prompt = "one line\nand another <b>\n" * 9
    long = Made(f"retro sample w '{prompt}' --both", "some text").html()
    assert "<details><summary><code>retro sample w &#x27;one line and another" in long
    assert prompt.replace("<b>", "&lt;b&gt;") in long
    assert "</span></code></details>" in long
