import sys
from pathlib import Path

import pytest

from retro.corpus.documents import Document
from retro.corpus.readers import FieldMap, Problems, read
from retro.corpus.readers.hub import documents_of_rows, parse_hub_name
from retro.errors import DataError, MissingExtraError


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("hf:imdb", ("imdb", None, "train")),
        ("hf:owner/name", ("owner/name", None, "train")),
        ("hf:owner/name@valid[:10]", ("owner/name", None, "valid[:10]")),
        ("hf:owner/name/20220301.en@test", ("owner/name", "20220301.en", "test")),
        ("hf:/wikitext/wikitext-2-raw-v1", ("wikitext", "wikitext-2-raw-v1", "train")),
    ],
)
def test_a_name_holds_config_and_split(source: str, expected: tuple[str, str | None, str]) -> None:
    assert parse_hub_name(source) == expected


@pytest.mark.parametrize("source", ["hf:", "hf:@train", "hf:owner/name/"])
def test_a_name_that_names_nothing_is_refused(source: str) -> None:
    with pytest.raises(DataError, match="names no dataset; expected hf:OWNER/NAME"):
        parse_hub_name(source)


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=r"datasets is not installed.*retro-lm\[hf\]"):
        read("hf:owner/name")


def test_rows_become_documents() -> None:
    problems = Problems()
    rows = [{"body": "one", "id": 3}, {"body": ""}, {"body": "three"}]
    documents = list(documents_of_rows(rows, "hf:o/n", "o/n", FieldMap(text="body"), problems))
    assert documents == [Document("3", "one", "o/n"), Document("3", "three", "o/n")]
    assert problems.rows[0][0] == "hf:o/n row 2"


@pytest.fixture
def dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that the real library opens by the same `OWNER/NAME` as it would on the hub."""
    pytest.importorskip("datasets")
    folder = tmp_path / "owner" / "name"
    folder.mkdir(parents=True)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return folder


def test_the_real_library_streams_the_split_that_is_named(dataset: Path) -> None:
    (dataset / "train.jsonl").write_text(
        '{"text": "one", "id": 7, "title": "T"}\n{"text": "two", "id": 8, "title": "U"}\n'
    )
    (dataset / "test.jsonl").write_text('{"text": "three", "id": 9, "title": "V"}\n')
    assert list(read("hf:owner/name")) == [
        Document("7", "one", "owner/name", "T"),
        Document("8", "two", "owner/name", "U"),
    ]
    assert [document.id for document in read("hf:owner/name/default@test")] == ["9"]
    for source, reason in (
        ("hf:owner/name@moon", "Bad split: moon"),
        ("hf:owner/name/moon", "'moon' not found"),
        ("hf:owner/moon", "reach"),
    ):
        with pytest.raises(DataError, match=reason):
            read(source)


def test_rows_without_text_and_a_broken_file_are_told(dataset: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pytest.importorskip("pyarrow").table({"body": ["one", None, "three"]})
    parquet.write_table(table, dataset / "train.parquet")
    problems = Problems()
    assert [document.text for document in read("hf:owner/name", FieldMap(text="body"), problems)] == [
        "one",
        "three",
    ]
    assert problems.rows == [
        ("hf:owner/name row 2", "has no text; expected an object with a string called body")
    ]
    (dataset / "train.parquet").unlink()
    (dataset / "train.jsonl").write_bytes(b'{"body": "caf\xe9"}\n')
    with pytest.raises(DataError, match=r"row 1 or one soon after it cannot be read .*utf-8"):
        list(read("hf:owner/name", FieldMap(text="body")))
