"""Kills, readers beside a writer, a full disk."""

import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from retro.retrieval.datastore import Datastore
from retro.retrieval.datastore.verify import verify
from retro.retrieval.finding import find_neighbours
from tests.retrieval.changes import live
from tests.retrieval.datastores import build, corpus_of, held, make_documents

KILLS = 20


def start(work: Path, path: Path, encoder: str, exact_below: int) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "tests.retrieval.changes",
        str(work),
        str(path),
        encoder,
        str(exact_below),
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3])


def seconds_of(lines: list[str]) -> float:
    return float(lines[-1].split()[0]) - float(lines[0].split()[0])


@pytest.mark.slow
@pytest.mark.parametrize("exact_below", [50_000, 60])
def test_kills_at_random_moments_lose_nothing(
    tmp_path: Path, text_folder: Path, static_encoder: str, exact_below: int
) -> None:
    """After each of twenty kills the datastore is sound at a committed version; at the end it is whole.

    With fewer than sixty keys searched one by one there is an index over all segments, and merges.
    """
    work = corpus_of(tmp_path / "work", text_folder)
    unbroken = start(work.path, tmp_path / "whole", static_encoder, exact_below)
    lines = (unbroken.communicate()[0] or "").splitlines()
    whole = Datastore.open(tmp_path / "whole")
    lineages = [version.lineage for version in whole.ledger.versions()]
    rng, kills, where, committed = random.Random(0), 0, [], 0
    for _ in range(20 * KILLS):
        path = tmp_path / f"killed-{len(where)}"
        with start(work.path, path, static_encoder, exact_below) as process:
            assert process.stdout is not None
            assert "ready" in process.stdout.readline()
            try:
                process.wait(rng.uniform(0.0, seconds_of(lines)))
            except subprocess.TimeoutExpired:
                process.kill()
        if process.returncode != 0:
            assert process.returncode == -9
            kills += 1
            if path.exists():
                datastore = Datastore.open(path)
                version = datastore.snapshot().version
                assert version.lineage in lineages  # a version of the unbroken run
                assert version.number >= committed  # nothing that was committed is lost
                committed = version.number
                verify(datastore)
                datastore.close()
        else:
            where.append(path)  # this one is finished; the next starts from nothing
            committed = 0
            if kills >= KILLS:
                break
    assert kills >= KILLS
    for path in where:
        finished = Datastore.open(path)
        # A merge that was cut off is done with the next change.
        assert [*dict.fromkeys(version.lineage for version in finished.ledger.versions())] == [
            *dict.fromkeys(lineages)
        ]
        assert held(finished) == held(whole)
        verify(finished, sample=1000)
        if exact_below < 1000:
            continue  # merges at other moments leave other numbers, and codes of another training
        assert sorted(p.name for p in (path / "segments").iterdir()) == sorted(
            p.name for p in (tmp_path / "whole" / "segments").iterdir()
        )
        ours = find_neighbours(work.store("train"), finished, path.with_suffix(".neighbours"))
        theirs = find_neighbours(work.store("train"), whole, path.with_suffix(".expected"))
        assert np.array_equal(ours.chunks, theirs.chunks)


READER = """
import json, sys, time
from pathlib import Path
from retro.retrieval.datastore import Datastore
from retro.retrieval.datastore.ledger import CompactedError
datastore, stop, seen = Datastore.open(sys.argv[1]), Path(sys.argv[2]), []
print("ready", flush=True)
_, entries = datastore.queries(["anyone may share"])
while not stop.exists():
    snapshot = datastore.snapshot()
    try:
        (found,) = datastore.search_version(snapshot, entries, 100_000)
    except CompactedError:
        continue
    seen.append([snapshot.version.number, sorted({neighbour.document for neighbour in found})])
    assert all(neighbour.text for neighbour in found)
print(json.dumps(seen), flush=True)
"""


def test_a_reader_beside_a_writer_always_sees_one_version(
    tmp_path: Path, text_folder: Path, static_encoder: str
) -> None:
    datastore = build(
        corpus_of(tmp_path / "work", text_folder), tmp_path / "datastore", static_encoder, segment_chunks=200
    )
    stop = tmp_path / "stop"
    reader = subprocess.Popen(
        [sys.executable, "-c", READER, str(datastore.path), str(stop)], stdout=subprocess.PIPE, text=True
    )
    assert reader.stdout is not None
    assert reader.stdout.readline().strip() == "ready"
    versions = {datastore.snapshot().version.number: sorted(held(datastore))}
    for number in range(8):
        datastore.add(make_documents(["Anyone may share this. " * 5] * 2, first=2 * number))
        versions[datastore.snapshot().version.number] = sorted(held(datastore))
        datastore.delete(ids=[f"more-{2 * number}"])
        versions[datastore.snapshot().version.number] = sorted(held(datastore))
        if number % 2:
            datastore.compact()
            versions[datastore.snapshot().version.number] = sorted(held(datastore))
        time.sleep(0.02)
    stop.touch()
    output, _ = reader.communicate(timeout=60)
    assert reader.returncode == 0
    seen = json.loads(output)
    assert len({version for version, _ in seen}) > 3
    for version, documents in seen:
        assert documents == versions[version]


def test_a_full_disk_changes_nothing(
    tmp_path: Path, text_folder: Path, static_encoder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    datastore = build(corpus_of(tmp_path / "work", text_folder), tmp_path / "datastore", static_encoder)
    version, files = (
        datastore.snapshot().version,
        sorted(p.name for p in (datastore.path / "segments").rglob("*")),
    )

    def full(source: object, target: object, *_: object) -> None:
        os.write(os.open("/dev/full", os.O_WRONLY), b"x")

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfileobj", full)
        with pytest.raises(OSError, match="No space left"):
            datastore.add(make_documents(["Some words. " * 9]))
    assert datastore.snapshot().version == version
    verify(datastore)
    datastore.add(make_documents(["Other words. " * 9]))
    datastore.delete(ids=["more-0"])
    datastore.compact()
    assert len(list((datastore.path / "segments").iterdir())) == 1
    assert len(sorted(p.name for p in (datastore.path / "segments").rglob("*"))) == len(files)


def test_the_script_of_changes_ends_where_it_should(
    tmp_path: Path, text_folder: Path, static_encoder: str
) -> None:
    work = corpus_of(tmp_path / "work", text_folder)
    datastore = live(work.path, tmp_path / "datastore", static_encoder)
    found = held(datastore)
    assert "02.txt" not in found
    assert {"first-2", "third-1"} <= found
    assert not {"first-0", "first-1", "second-0", "second-1"} & found
    again = live(work.path, tmp_path / "datastore", static_encoder)
    assert again.snapshot().version == datastore.snapshot().version
