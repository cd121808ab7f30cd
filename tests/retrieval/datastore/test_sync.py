"""Bringing a datastore to the state of a folder, in one version."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from retro.cli.main import main
from retro.config import CorpusConfig
from retro.corpus.ingest import ingest
from retro.errors import ArtifactError, DataError
from retro.jobs.retrieval import build as build_of_work
from retro.jobs.retrieval import find_neighbours, sync, sync_sources
from retro.retrieval.datastore import Datastore
from retro.retrieval.datastore.verify import verify
from retro.workspace import Workspace
from tests.retrieval.datastores import config_of, held, make_documents

CONFIG = CorpusConfig(vocab_size=320, valid_fraction=0.1, test_fraction=0.1)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, texts: list[str], static_encoder: str) -> Path:
    folder = tmp_path_factory.mktemp("sync")
    (folder / "notes").mkdir()
    for number, text in enumerate(texts):
        (folder / "notes" / f"{number:02d}.txt").write_text(text)
    work = Workspace(folder / "work")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)  # so that a copy of all of it has the same source
        ingest(work, ["notes"], CONFIG)
    build_of_work(work, config_of(static_encoder)).close()
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(made, tmp_path / "made")
    monkeypatch.chdir(tmp_path / "made")
    return tmp_path / "made"


def change(folder: Path) -> tuple[str, str]:
    """A new training document, and one that is changed and one that is removed, whose ids are returned."""
    train = [row["id"] for row in Workspace(folder / "work").corpus().train.documents]
    for number in range(10):  # some of them are training documents
        text = f"Number {number} permits a zebra to graze. " * 9
        (folder / "notes" / f"new-{number}.txt").write_text(text)
    changed, removed = train[3], train[5]
    with (folder / "notes" / changed).open("a") as file:
        file.write("And a line more.\n")
    (folder / "notes" / removed).unlink()
    return changed, removed


def again(folder: Path) -> Workspace:
    work = Workspace(folder / "work")
    ingest(work, ["notes"], CONFIG)
    return Workspace(work.path)


def expected_ids(work: Workspace) -> set[str]:
    return {row["id"] for row in work.corpus().train.documents}


def test_the_datastore_follows_the_tokens_in_one_version(folder: Path) -> None:
    _, removed = change(folder)
    work = again(folder)
    found = sync(work)
    new = expected_ids(work) - {row["id"] for row in Workspace(folder / "work").corpus().test.documents}
    assert (found.version, found.changed, found.removed) == (2, 1, 1)
    assert found.added == sum(name.startswith("new-") for name in new)
    assert held(work.datastore()) == expected_ids(work)
    assert removed not in held(work.datastore())
    version = work.datastore().ledger.version()
    assert (version.action, version.documents) == ("sync", found.added + 2 * found.changed + found.removed)
    verify(work.datastore())
    # Once more there is nothing to do, and no version of it.
    again_found = sync(work)
    assert not again_found
    assert (again_found.version, again_found.unchanged) == (2, len(expected_ids(work)))
    assert work.datastore().ledger.version() == version


def test_a_synced_datastore_is_built_from_the_tokens_that_are_there(
    folder: Path, static_encoder: str
) -> None:
    change(folder)
    work = again(folder)
    with pytest.raises(ArtifactError, match=rf"built from differ\); .*run: retro db sync {work.path}; or"):
        build_of_work(work, config_of(static_encoder))
    sync(work)
    assert build_of_work(work, config_of(static_encoder)).ledger.version().number == 2


def test_documents_of_other_sources_stay_and_a_source_that_is_gone_goes(folder: Path) -> None:
    work = Workspace(folder / "work")
    work.datastore().add(make_documents(["Words that were added by hand. " * 4]))
    (folder / "notes").rename(folder / "other")
    (folder / "notes").mkdir()
    (folder / "notes" / "only.jsonl").write_text('{"id": "a", "text": "Only this.", "source": "else"}\n')
    for number in range(8):
        with (folder / "notes" / "only.jsonl").open("a") as file:
            file.write(f'{{"id": "b{number}", "text": "Only {number} of these.", "source": "else"}}\n')
    work = again(folder)
    found = sync(work)
    assert found.removed > 20
    assert held(work.datastore()) == expected_ids(work) | {"more-0"}


def test_neighbours_follow(folder: Path) -> None:
    work = Workspace(folder / "work")
    find_neighbours(work, "train")
    change(folder)
    work = again(folder)
    sync(work)
    found = find_neighbours(work, "train")
    counts = found.artifact.counts
    assert 0 < counts["searched"] < counts["chunks"]
    assert found.artifact.inputs["tokens"] == work.store("train").fingerprint
    searched = find_neighbours_anew(work)
    assert np.array_equal(np.asarray(found.distances), np.asarray(searched.distances))


def find_neighbours_anew(work: Workspace):
    shutil.rmtree(work.neighbours_path("train"))
    return find_neighbours(work, "train")


def test_held_out_documents_of_a_folder_stay_out(folder: Path) -> None:
    change(folder)
    work = Workspace(folder / "work")
    held_out = {row["id"] for store in (work.store("valid"), work.store("test")) for row in store.documents}
    found, num_kept_out = sync_sources(work.datastore(), [str(folder / "notes")], work=work)
    assert found
    assert num_kept_out >= len(held_out)
    assert not held(work.datastore()) & held_out
    assert held(work.datastore()) == expected_ids(again(folder))


def test_a_document_given_twice_changes_nothing(folder: Path) -> None:
    datastore = Workspace(folder / "work").datastore()
    before = datastore.ledger.version()
    one, two = make_documents(["One text. " * 5, "Another. " * 5])
    with pytest.raises(DataError, match="is given twice"):
        datastore.sync([one, two, one])
    with pytest.raises(DataError, match="no document to compare with"):
        datastore.sync([])
    assert datastore.ledger.version() == before


@pytest.mark.parametrize(
    "place", ["ledger.Ledger.mark_deleted", "ledger.Ledger.set_fact", "writer.write_segment"]
)
def test_a_kill_in_the_midst_leaves_the_old_version(
    folder: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    change(folder)
    work = again(folder)
    before, held_before = work.datastore().ledger.version(), held(work.datastore())

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(f"retro.retrieval.datastore.{place}", killed)
        sync(work)
    assert work.datastore().ledger.version() == before
    assert held(work.datastore()) == held_before
    assert sync(work).version == 2
    assert held(work.datastore()) == expected_ids(work)
    verify(work.datastore())


def test_the_command_tells_what_it_did(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*arguments: str) -> str:
        assert main(["db", "sync", str(folder / "work"), *arguments]) == 0
        return " ".join(capsys.readouterr().out.split())

    assert "nothing to do at version 1; 0 documents added" in run()
    change(folder)
    again(folder)
    told = run()
    assert "version 2;" in told
    assert "1 changed, 1 removed" in told
    assert f"run: retro neighbours {folder / 'work'}" in told
    assert "stay out" in run(str(folder / "notes"))
    assert main(["db", "sync", str(folder / "work" / "datastore")]) == 1
    assert "no source was named" in capsys.readouterr().err


@pytest.mark.slow
def test_ten_kills_of_a_sync_leave_the_old_version_or_the_new(folder: Path) -> None:
    change(folder)
    again(folder)
    shutil.copytree(folder / "work", folder / "broken")

    def start(work: Path) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "retro", "db", "sync", str(work)]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)

    started = time.monotonic()
    assert start(folder / "work").wait() == 0
    seconds = time.monotonic() - started
    whole = Datastore.open(folder / "work" / "datastore").ledger.versions()
    rng = random.Random(0)
    for _ in range(10):
        process = start(folder / "broken")
        try:
            process.wait(timeout=rng.uniform(0.5, 1.0) * seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        datastore = Datastore.open(folder / "broken" / "datastore")
        versions = datastore.ledger.versions()
        assert versions == whole[: len(versions)]
        verify(datastore)
        datastore.close()
    assert start(folder / "broken").wait() == 0
    assert Datastore.open(folder / "broken" / "datastore").ledger.versions() == whole
