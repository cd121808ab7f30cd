"""Inputs that the fuzzer found, each of which once ended in a traceback, a hang or a wait without end."""

import io
import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from retro.config import ModelConfig
from retro.config.as_json import from_dict, to_dict
from retro.corpus import readers
from retro.errors import ArtifactError, ConfigError, DataError, RetroError
from retro.retrieval.datastore.ledger import FILE as LEDGER
from retro.retrieval.index import Entries, make_index, open_index
from tests.fuzz.arguments import BASES
from tests.fuzz.mutations import DEEP_TEXT
from tests.fuzz.test_artifacts import TARGETS, use_datastore, used
from tests.fuzz.test_commands import Place, expect_one_line, place, run
from tests.fuzz.watch import watched
from tests.workspaces import small_run

__all__ = ["place"]


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


HEADER = npy(np.zeros(3, dtype=np.int64))
DEEP = f'{{"format": 1, "kind": {DEEP_TEXT}}}'.encode()
SPOILED = [
    ("text", "text/000000.jsonl.zst", b"\x28\xb5\x2f\xfd\x00H\xfdA\x00V/\x81"),
    ("tokens", "tokens/test/documents.arrow", b"ARROW1\0\0" + DEEP),
    ("tokens", "tokens/test/documents.arrow", b""),
    ("tokens", "tokens/test/manifest.json", b"[]"),
    ("tokens", "tokens/test/manifest.json", b'{"kind": "tokens", "format": 1}'),
    ("tokens", "tokens/test/ends.npy", HEADER.replace(b"}", b" ", 1)),
    ("tokens", "tokens/test/ends.npy", HEADER.replace(b"(3,)", b"(3}}")),
    ("encoded", "encoded/000000.npy", npy(np.zeros(()))),
    ("neighbours", "neighbours/test/neighbours.npy", npy(np.zeros((2, 2)))),
    ("neighbours", "neighbours/test/distances.npy", npy(np.zeros((156, 4), dtype="<M8[s]"))),
    ("neighbours", "neighbours/test/distances.npy", HEADER.replace(b"{", b"\x80", 1)),
    ("run", "runs/retro/manifest.json", b"{"),
    ("run", "runs/retro/run.json", DEEP),
    ("run", "runs/retro/run.json", b'{"format": 1, "kind": "retro"}'),
    ("run", "runs/retro/run.json", b'{"format": 1, "kind": [], "model": {}}'),
    ("metrics", "runs/retro/metrics.jsonl", b'{"loss": 1}\n'),
    ("metrics", "runs/retro/metrics.jsonl", b'{"step": 1, "tokens": "x", "loss": 1}\n'),
    ("metrics", "runs/retro/metrics.jsonl", b"\xff\n"),
    ("evaluation", "evaluations/retro/test/results.json", b"{}"),
    ("pinned neighbours", "evaluations/retro/test/neighbours/pinned.json", b"null"),
    ("pinned neighbours", "evaluations/retro/test/neighbours/pinned.json", b"oull"),
    (
        "pinned neighbours",
        "evaluations/retro/test/neighbours/pinned.json",
        b'{"fingerprint": "x", "version": 1, "live": [155, null, 155, 155]}',
    ),
    (
        "pinned neighbours",
        "evaluations/retro/test/neighbours/pinned.json",
        b'{"fingerprint": "x", "version": 1, "live": [0, 0]}',
    ),
    ("datastore", "datastore/segments/000000/index/removed.npy", npy(np.zeros(()))),
    ("datastore", "datastore/segments/000000/documents.npy", npy(np.zeros(3))),
    ("datastore", "datastore/segments/000000/index/index.json", b'{"kind": "exact", "num_keys": null}'),
    ("tokenizer", "tokenizer/tokenizer.model", b""),
]
"""The target of `test_artifacts`, the file, and what stands in it."""


@pytest.mark.parametrize(("target", "name", "content"), SPOILED)
def test_files(finished: Path, tmp_path: Path, target: str, name: str, content: bytes) -> None:
    work = Path(shutil.copytree(finished, tmp_path / "work"))
    (work / name).unlink()
    (work / name).write_bytes(content)
    with watched("found"), pytest.raises(ArtifactError, match=r"; "):
        used(TARGETS[target][2], work)


