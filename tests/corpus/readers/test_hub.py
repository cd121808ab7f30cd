import os
import sys
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
from huggingface_hub.errors import HfHubHTTPError

from retro.config import CorpusConfig
from retro.corpus.documents import Document
from retro.corpus.folder import CorpusFolder
from retro.corpus.ingest import ingest
from retro.corpus.readers import FieldMap, Problems, read
from retro.corpus.readers.hub import documents_of_rows, parse_hub_name
from retro.corpus.readers.sources import fingerprint_of
from retro.corpus.tokens import Corpus
from retro.errors import ArtifactError, DataError, MissingExtraError
from retro.stages.executor import LocalExecutor


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


class Hub:
    """In place of the hub's API: a dataset's newest commit, or the error of a missing connection."""

    def __init__(self, answer: str | Exception) -> None:
        self.answer = answer
        self.asked: list[str] = []

    def __call__(self) -> "Hub":
        return self

    def dataset_info(self, name: str, timeout: float) -> SimpleNamespace:
        assert 0.0 < timeout <= 60.0  # a hub that does not answer must not hold anybody up for long
        self.asked.append(name)
        if isinstance(self.answer, Exception):
            raise self.answer
        return SimpleNamespace(sha=self.answer)


def fingerprint_with(answer: str | Exception, monkeypatch: pytest.MonkeyPatch, recorded: str = "") -> str:
    hub = Hub(answer)
    monkeypatch.setattr(huggingface_hub, "HfApi", hub)
    fingerprint = fingerprint_of("hf:owner/name/config@test", recorded)
    assert hub.asked == ["owner/name"]
    return fingerprint


def test_another_revision_is_another_source(monkeypatch: pytest.MonkeyPatch) -> None:
    first = fingerprint_with("a1b2", monkeypatch)
    assert fingerprint_with("a1b2", monkeypatch) == first
    assert fingerprint_with("c3d4", monkeypatch) != first


# What the HTTP library below raises without a connection; which library that is depends on the hub's version.
NO_CONNECTION = HfHubHTTPError.__bases__[0]("no connection")


@pytest.mark.parametrize("error", [OSError("offline"), NO_CONNECTION], ids=["offline", "no connection"])
def test_offline_the_record_counts_then_the_cache_then_the_name(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    by_name = fingerprint_with(error, monkeypatch)
    assert by_name == fingerprint_with(error, monkeypatch)
    assert fingerprint_with(error, monkeypatch, recorded="as it was") == "as it was"
    downloaded = tmp_path / "datasets--owner--name" / "refs" / "main"
    downloaded.parent.mkdir(parents=True)
    downloaded.write_text("a1b2")
    assert fingerprint_with(error, monkeypatch) == fingerprint_with("a1b2", monkeypatch) != by_name


def test_the_real_library_offline_neither_hangs_nor_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    assert fingerprint_of("hf:owner/name") == fingerprint_of("hf:owner/name")
    assert fingerprint_of("hf:owner/name", "as it was") == "as it was"


def test_a_local_dataset_is_known_by_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library opens a folder of that name instead of the hub's dataset."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "owner" / "name" / "train.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text('{"text": "one"}\n')
    first = fingerprint_of("hf:owner/name")
    assert fingerprint_of("hf:owner/name", "as it was") == first
    file.write_text('{"text": "one"}\n{"text": "two"}\n')
    second = fingerprint_of("hf:owner/name")
    os.utime(file, (1, 1))
    third = fingerprint_of("hf:owner/name")
    assert len({first, second, third}) == 3


def test_a_corpus_of_the_hub_is_opened_offline_and_refused_at_another_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"text": f"some words and the number {number}"} for number in range(9)]
    library = SimpleNamespace(load_dataset=lambda *_, **__: rows)
    monkeypatch.setitem(sys.modules, "datasets", library)
    folder = CorpusFolder(tmp_path / "work")
    config = CorpusConfig(vocab_size=285, valid_fraction=0.0, test_fraction=0.0)

    def ingest_with(answer: str | Exception) -> Corpus:
        monkeypatch.setattr(huggingface_hub, "HfApi", Hub(answer))
        return ingest(folder, ["hf:owner/name"], config, executor=LocalExecutor(1))

    first = ingest_with("a1b2")
    assert ingest_with(OSError("offline")).train.fingerprint == first.train.fingerprint
    with pytest.raises(ArtifactError, match=r"text was made with other .*\(hf:owner/name differ\)"):
        ingest_with("c3d4")
