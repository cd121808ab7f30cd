import shutil
from pathlib import Path

import pytest

from retro.cli.main import main
from retro.jobs.training import train_run
from retro.workspace import Workspace
from tests.workspaces import small_run


def test_the_table_of_a_baseline(
    capsys: pytest.CaptureFixture[str], workspace: Workspace, bert: str, tmp_path: Path
) -> None:
    shutil.copytree(workspace.path, tmp_path / "work")
    run, work = small_run(bert), str(tmp_path / "work")
    train_run(Workspace(tmp_path / "work"), "baseline", run.model.baseline(), run.training)
    windows = ["--evaluation.window", "32", "--evaluation.stride", "16"]
    assert main(["knn", work, "baseline", *windows]) == 0
    shown = capsys.readouterr().out
    for word in ("baseline", "knn-lm", "cache", "λ", "α", "θ", "valid", "keys", "RETRO"):
        assert word in shown, word
    assert main(["knn", work, "baseline", *windows, "--tune-on", "test"]) == 1
    error = capsys.readouterr().err
    assert "what is tuned on the reported documents is no result" in error
    assert error.count("\n") == 1