@pytest.mark.parametrize(
    ("kind", "name", "content"),
    [
        (
            "HNSW8",
            "index.json",
            f'{{"kind": "HNSW8", "num_keys": 40, "effort": {2**63}, "report": null}}'.encode(),
        ),
        ("HNSW8", "index.json", b'{"kind": "HNSW8", "num_keys": 40, "effort": [], "report": null}'),
        ("bm25", "vocabulary.npy", npy(np.zeros((1, 3), dtype=np.int64))),
        ("bm25", "params.index.json", b"{}"),
    ],
)
def test_indexes(tmp_path: Path, kind: str, name: str, content: bytes) -> None:
    keys = np.random.default_rng(0).standard_normal((40, 8)).astype(np.float16)
    index = make_index(kind, 8, len(keys))
    index.add(Entries(keys, [np.arange(3)] * 40))
    index.save(tmp_path)
    (tmp_path / name).write_bytes(content)
    with watched("found"), pytest.raises(ArtifactError, match="is not a readable index"):
        open_index(tmp_path, keys)


@pytest.mark.parametrize(("kind", "name"), [("HNSW8", "graph.faiss"), ("IVF4,Flat", "index.faiss")])
def test_an_index_of_another_width(tmp_path: Path, kind: str, name: str) -> None:
    for width, folder in ((8, tmp_path / "index"), (16, tmp_path / "other")):
        keys = np.random.default_rng(0).standard_normal((200, width)).astype(np.float16)
        index = make_index(kind, width, len(keys))
        index.add(Entries(keys, [np.arange(3)] * 200))
        folder.mkdir()
        index.save(folder)
    (tmp_path / "index" / name).write_bytes((tmp_path / "other" / name).read_bytes())
    with watched("found"), pytest.raises(ArtifactError, match="is not a readable index"):
        open_index(tmp_path / "index", np.zeros((200, 8), dtype=np.float16))


def test_a_lone_exclamation_mark_in_an_ignore_file(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("*.txt\n!")
    (tmp_path / "a.py").write_text("print(1)\n")
    (tmp_path / "b.txt").write_text("ignored\n")
    with watched("found"):
        assert [document.id for document in readers.read(str(tmp_path))] == [".gitignore", "a.py"]


def test_half_a_character_of_utf16_at_the_end_of_a_table(tmp_path: Path) -> None:
    (tmp_path / "table.tsv").write_bytes(b'\xff\xfeid\ttext\ttitle\n1\t"first\t ""quote')
    with watched("found"), pytest.raises(DataError, match="expected the names of the columns"):
        list(readers.read(str(tmp_path / "table.tsv")))


def test_a_folder_without_a_name_of_its_own(place: Place) -> None:
    expect_one_line(place, ["build", "WORK", "--embedder", "ENCODER", ""])


def test_building_anew_what_cannot_be_built_removes_nothing(place: Place) -> None:
    before = place.state()
    expect_one_line(place, ["build", "WORK", "--embedder", "ENCODER", "--index", "[bold]", "--redo"])
    assert place.state() == before


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE segments SET report = '7'",
        "UPDATE segments SET files = '['",
        "UPDATE facts SET value = 'null' WHERE name = 'config'",
        "UPDATE versions SET documents = 'x'",
        # Documents that the newest version does not have: a search asked for the next version, for ever.
        "UPDATE documents SET added = 99",
        "UPDATE documents SET num_tokens = 'nan'",
        "UPDATE segments SET files = '{\"\": null}'",
    ],
)
def test_ledgers(finished: Path, tmp_path: Path, change: str) -> None:
    folder = Path(shutil.copytree(finished / "datastore", tmp_path / "datastore"))
    connection = sqlite3.connect(folder / LEDGER)
    connection.execute(change)
    connection.commit()
    connection.close()
    with watched("found"), pytest.raises(RetroError):
        use_datastore(folder)


@pytest.mark.parametrize(
    "change", [{"num_layers": 10**30, "retrieval": {}}, {"retrieval": {"cross_attention_layers": ["x"]}}, 7]
)
def test_configs(change: object) -> None:
    values = to_dict(small_run("an embedder").model)
    changed = {**values, **change} if isinstance(change, dict) else change
    with watched("found"), pytest.raises(ConfigError):
        from_dict(ModelConfig, changed)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["hf:..", "hf:.", "hf:../.."])
