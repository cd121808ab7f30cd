"""Web pages: what a reader sees of them."""

from pathlib import Path

import pytest

from retro.corpus.readers import Problems, read
from retro.corpus.readers.problems import Kind

PAGE = """<!DOCTYPE html>
<html><head><title>A page
 of mine</title><style>p { color: red }</style><script>var x = "<p>no</p>";</script></head>
<body><nav><a href="/">Home</a></nav><div role="navigation">Up</div>
<header><h1>Heading</h1></header>
<!-- a comment -->
<p>Some <b>bold</b>   text &amp; more,<br>a line</p><p>Naïve.</p>
<ul><li>one</li><li>two</li></ul>
<table><tr><td>a</td><td>b</td></tr><tr><td>c</td><td>d</td></tr></table>
<pre>def f():
    return 1</pre>
<noscript>turn it on</noscript></body></html>"""
TEXT = """Heading

Some bold text & more,
a line

Naïve.

one
two

a b
c d

def f():
    return 1
"""


def test_a_page_is_what_is_seen_of_it(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(PAGE)
    (document,) = read(str(tmp_path))
    assert (document.id, document.title) == ("a.html", "A page of mine")
    assert document.text == TEXT


@pytest.mark.parametrize("name", ["page.htm", "index.php"])
def test_pages_are_known_by_name_or_content(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(PAGE)
    assert [document.text for document in read(str(tmp_path))] == [TEXT]


def test_a_page_says_its_encoding_itself(tmp_path: Path) -> None:
    page = '<html><head><meta charset="iso-8859-7"></head><p>Καλημέρα</p>'
    (tmp_path / "a.html").write_bytes(page.encode("iso-8859-7"))
    problems = Problems()
    assert [document.text for document in read(str(tmp_path), problems=problems)] == ["Καλημέρα\n"]
    assert problems.encodings == {"iso-8859-7": 1}


def test_odd_pages_do_not_stop(tmp_path: Path) -> None:
    (tmp_path / "deep.html").write_text("<div>" * 5_000 + "words")
    (tmp_path / "empty.html").write_text("<html><script>only()</script></html>")
    (tmp_path / "odd.html").write_text("<p>a<![if x]> <!doctype <b")
    (tmp_path / "z.txt").write_text("text")
    problems = Problems()
    found = {document.id for document in read(str(tmp_path), problems=problems)}
    assert "z.txt" in found
    assert len(found) + problems.count == 4
    assert problems.tallies[Kind.EMPTY].documents == 1
