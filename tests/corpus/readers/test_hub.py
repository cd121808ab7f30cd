import sys

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
