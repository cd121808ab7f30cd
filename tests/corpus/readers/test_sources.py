"""What is known of a source before it is read, and where its reading is."""

import bz2
import gzip
import json
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import zstandard

from retro.config import CorpusConfig
from retro.corpus.folder import CorpusFolder
from retro.corpus.ingest import ingest
from retro.corpus.readers import Problems
from retro.corpus.readers.sources import fingerprint_of, read_raw, size_of
from retro.corpus.readers.streams import metered
from retro.stages.executor import LocalExecutor

LINES = "".join(
    json.dumps({"text": f"some words and the number {number}"}) + "\n" for number in range(20_000)
).encode()
DUMP = b"<mediawiki>" + b"".join(
    b"<page><title>T%d</title><revision><text>x</text></revision></page>" % number for number in range(999)
)
PACKINGS = {"gz": gzip.compress, "bz2": bz2.compress, "zst": zstandard.compress, "": bytes}


def position_after(source: Path) -> int:
    with metered() as meter:
        assert sum(1 for _ in read_raw(str(source), None, Problems(strict=True)))
    return meter.num_bytes


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize(
    ("name", "content"),
    [("rows.jsonl", LINES), ("table.csv", b"text\n" + b"a b c\n" * 9999), ("wiki.xml", DUMP)],
)
def test_a_file_is_read_from_the_first_byte_to_the_last(
    tmp_path: Path, packing: str, name: str, content: bytes
) -> None:
    """What is read to recognise the format is not counted; the end of a zstd file is read twice."""
    source = tmp_path / f"{name}.{packing}".rstrip(".")
    source.write_bytes(PACKINGS[packing](content))
    assert size_of(str(source)) == source.stat().st_size
    again = position_after(source) - source.stat().st_size
    assert 0 < again <= 1 << 17 if packing == "zst" else again == 0


def test_folders_tables_and_trees_are_the_sum_of_their_files(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a.txt").write_text("one " * 50_000)
    (folder / "b.md").write_text("two " * 50_000)
    (folder / "picture.png").write_bytes(bytes(10_000_000))
    size = sum((folder / name).stat().st_size for name in ("a.txt", "b.md"))
    assert size_of(str(folder)) == size
    assert position_after(folder) == size
    table = arrow.table({"text": [f"some text of the number {number}" for number in range(40_000)]})
    parquet.write_table(table, tmp_path / "table.parquet", compression="none", use_dictionary=False)
    assert position_after(tmp_path / "table.parquet") == pytest.approx(
        size_of(str(tmp_path / "table.parquet")), rel=0.01
    )
    subprocess.run(["git", "init", "--quiet", str(folder)], check=True)
    assert position_after(folder) == size_of(str(folder)) == size + 10_000_000


def test_nobody_knows_the_size_of_what_is_no_file() -> None:
    assert size_of("stdlib") == size_of("hf:owner/name") == size_of("nowhere") == 0


@pytest.mark.parametrize("known", [True, False])
def test_ingesting_tells_its_steps(
    tmp_path: Path, text_folder: Path, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    monkeypatch.setattr("retro.corpus.text.SHARD_BYTES", 3000)
    if not known:
        monkeypatch.setattr("retro.corpus.ingest.size_of", lambda _: 0)
    told: list[tuple[int, int, str, str]] = []
    ingest(
        CorpusFolder(tmp_path / "w"),
        [str(text_folder)],
        CorpusConfig(vocab_size=320),
        executor=LocalExecutor(2),
        progress=lambda done, total, step="", note="": told.append((done, total, step, note)),
    )
    size = sum(file.stat().st_size for file in text_folder.iterdir())
    reading = [(done, total) for done, total, step, _ in told if step == "Reading"]
    assert len(reading) > 3
    assert [total for _, total in reading] == [size if known else 0] * len(reading)
    assert reading == sorted(reading)
    assert reading[-1][0] == (size if known else 0)
    assert not known or 0 < reading[0][0] < size / 2
    assert told[len(reading) - 1][3] == f"40 documents, {size / 1e6:,.1f} MB"
    assert list(dict.fromkeys(step for _, _, step, _ in told[len(reading) :])) == [
        "Learning a tokenizer",
        "Cutting text into tokens",
        "Removing duplicates and contamination",
    ]


def test_another_python_changes_the_standard_library_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new build of the same version has the same files; no other source has to do with Python at all."""
    file = tmp_path / "a.txt"
    file.write_text("words")
    sources = ("stdlib", "hf:owner/name", "nowhere", str(file))
    before = [fingerprint_of(source) for source in sources]
    monkeypatch.setattr(sys, "version", f"{platform.python_version()} (main, another day) [another compiler]")
    assert [fingerprint_of(source) for source in sources] == before
    monkeypatch.setattr(platform, "python_version", lambda: "3.99.1")
    after = [fingerprint_of(source) for source in sources]
    assert after[0] != before[0]
    assert after[1:] == before[1:]
