"""The command under torchrun, as on several machines."""

import subprocess
import sys
from pathlib import Path

import pytest

from retro.cli.main import main
from tests.test_road import MODEL
from tests.training.runs import losses
from tests.workspaces import small_workspace


@pytest.mark.slow
def test_torchrun_trains_a_workspace(tmp_path: Path, text_folder: Path, bert: str) -> None:
    work = small_workspace(tmp_path, text_folder, bert, splits=("train", "valid"))
    options = [str(tmp_path), *MODEL, "--precision", "float32", "--log-every", "1"]
    launch = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "-m",
        "retro",
        "train",
    ]
    done = subprocess.run(
        [*launch, *options, "--name", "two"], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("parameters without embeddings") == 1  # one process speaks
    assert main(["train", *options, "--name", "one"]) == 0
    assert [row[2] for row in losses(work.run_path("two"))] == pytest.approx(
        [row[2] for row in losses(work.run_path("one"))], abs=1e-5
    )
