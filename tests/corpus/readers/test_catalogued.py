"""The catalogue's corpora, on small files in the format of their packages."""

import gzip
import json
import zipfile
from collections import Counter
from pathlib import Path

import pytest

from retro import catalogue
from retro.corpus.readers import READERS, read
from retro.corpus.readers.api_prose import documents_of_service, latest_services, to_text
from retro.corpus.readers.catalogued import (
    PARLIAMENTS,
    documents_of_bible,
    documents_of_lambada,
    documents_of_news,
    documents_of_reviews,
    documents_of_sotu,
    documents_of_speeches,
    documents_of_sphinx,
    documents_of_wikitext,
)
from retro.corpus.readers.squad import documents_of_squad, records_of_squad
from retro.errors import ArtifactError, DataError
from retro.questions.examples import read_questions

BIBLE = '''
import pythonbible_that_does_not_exist
bible = Bible(
    Version.SOME,
    """
First verse. Second verse.
Of chapter two.
A king's \\"word\\".
""",
    {1001001: 1, 1001002: 14, 1002001: 28, 2001001: 44},
    {1001001: 14, 1001002: 28, 1002001: 44, 2001001: 61},
    {Book.GENESIS: {1: 2, 2: 1}, Book.KINGS_1: {1: 1}},
    {Book.GENESIS: "Genesis", Book.KINGS_1: "1 Kings"},
    {Book.GENESIS: "The First Book", Book.KINGS_1: "The Kings"},
    False,
)
'''


def test_every_corpus_has_a_reader_and_says_when_it_was_not_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETRO_CACHE_DIR", str(tmp_path))
    for name, entry in catalogue.ENTRIES.items():
        if entry.kind in ("corpus", "evaluation", "questions"):
            with pytest.raises(ArtifactError, match=f"run: retro fetch {name}"):
                list(READERS[name]())
    assert set(catalogue.LOCAL) <= set(READERS)


def test_a_bible_gives_its_chapters(tmp_path: Path) -> None:
    (tmp_path / "bible.py").write_text(BIBLE)
    documents = list(documents_of_bible(tmp_path / "bible.py", "kjv"))
    assert [(document.id, document.title, document.text) for document in documents] == [
        ("genesis-1", "Genesis 1", "First verse. Second verse.\n"),
        ("genesis-2", "Genesis 2", "Of chapter two.\n"),
        ("1-kings-1", "1 Kings 1", 'A king\'s "word".\n'),
    ]
    assert {document.source for document in documents} == {"kjv"}


