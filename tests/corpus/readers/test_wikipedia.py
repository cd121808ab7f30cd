"""Dumps as they are met, old and new, packed, cut off; articles with what the paper's appendix names."""

import bz2
import gzip
import itertools
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("mwparserfromhell")

from retro import catalogue
from retro.corpus.readers import wikipedia
from retro.corpus.readers.wikipedia import DumpCounts, RawPage, clean_page, read_dump, read_raw_pages
from retro.corpus.wikitext import MAX_ARTICLE_CHARS, clean_article, count_unclosed
from retro.errors import DataError, MissingExtraError

NEW_HEAD = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.10/" version="0.10" xml:lang="bg">
<siteinfo><namespaces>
<namespace key="0" /><namespace key="6" case="first-letter">Файл</namespace>
<namespace key="14">Категория</namespace>
</namespaces></siteinfo>"""
OLD_HEAD = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.3/" version="0.3"><siteinfo><namespaces>
<namespace key="0" /><namespace key="6">Image</namespace><namespace key="102">Almanac</namespace>
</namespaces></siteinfo>"""


def page(number: int, title: str, text: str, extra: str = "") -> str:
    revision = f"<revision><id>9</id><text>{text}</text></revision>"
    return f"<page><title>{title}</title>{extra}<id>{number}</id>{revision}</page>\n"


