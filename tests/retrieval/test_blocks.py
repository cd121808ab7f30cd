"""Blocks of chunks are searched by workers as by one process, at the version that was sent to them."""

import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest

from retro.errors import ArtifactError, MissingExtraError
from retro.retrieval import finding
from retro.retrieval.blocks import BlockSearch, block_of
from retro.retrieval.chunks import ChunkTable, content_hashes
from retro.retrieval.datastore import Datastore
from retro.retrieval.datastore.ledger import FILE, CompactedError
from retro.retrieval.datastore.remote import RemoteVersion, VersionFiles
from retro.retrieval.finding import find_neighbours
from retro.stages.executor import Executor, LocalExecutor
from retro.workspace import Workspace
from tests.retrieval.datastores import build, corpus_of, make_documents
from tests.sending import Sending


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, text_folder: Path, static_encoder: str) -> Path:
    folder = tmp_path_factory.mktemp("blocks")
    build(corpus_of(folder / "work", text_folder), folder / "datastore", static_encoder)
    return folder


@pytest.fixture
def work(prepared: Path, tmp_path: Path) -> tuple[Workspace, Datastore]:
    shutil.copytree(prepared, tmp_path / "copy")
    return Workspace(tmp_path / "copy" / "work"), Datastore.open(tmp_path / "copy" / "datastore")


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_workers_find_what_one_process_finds(
    work: tuple[Workspace, Datastore], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From nothing, and after changes: some chunks look through what was added, some have lost neighbours."""
    monkeypatch.setattr(finding, "QUERIES", 40)
    workspace, datastore = work
    store = workspace.store("train")
    executors: dict[str, Executor] = {"alone": LocalExecutor(1), "sent": Sending()}
    for name, executor in executors.items():
        find_neighbours(store, datastore, tmp_path / name, executor=executor)
    assert files_of(tmp_path / "alone") == files_of(tmp_path / "sent")
    datastore.add(make_documents(["Anyone may copy this software without warranty. " * 9]))
    datastore.delete(ids=["03.txt", "07.txt"])
    told: list[tuple[int, int]] = []
    for name, executor in executors.items():
        found = find_neighbours(
            store, datastore, tmp_path / name, lambda done, total, *_: told.append((done, total)), executor
        )
        assert 0 < found.artifact.counts["searched"] < found.artifact.counts["chunks"]
        assert told[-1] == (found.artifact.counts["chunks"],) * 2
    assert files_of(tmp_path / "alone") == files_of(tmp_path / "sent")
    # Only some documents are deleted now: most chunks keep what they have, and nothing is looked through.
    datastore.delete(ids=["05.txt"])
    updated = find_neighbours(store, datastore, tmp_path / "alone")
    assert updated.artifact.counts["looked_through_added"] == 0
    anew = find_neighbours(store, datastore, tmp_path / "anew")
    assert np.array_equal(updated.chunks, anew.chunks)
    assert np.array_equal(updated.distances, anew.distances)


def test_a_worker_needs_no_ledger_and_keeps_to_its_version(work: tuple[Workspace, Datastore]) -> None:
    workspace, datastore = work
    datastore.delete(ids=["03.txt"])
    snapshot = datastore.snapshot()
    search = BlockSearch(datastore, snapshot, 4, ())
    table = ChunkTable(workspace.store("train"), datastore.chunk_len)
    hashes = content_hashes(table.store)
    # Half of the chunks have other hashes, so that their keys are not found but made.
    hashes[::2] += np.uint64(1)
    block = block_of(table, hashes, np.arange(60), 4)
    here = search(block)
    sent = pickle.dumps(search)
    datastore.add(make_documents(["Something that comes too late. " * 9]))
    datastore.delete(ids=["04.txt"])
    (datastore.path / FILE).rename(datastore.path / "away")
    there = pickle.loads(sent)(pickle.loads(pickle.dumps(block)))  # noqa: S301
    assert all(np.array_equal(here[name], there[name]) for name in here)
    (datastore.path / "away").rename(datastore.path / FILE)
    datastore.compact()
    with pytest.raises(CompactedError, match="compacted since version 2"):
        RemoteVersion(VersionFiles.of(datastore, snapshot))


def test_a_compaction_in_between_is_searched_again_and_lost_files_are_told(
    work: tuple[Workspace, Datastore], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace, datastore = work
    datastore.delete(ids=["03.txt"])
    compacted: list[int] = []

    def search(self: BlockSearch, block: object) -> dict:
        if not compacted:
            compacted.append(datastore.compact())
            raise CompactedError(datastore.path, 2)
        return original(self, block)

    original = BlockSearch.__call__
    monkeypatch.setattr(BlockSearch, "__call__", search)
    found = find_neighbours(workspace.store("train"), datastore, tmp_path / "found")
    assert found.version == compacted[0]

    def lost(*_: object) -> None:
        raise CompactedError(datastore.path, 3)

    datastore.add(make_documents(["Words of another kind. " * 9]))
    monkeypatch.setattr(BlockSearch, "__call__", lost)
    with pytest.raises(ArtifactError, match="compacted since"):
        find_neighbours(workspace.store("train"), datastore, tmp_path / "found")


def test_errors_come_whole_from_other_processes() -> None:
    for error in (CompactedError(Path("work"), 3), MissingExtraError("ray", "scale")):
        again = pickle.loads(pickle.dumps(error))  # noqa: S301
        assert type(again) is type(error)
        assert str(again) == str(error)
