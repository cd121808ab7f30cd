"""What is fuzzed: a finished workspace of everything that a user's folder may hold, made once."""

import gc
import shutil
import sqlite3
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from retro.jobs.scoring import evaluate_split
from retro.jobs.training import train_run
from retro.retrieval.datastore.ledger import FILE as LEDGER
from retro.workspace import Workspace
from tests.fuzz import watch
from tests.scoring.runs import workspace_with_run
from tests.workspaces import small_run


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, text_folder: Path, static_encoder: str) -> Path:
    """A workspace with all of its stages finished; nobody writes there."""
    folder = tmp_path_factory.mktemp("fuzz") / "work"
    work = workspace_with_run(folder, text_folder, static_encoder)
    run = small_run(static_encoder)
    train_run(work, "baseline", run.model.baseline(), run.training)
    evaluate_split(work.run("retro"), "test", run.evaluation)
    work.datastore().close()
    del work
    gc.collect()
    # All that was committed in the one file, and none of SQLite's own beside it.
    ledger = sqlite3.connect(folder / "datastore" / LEDGER)
    ledger.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    ledger.close()
    return folder


@pytest.fixture(scope="module")
def spoiled(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A copy of it whose files are changed one at a time, and put back."""
    return Workspace(Path(shutil.copytree(finished, tmp_path_factory.mktemp("spoiled") / "work")))


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is fetched, and what is written without a place goes to an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(MemoryFileSystem, "store", {})
    monkeypatch.setenv("RETRO_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if watch.IS_LONG and watch.SEEN:
        terminalreporter.section("fuzzed")
        for line in watch.table():
            terminalreporter.write_line(line)