def test_dots_are_no_name_of_the_hub(name: str) -> None:
    """They were taken for folders, and everything below them was listed."""
    with watched("found"), pytest.raises(DataError, match="names no dataset"):
        readers.read(name)


@pytest.mark.parametrize(
    ("command", "more"),
    [
        ("db verify", "--seed -1"),
        ("db verify", "--sample -1"),
        ("train", "--seed 99999999999999999999999"),
        ("train", "--beta1 1.5"),
        ("train", "--weight-decay -1"),
        ("train", "--clip-norm nan"),
        ("study", "--minutes inf"),
        ("study", "--minutes 1e308"),
        # Bytes of a command line that are no UTF-8, as Python spells them.
        ("db delete", "--id \udcff"),
        ("db delete", "--source \udcff"),
        ("db delete", "--title \udcff"),
        ("db search", "--source \udcff"),
        ("db search", "--exclude \udcff"),
        ("build", "--index \udcff"),
        ("knn", "--index \udcff"),
        ("train", "--name \udcff"),
        ("train", "--sample-prompt \udcff"),
        ("evaluate", "--on \udcff"),
        ("sample", "--exclude \udcff"),
        ("sample", "--sources \udcff"),
        ("sample", "--stop \udcff"),
        ("sample", "--passages \udcff"),
    ],
)
def test_commands(place: Place, command: str, more: str) -> None:
    words = [*command.split(), *BASES[command].split(), *more.split()]
    expect_one_line(place, words)
    assert run(place.fill(words))[0] == 1
    place.restore()


@pytest.mark.parametrize(
    "words",
    [
        ["db", "search", "WORK", "a\udcff"],
        ["sample", "WORK", "a\udcff", "--max-tokens", "3"],
        ["answer", "WORK", "retro", "a\udcff", "--max-tokens", "2"],
        ["tokenizer", "inspect", "WORK", "a\udcff"],
    ],
)
def test_a_text_that_is_not_utf8(place: Place, words: list[str]) -> None:
    expect_one_line(place, words)
    code, error = run(place.fill(words))
    assert code == 1
    assert "character 2 is half a surrogate pair; expected text that UTF-8 can hold" in error


def test_a_place_that_is_not_utf8(place: Place) -> None:
    """Where nothing forbids it, it is used, and printed with an escape."""
    odd = f"{place.names['OUT']}/\udcff"
    ingested = ["ingest", *BASES["ingest"].split(), "--out", odd]
    built = ["build", odd, *BASES["build"].split()[1:]]
    page = [*BASES["sample"].split(), "--html", f"{odd}.html"]
    try:
        for words in (
            ingested,
            built,
            ["db", "info", odd],
            ["doctor", "--work", odd],
            ["sample", *page],
            ["inspect", "WORK", "retro", "--out", f"{odd}/page.html"],
        ):
            code, error = run(place.fill(words))
            assert code == 0, (words, error)
        code, error = run(place.fill(["train", odd, *BASES["train"].split()[1:]]))
        assert code == 1
        assert "is not UTF-8; expected a path that is" in error
    finally:
        place.restore()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["ingest", "SOURCE", "--out", "OUT", "--vocab-size", str(1 << 31)], "expected less than 2^31"),
        (["ingest", "SOURCE", "--out", "OUT", "--vocab-size", "9" * 23], "expected less than 2^63"),
        (["train", "WORK", "--num-steps", "9" * 23], "expected less than 2^63"),
    ],
)
def test_a_number_that_no_library_takes(place: Place, words: list[str], said: str) -> None:
    expect_one_line(place, words)
    code, error = run(place.fill(words))
    assert code == 1
    assert said in error


@pytest.mark.usefixtures("small_models")
@pytest.mark.parametrize("command", [command for command in BASES if not BASES[command].count("no-")])
def test_what_is_drawn_begins_with_a_call_that_works(place: Place, command: str) -> None:
    code, error = run(place.fill([*command.split(), *BASES[command].split()]))
    place.restore()
    assert code == 0, error
