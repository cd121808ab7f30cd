"""torchrun over two machines: a process is lost, and the run goes on with another number of processes."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from retro.model.weights import load_tensors
from retro.training.metrics import METRICS, read_metrics
from tests.machines import PATIENCE, Machine, python, two_machines, wait_until
from tests.test_road import MODEL
from tests.training.runs import losses
from tests.workspaces import small_workspace

PORT = 29500
SETTINGS = ["--precision", "float32", "--log-every", "1", "--num-steps", "12", "--checkpoint-every", "2"]


def launch(
    machine: Machine, first: Machine, nodes: int, per_node: int, *command: str
) -> "subprocess.Popen[str]":
    """torchrun on one of the machines, which find each other by the address of the first."""
    meeting = [f"--rdzv-endpoint={first.address}:{PORT}", "--rdzv-backend=c10d", "--rdzv-id=run"]
    # Both are called the same here, so the first could not tell by the address that it is meant.
    meeting.append(f"--rdzv-conf=is_host={str(machine is first).lower()}")
    options = [
        f"--nnodes={nodes}",
        f"--nproc-per-node={per_node}",
        f"--local-addr={machine.address}",
        *meeting,
    ]
    return machine.start(
        python("-m", "torch.distributed.run", *options, "-m", "retro", *command),
        GLOO_SOCKET_IFNAME=machine.cable,
    )


@pytest.mark.slow
def test_a_process_is_lost_and_the_run_goes_on_with_another_number(
    tmp_path: Path, text_folder: Path, static_encoder: str
) -> None:
    work = small_workspace(tmp_path, text_folder, static_encoder, splits=("train", "valid"))
    command = ["train", str(tmp_path), *MODEL, *SETTINGS, "--batch-size", "4", "--name"]
    with two_machines() as (first, second):
        first.run(python("-m", "retro", *command, "one"))
        launched = [launch(machine, first, 2, 1, *command, "two") for machine in (first, second)]
        metrics = work.run_path("two").with_name("two.partial") / METRICS
        wait_until(lambda: metrics.exists() and len(read_metrics(metrics)) >= 5, launched[0], every=0.02)
        # Not the launcher, but the process that trains on the second machine.
        trainers = [number for number in second.processes() if is_trainer(number)]
        assert trainers
        for number in trainers:
            os.kill(number, signal.SIGKILL)
        for process in launched:
            _, errors = process.communicate(timeout=PATIENCE)
            assert process.returncode != 0, errors
        assert not work.run_path("two").exists()
        assert list(metrics.parent.glob("scratch/checkpoints/step-*/state.json"))
        # Four processes go on where two have stopped, and the result is that of one.
        launched = [launch(machine, first, 2, 2, *command, "two") for machine in (first, second)]
        for process in launched:
            _, errors = process.communicate(timeout=PATIENCE)
            assert process.returncode == 0, errors
    one, two = (losses(work.run_path(name)) for name in ("one", "two"))
    assert [row[:2] for row in one] == [row[:2] for row in two]
    assert [row[2] for row in two] == pytest.approx([row[2] for row in one], abs=1e-4)
    weights = [load_tensors(work.run_path(name) / "model.safetensors") for name in ("one", "two")]
    # Adam makes full steps of gradients that are all but zero, whichever sign rounding gives them.
    for name, tensor in weights[0].items():
        assert float((weights[1][name] - tensor).abs().mean()) < 1e-3, name


def is_trainer(process: int) -> bool:
    """Whether a process trains: its launcher has torchrun's own name among its words."""
    words = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
    return b"train" in words and b"torch.distributed.run" not in words
