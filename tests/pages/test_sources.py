"""From a neighbour to its document's file, to the list of sources, and back."""

from pathlib import Path

import pytest

from retro import catalogue
from retro.pages.sources import SourceFiles, corpus_words, origin_html, source_id, sources_html
from retro.retrieval.search import Place
from retro.retrieval.shared_runs import ColouredNeighbour, Span
from retro.workspace import Workspace


def neighbour(document: str = "a/b.txt", text: str = "one two three-four five") -> ColouredNeighbour:
    return ColouredNeighbour(document, "A & B", "notes", 0.5, [Span(text, None)], [], Place(2, 9, 128, 192))


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    folder = tmp_path / "notes"
    (folder / "a").mkdir(parents=True)
    for name in ("a/b.txt", "records.jsonl", "same.txt", "same.md", "stem.LICENSE"):
        (folder / name).write_text("x")
    (tmp_path / "secret.txt").write_text("x")
    return folder


def test_a_document_is_found_in_its_source_alone(notes: Path) -> None:
    files = SourceFiles([("notes", notes), ("records.jsonl", notes / "records.jsonl")])
    assert files.find("notes", "a/b.txt") == notes / "a/b.txt"
    assert files.find("notes", "records.jsonl:17") == notes / "records.jsonl"
    assert files.find("elsewhere", "records.jsonl:3") == notes / "records.jsonl"
    assert files.find("notes", "stem") == notes / "stem.LICENSE"
    assert files.find("notes", "same") is None  # two files are called so
    assert files.find("other", "a/b.txt") is None
    assert files.find("notes", "../secret.txt") is None
    assert files.find("notes", "../secret") is None
    for odd in ("", ".", "..", "/nowhere", "x" * 5000, "a\0b", "**", "[", "https://a.b/c?d"):
        assert files.find("notes", odd) is None


def test_sources_are_those_that_the_text_was_read_from(workspace: Workspace, text_folder: Path) -> None:
    files = SourceFiles.of(workspace.text_path)
    row = workspace.store("test").documents[0]
    assert files.find(row["source"], row["id"]) == text_folder.resolve() / row["id"]
    assert SourceFiles.of(None, "nowhere", str(text_folder)).roots == [
        (text_folder.resolve().name, text_folder.resolve())
    ]
    stores = workspace.corpus().stores().values()
    documents = sum(len(store) for store in stores)
    assert corpus_words(workspace).startswith(f"{text_folder}: {documents:,} documents, ")


def test_a_catalogue_entry_is_where_it_was_fetched_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETRO_CACHE_DIR", str(tmp_path))
    assert SourceFiles.of(None, "licences").roots == []
    catalogue.folder_of("licences").mkdir(parents=True)
    (catalogue.folder_of("licences") / "mit.LICENSE").write_text("x")
    file = SourceFiles.of(None, "licences").find("licences", "mit")
    assert file is not None
    assert file.name == "mit.LICENSE"


def test_the_origin_tells_the_place_and_leads_to_it(notes: Path) -> None:
    html = origin_html(neighbour(), SourceFiles([("notes", notes)]), listed=True)
    assert "chunk 3 of 9, tokens 129 to 192" in html
    assert f'href="#{source_id("notes", "a/b.txt")}">A &amp; B</a>' in html
    # The words at the ends may be cut, so the browser looks for those between.
    assert f'href="{(notes / "a/b.txt").as_uri()}#:~:text=two%20three%2Dfour"' in html
    assert "href" not in origin_html(neighbour())


def test_the_list_leads_back_to_every_place() -> None:
    shown = [("n1", "first", neighbour()), ("n2", "second", neighbour()), ("n3", "third", neighbour("c"))]
    html = sources_html(shown)
    assert html.count("<li ") == 2
    assert f'id="{source_id("notes", "a/b.txt")}"' in html
    assert '<a href="#n1">first</a>, <a href="#n2">second</a>' in html
    assert sources_html([]) == ""