def test_another_python_file_is_no_bible(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text("bible = None")
    with pytest.raises(DataError, match="assigns no Bible"):
        list(documents_of_bible(tmp_path / "other.py", "kjv"))


def test_news_without_text_is_left_out(tmp_path: Path) -> None:
    rows = "article_id,publish_date,article_source_link,title,subtitle,text\n"
    rows += '1,2017/2/7,http://a, Title ,,"One, two.\nThree."\n2,,,Empty,, \n'
    with zipfile.ZipFile(tmp_path / "n.zip", "w") as archive:
        archive.writestr("NewsArticles.csv", rows)
    [document] = documents_of_news(tmp_path / "n.zip")
    assert (document.id, document.title, document.text, document.source) == (
        "1",
        "Title",
        "One, two.\nThree.\n",
        "news",
    )


def test_speeches_say_who_spoke_where_and_when(tmp_path: Path) -> None:
    rows = "date,speaker,party,text,parlspeech_row\n"
    rows += '2000-01-28,Ulla Jelpke,PDS/LINKE,"Frau Präsidentin ! ""Ja"" , gut .",7\n'
    rows += "2001-02-03,Präsident,NA,Danke .,8\n2001-02-03,Präsident,other, Gut .,10\n"
    rows += "2001-02-03,Präsident,NA, ,9\n"
    with zipfile.ZipFile(tmp_path / "s.zip", "w") as archive:
        archive.writestr("de.csv", rows)
    documents = list(documents_of_speeches(tmp_path / "s.zip", "bundestag"))
    assert [(document.id, document.title, document.text) for document in documents] == [
        ("7", "Ulla Jelpke (PDS/LINKE), Bundestag, 2000-01-28", 'Frau Präsidentin ! "Ja" , gut .\n'),
        ("8", "Präsident, Bundestag, 2001-02-03", "Danke .\n"),
        ("10", "Präsident, Bundestag, 2001-02-03", "Gut .\n"),
    ]
    assert {(document.source, document.language) for document in documents} == {("bundestag", "de")}


@pytest.mark.slow
@pytest.mark.network
def test_all_speeches_are_there() -> None:
    for name, (language, _) in PARLIAMENTS.items():
        documents = list(read(name))
        assert len({document.id for document in documents}) == 1_000
        assert {document.language for document in documents} == {language}


def test_reviews_are_numbered_by_site(tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text(
        'text,label,source\n"Good.<br /><br />Very.",1,imdb\nbad .,0,rotten_tomatoes\nFine,1,imdb\n'
    )
    documents = list(documents_of_reviews(tmp_path / "r.csv"))
    assert [document.id for document in documents] == ["imdb-1", "rotten_tomatoes-1", "imdb-2"]
    assert (documents[0].text, documents[1].title, documents[0].source) == (
        "Good.\n\nVery.\n",
        "rotten tomatoes review 1",
        "reviews",
    )


def test_addresses_take_their_titles_from_the_table(tmp_path: Path) -> None:
    (tmp_path / "speeches").mkdir()
    (tmp_path / "speeches" / "1790-Washington-1.txt").write_text("Fellow citizens\n\n")
    (tmp_path / "speeches" / "1973-Nixon-2.txt").write_text("To the Congress")
    table = "fileid,date,president_full,is_sotu\n1790-Washington-1,1790-01-08,George Washington,True\n"
    table += "1973-Nixon-2,1973-02-15,Richard Nixon,False\n"
    (tmp_path / "metadata.csv").write_text(table)
    first, second = documents_of_sotu(tmp_path)
    assert (first.id, first.text, first.source) == ("1790-Washington-1", "Fellow citizens\n", "sotu")
    assert (first.title, second.title) == (
        "State of the Union, George Washington, 1790-01-08",
        "Message to Congress, Richard Nixon, 1973-02-15",
    )


def test_a_manual_s_pages_are_called_by_their_paths(tmp_path: Path) -> None:
    pages = {
        "index.txt": ".. _index:\n\n====\nDjango documentation\n====\n\nAll.\n\nMore\n====\n",
        "topics/db/models.txt": "Models\n======\n\nA model – of data.\n\n\n",
        "requirements.txt": "Sphinx>=3.1.0\npyenchant\n",
    }
    for name, text in pages.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    documents = list(documents_of_sphinx(tmp_path, "django-docs-5.2"))
    assert [(document.id, document.title, document.source) for document in documents] == [
        ("index.txt", "Django documentation", "django-docs-5.2"),
        ("topics/db/models.txt", "Models", "django-docs-5.2"),
    ]
    assert documents[1].text == "Models\n======\n\nA model – of data.\n"


@pytest.mark.slow
@pytest.mark.network
def test_versions_of_django_s_manual_can_be_compared() -> None:
    pages: dict[str, dict[str, str]] = {}
    for version in ("3.2", "4.2", "5.2"):
        documents = list(read(f"django-docs-{version}"))
        pages[version] = {document.id: document.text for document in documents}
        titles = {document.id: document.title for document in documents}
        assert titles["topics/db/models.txt"] == "Models"
        assert titles["index.txt"] == "Django documentation"
        assert catalogue.fetched(f"django-docs-{version}").file("LICENSE").exists()
    assert [len(found) for found in pages.values()] == [537, 587, 621]
    assert len(pages["3.2"].keys() & pages["5.2"].keys()) > 500


def test_api_prose_follows_an_operation_through_its_shapes(tmp_path: Path) -> None:
    service = {
        "metadata": {"serviceFullName": "Some Service"},
        "documentation": "<p>An <b>overview</b>.</p><p>More &amp; more.</p>",
        "operations": {
            "Get": {
                "documentation": "<p>Gets it.</p>",
                "input": {"shape": "GetRequest"},
                "errors": [{"shape": "Lost"}],
            },
            "Put": {"input": {"shape": "GetRequest"}},
            "Set": {"documentation": "Sets it.", "input": {"shape": "Tree"}},
        },
        "shapes": {
            "GetRequest": {
                "members": {
                    "Name": {"shape": "Text", "documentation": "<p>Its name.</p>"},
                    "Tree": {"shape": "Tree"},
                }
            },
            "Text": {"type": "string"},
            "Tree": {"documentation": "A tree.", "type": "list", "member": {"shape": "Leaf"}},
            "Leaf": {"documentation": "A leaf.", "members": {"Up": {"shape": "Tree"}}},
            "Lost": {"documentation": "Not there."},
        },
    }
    for version in ("2019-01-01", "2021-01-01"):
        file = tmp_path / "some" / version / "service-2.json.gz"
        file.parent.mkdir(parents=True)
        file.write_bytes(gzip.compress(json.dumps(service).encode()))
    assert list(latest_services(tmp_path)) == [("some", file)]
    found = [(document.id, document.title, document.text) for document in documents_of_service(file, "some")]
    assert found == [
        ("some", "Some Service", "Some Service\n\nAn overview.\nMore & more.\n"),
        (
            "some/Get",
            "Some Service: Get",
            "Get\n\nGets it.\n\nName: Its name.\n\nTree: A tree.\n\nLeaf: A leaf.\n\nLost: Not there.\n",
        ),
        ("some/Set", "Some Service: Set", "Set\n\nSets it.\n"),
    ]


def test_markup_becomes_lines() -> None:
    assert (
        to_text("<p>Use  <code>x</code>,\nthen:</p> <ul><li><p>a</p></li><li>b &lt; c</li></ul>")
        == "Use x, then:\na\nb < c"
    )


WIKITEXT = (
    " \n = First @-@ one = \n \n Text . \n \n = = Part = = \n \n GP \n = Games Played ; W = \n Wins \n"
    " where x \n = 1 = \n \n holds . \n \n = 2 = \n as well . \n \n = Ö = \n \n More . \n \n"
)


def test_wikitext_is_cut_at_titles_alone_and_kept_raw() -> None:
    documents = list(documents_of_wikitext(WIKITEXT, "valid"))
    assert [(document.id, document.title, document.split) for document in documents] == [
        ("valid-0", "First @-@ one", "valid"),
        ("valid-1", "Ö", "valid"),
    ]
    assert " \n" + "".join(document.text for document in documents) == WIKITEXT


def test_lambada_ends_with_the_word_to_guess(tmp_path: Path) -> None:
    record = {
        "idx": 7,
        "request": {"context": "They do not care about", "continuation": " signs"},
        "label": ["signs"],
    }
    (tmp_path / "requests.jsonl.gz").write_bytes(gzip.compress(json.dumps(record).encode()))
    (document,) = documents_of_lambada(tmp_path / "requests.jsonl.gz")
    assert (document.id, document.text, document.split) == ("7", "They do not care about signs", "test")


SQUAD = {
    "version": "1.1",
    "data": [
        {
            "title": "Super_Bowl_%22L%22",
            "paragraphs": [
                {
                    "context": " It was played\nin 2016. ",
                    "qas": [
                        {
                            "id": "1",
                            "question": "When?",
                            "answers": [
                                {"text": "2016", "answer_start": 15},
                                {"text": "in 2016", "answer_start": 12},
                                {"text": "2016", "answer_start": 15},
                            ],
                        },
                        {"id": "2", "question": "Where?", "answers": []},
                    ],
                },
                {"context": "A second paragraph.", "qas": []},
            ],
        },
        {"title": "Empty", "paragraphs": [{"context": " ", "qas": []}]},
    ],
}


def test_squad_s_paragraphs_are_documents_and_its_questions_records() -> None:
    documents = list(documents_of_squad(SQUAD, "valid"))
    assert [(document.id, document.title, document.text, document.split) for document in documents] == [
        ("Super_Bowl_%22L%22/0", 'Super Bowl "L"', "It was played\nin 2016.\n", "valid"),
        ("Super_Bowl_%22L%22/1", 'Super Bowl "L"', "A second paragraph.\n", "valid"),
    ]
    passage = {"title": 'Super Bowl "L"', "text": " It was played\nin 2016. "}
    assert list(records_of_squad(SQUAD)) == [
        {"question": "When?", "answers": ["2016", "in 2016"], "ctxs": [passage]},
        {"question": "Where?", "answers": [], "ctxs": [passage]},
    ]


@pytest.mark.slow
@pytest.mark.network
def test_all_of_squad_is_there() -> None:
    documents = list(read("squad"))
    splits = Counter(document.split for document in documents)
    assert splits == {"train": 18_896, "valid": 2_067}
    assert len({document.id for document in documents}) == 20_963
    assert len({document.text for document in documents}) == 20_958
    assert [len(read_questions(f"squad@{split}").with_answers()) for split in splits] == [87_599, 10_570]
