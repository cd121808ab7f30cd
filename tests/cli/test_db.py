"""retro db as a user types it."""

import shutil
from pathlib import Path

import pytest

from retro.cli.main import main
from retro.workspace import Workspace


@pytest.fixture
def place(workspace: Workspace, tmp_path: Path) -> Path:
    shutil.copytree(workspace.datastore_path, tmp_path / "work" / "datastore")
    return tmp_path / "work"


def test_a_datastore_s_life(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    note = tmp_path / "note.txt"
    note.write_text("Zebras permit anyone to use this meadow without any warranty.")

    def run(*arguments: str) -> str:
        assert main(["db", *arguments]) == 0
        return " ".join(capsys.readouterr().out.split())

    assert "version 2, 1 document added" in run("add", str(place), str(note))
    assert "note.txt" in run("search", str(place), note.read_text(), "--k", "200")
    assert "note.txt" not in run(
        "search", str(place), note.read_text(), "--k", "200", "--exclude", "note.txt"
    )
    told = run("info", str(place), "--documents")
    for expected in ("recall", "bytes a token", "note.txt", "exact", "add", "build"):
        assert expected in told
    assert "1 document deleted" in run("delete", str(place), "--id", "note.txt")
    assert "deleted ones to compact" in run("info", str(place))
    assert "version 4" in run("compact", str(place))
    assert "is sound at version 4" in run("verify", str(place / "datastore"), "--sample", "5")
    assert "note.txt" not in run("search", str(place), note.read_text(), "--k", "200")


def test_a_search_engine(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pymilvus = pytest.importorskip("pymilvus")
    address = f"milvus:{tmp_path / 'milvus.db'}"

    def run(*arguments: str, code: int = 0) -> str:
        assert main(["db", *arguments]) == code
        output = capsys.readouterr()
        return " ".join((output.err if code else output.out).split())

    here = run("search", str(place), "the licence permits")
    assert f"is searched by {address} (retro_" in run("engine", str(place), address)
    assert run("search", str(place), "the licence permits") == here
    assert "recall@10 1.000" in run("info", str(place))
    assert "recall@10 1.000" in run("engine", str(place))  # brought up to date
    client = pymilvus.MilvusClient(str(tmp_path / "milvus.db"))
    client.drop_collection(client.list_collections()[0])
    told = run("search", str(place), "the licence permits", code=1)
    assert "does not exist; expected version 1 of" in told
    assert f"run: retro db engine {place / 'datastore'}" in told
    assert "own indexes" in run("engine", str(place), "local")
    assert run("search", str(place), "the licence permits") == here


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["engine", "{place}"], "is searched by this machine's own indexes; expected an engine"),
        (["engine", "{place}", "elastic:x"], "'elastic:x' is no search engine; expected local, or one of"),
        (["delete", "{place}", "--id", "nobody"], "no document of the datastore has the id 'nobody'"),
        (["delete", "{place}"], "nothing was named to delete"),
        (["search", "{place}", "words", "--k", "0"], "k is 0"),
        (
            ["search", "{place}", "words", "--source", "elsewhere"],
            "has the source 'elsewhere'; expected one of",
        ),
        (["search", "{place}", ""], "the text to search for is empty"),
        (["verify", "{place}", "--sample", "-1"], "sample is -1"),
        (["add", "{place}", "{place}/nothing.txt"], "nothing.txt"),
        (["info", "{place}/nothing"], "is no finished datastore"),
    ],
)
def test_bad_input_is_one_line(
    place: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str
) -> None:
    assert main(["db", *(argument.format(place=place) for argument in arguments)]) == 1
    error = capsys.readouterr().err
    assert expected in error
    assert error.count("\n") == 1


def test_an_empty_datastore_says_so(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    datastore = Workspace(place).datastore()
    assert main(["db", "search", str(place), " "]) == 0
    assert "nothing was found among the" in capsys.readouterr().out
    datastore.delete(
        sources=[row[0] for row in datastore.ledger.rows("SELECT DISTINCT source FROM documents")]
    )
    for _ in range(2):
        assert main(["db", "search", str(place), "the licence"]) == 0
        told = capsys.readouterr().out
        assert "datastore is empty; add documents with: retro db add" in told
        assert told.count("\n") == 1
        datastore.compact()


def test_compact_says_what_stays_in_the_tokenizer(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Workspace(place).datastore().delete(
        ids=[Workspace(place).datastore().search(["licence"], 1)[0][0].document]
    )
    assert main(["db", "compact", str(place)]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "tokenizer stays as it was" in told
    assert "ingest again without the documents and build anew" in told
    assert main(["db", "compact", str(place)]) == 0  # nothing is left to remove, and nothing to say
    assert "tokenizer" not in capsys.readouterr().out