class Listed:
    """Problems, as the readers collect them."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str]] = []

    def add(self, where: str, reason: str) -> None:
        self.rows.append((where, reason))


@pytest.mark.parametrize(
    "name",
    [
        "References",
        "EXTERNAL LINKS",
        "sources",
        "Further reading",
        "''See also''",
        "Citations",
        "Note",
        "Notes",
    ],
)
def test_sections_of_references_go_with_their_subsections(name: str) -> None:
    text = clean_article(
        "Ant", f"Lead.\n\n== Life ==\nLong.\n\n=={name}==\n* one\n===Deeper===\ntwo\n== After ==\nKept."
    )
    assert text == "Ant\n\nLead.\n\nLife\nLong.\n\nAfter\nKept."


def test_sections_of_other_names_stay() -> None:
    text = clean_article("Ant", "==Notes on ants==\nThey walk.\n==Sources of food==\nMany.")
    assert text == "Ant\n\nNotes on ants\nThey walk.\n\nSources of food\nMany."


@pytest.mark.parametrize(
    ("wikitext", "text"),
    [
        (
            "an [[insect]] of the [[Order (biology)|order]] [[Hymenoptera]]",
            "an insect of the order Hymenoptera",
        ),
        ("[[File:Ant.jpg|thumb|An [[ant]] on a ''leaf'']]Text", "Text"),
        (
            "[[image: Ant.jpg]][[Media:a.ogg]]Text[[Category:Ants| ]]\n[[de:Ameisen]] [[zh-min-nan:Káu-hiā]]",
            "Text",
        ),
        (
            "see [[:Category:Ants]] and [[wikt:ant|the word]] and [[doi:10.1/2|a paper]]",
            "see :Category:Ants and the word and a paper",
        ),
        ("a<ref>b</ref> c<ref name=x /> d<REF>{{cite|e}}</REF>", "a c d"),
        ("a\n{| class=x\n|-\n| b\n{|\n| c\n|}\n|}\nd<table><tr><td>e</td></tr></table>", "a\n\nd"),
        ("a\n{{Reflist|30em}}\n{{notelist-ua}}\n{{Infobox|name=b}}", "a"),
        (
            "'''Bold''', ''slanted'', '''''both''''', the ants' and ''''quoted'''' words",
            "Bold, slanted, both, the ants' and 'quoted' words",
        ),
        ("a &ndash; b &amp; c<!-- d --> __NOTOC__", "a – b & c"),
        ("[http://a.example the site] and [http://b.example]", "the site and"),
    ],
)
def test_markup_goes_and_text_stays(wikitext: str, text: str) -> None:
    assert clean_article("T", wikitext) == f"T\n\n{text}"


def test_odd_markup_of_real_articles_does_no_harm_to_what_follows() -> None:
    """An unmatched style mark, as in the 2016 edition of Anarchism, once hid all headings after it."""
    odd = "''Infinitely Demanding<ref>''ibid.</ref> by C.\n\nMore ''words'' here.\n\n==References==\ngone"
    assert clean_article("T", odd) == "T\n\nInfinitely Demanding by C.\n\nMore words here."
    broken_table = 'a\n\n{| class="x" font-size:80%;"\n|-\n! Affiliation\n|align=right| {{bar\n|3}}\n|}\n\nb'
    assert clean_article("T", broken_table) == "T\n\na\n\nb"
    assert (
        clean_article("T", "a\n{{table start}}\n|-\n|[[King]] || 3\n|}\nb <small>c, [[d")
        == "T\n\na\n\nb c, d"
    )
    assert (
        clean_article("T", "a\n<table><tr><td>{|\n|x\n|}\n<b></table>\nb<br>c <nowiki>''{{d}}</nowiki>")
        == "T\n\na\n\nbc ''{{d}}"
    )


@pytest.mark.parametrize("opening", ["<ref>", "<br ", "{{a|", "{{{a|", "[http://a ", "{|\n"])
def test_an_article_that_would_take_too_long_is_refused_at_once(opening: str) -> None:
    assert count_unclosed(opening * 7) >= 7
    with pytest.raises(DataError, match=r"'Spam' opens .* never close"):
        clean_article("Spam", opening * 20_000)
    with pytest.raises(DataError, match=r"'Long' has .* characters"):
        clean_article("Long", "a" * (MAX_ARTICLE_CHARS + 1))


def test_broken_markup_within_a_table_is_no_reason_to_refuse() -> None:
    """As in the 2006 edition of Immigration to the United States, whose cells open 1,580 fonts."""
    table = "<TABLE>" + "<TR><TD><FONT size=1>cell</TD></TR>\n" * 4000 + "</TABLE>"
    assert clean_article("T", f"a\n{table}\nb <!-- never closed") == "T\n\na\n\nb"


def test_well_formed_markup_counts_as_closed() -> None:
    assert (
        count_unclosed(
            "{{a|[[b|c]]}} <ref name='d'/><ref>[http://e f]</ref><br><BR /><li> {|\n|}\n<!-- g --> }} ]] </p>"
        )
        == 0
    )


@pytest.mark.parametrize(
    ("suffix", "pack"), [(".xml", bytes), (".xml.bz2", bz2.compress), (".gz", gzip.compress)]
)
def test_a_dump_gives_its_articles_only(tmp_path: Path, suffix: str, pack: Callable[[bytes], bytes]) -> None:
    content = NEW_HEAD + page(1, "Old", "#REDIRECT [[Мравка]]", "<ns>0</ns><redirect title='Мравка' />")
    content += page(2, "Беседа:Мравка", "hm", "<ns>1</ns>") + page(3, "Empty", "{{stub}}", "<ns>0</ns>")
    content += (
        page(4, "Мравка: насекомо", "[[Файл:a.jpg|thumb|b]]Малко [[насекомо]].[[Категория:Ц]]", "<ns>0</ns>")
        + "</mediawiki>"
    )
    path = tmp_path / f"dump{suffix}"
    path.write_bytes(pack(content.encode()))
    counts = DumpCounts()
    assert [raw.id for raw in read_raw_pages(path, counts)] == ["3", "4"]
    assert counts == DumpCounts(articles=2, redirects=1, other_namespaces=1)
    (document,) = read_dump(path)
    assert (document.id, document.title, document.source, document.language) == (
        "4",
        "Мравка: насекомо",
        "wikipedia",
        "bg",
    )
    assert document.text == "Мравка: насекомо\n\nМалко насекомо.\n"


def test_an_old_dump_that_is_cut_off_gives_the_pages_before_the_cut(tmp_path: Path) -> None:
    others = [
        "Talk:Ant",
        "User talk:Me",
        "Wikipedia:About",
        "image:A.png",
        "Template:A",
        "Category:A",
        "Portal:A",
        "Almanac:A",
        "Help:A",
    ]
    content = OLD_HEAD + "".join(page(number, title, "x") for number, title in enumerate(others))
    content += (
        page(50, "AnT", "#redirect [[Ant]]")
        + page(51, "Alien: Resurrection", "A film.")
        + page(52, "Ant", "Cut é off")
    )
    path = tmp_path / "enwik"
    for cut in ("<title>Ant</title>", "Cut \xc3"):
        path.write_bytes(
            content.encode()[: content.encode().index(cut.encode("latin-1")) + len(cut.encode("latin-1"))]
        )
        counts = DumpCounts()
        assert [(raw.id, raw.title, raw.language) for raw in read_raw_pages(path, counts)] == [
            ("51", "Alien: Resurrection", "en")
        ]
        assert counts == DumpCounts(articles=1, redirects=1, other_namespaces=len(others), truncated=True)


def test_what_cannot_be_read_is_reported_and_the_rest_is_kept(tmp_path: Path) -> None:
    bad = page(1, "Spam", "&lt;ref&gt;" * 20_000, "<ns>0</ns>")
    content = (
        NEW_HEAD
        + bad
        + page(2, "Ant", "Small.", "<ns>0</ns>")
        + page(3, "Big", os.urandom(300_000).hex(), "<ns>0</ns>")
        + "</mediawiki>"
    )
    path = tmp_path / "dump.xml.gz"
    path.write_bytes(gzip.compress(content.encode())[:-100_000])
    problems = Listed()
    assert [document.title for document in read_dump(path, problems)] == ["Ant"]  # type: ignore[arg-type]
    (first, reason), (second, end) = problems.rows
    assert (first, second) == (f"{path} page 1", str(path))
    assert "never close" in reason
    assert "breaks off" in end
    with pytest.raises(DataError, match="never close"):
        list(read_dump(path))


@pytest.mark.parametrize(
    ("content", "message"),
    [("no xml", "damaged"), ("<html></html>", "no mediawiki element"), ("", "no mediawiki element")],
)
def test_another_file_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "a.xml").write_text(content)
    with pytest.raises(DataError, match=message):
        list(read_dump(tmp_path / "a.xml"))


def test_memory_does_not_grow_with_the_dump(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tracemalloc

    monkeypatch.setattr(wikipedia, "READ_BYTES", 1 << 14)
    peaks = []
    for count in (200, 800):
        path = tmp_path / f"{count}.xml"
        path.write_text(
            NEW_HEAD
            + "".join(page(number, f"T{number}", "word " * 1000, "<ns>0</ns>") for number in range(count))
        )
        tracemalloc.start()
        assert sum(1 for _ in read_raw_pages(path)) == count
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]


def test_the_parser_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mwparserfromhell", None)
    with pytest.raises(MissingExtraError, match=r"retro-lm\[wikipedia\]"):
        clean_page(RawPage("1", "T", "x"))


@pytest.mark.network
def test_real_articles_come_out_clean() -> None:
    (path,) = catalogue.fetch("wikipedia-2016").path.glob("enwiki-latest-pages-articles1*.bz2")
    documents = {
        document.title: document.text
        for document in map(clean_page, itertools.islice(read_raw_pages(path), 12))
        if document
    }
    assert {"Anarchism", "Autism", "Alabama", "Aristotle", "Abraham Lincoln"} <= documents.keys()
    for title, text in documents.items():
        assert text.startswith(title + "\n\n")
        assert len(text) > 500
        assert not re.search(
            r"\[\[|\]\]|\{\{|\}\}|\{\||\|\}|<ref|''|^(References|External links|See also|Notes)$",
            text,
            re.MULTILINE,
        ), title
    assert (
        "Anarchism is a political philosophy that advocates self-governed societies "
        "based on voluntary institutions." in documents["Anarchism"]
    )
