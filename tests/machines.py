"""Two machines on this one: network namespaces with an address each, joined by a cable of their own.

Nothing leaves them. Whatever was started in them is killed, and they are removed, also after a failure.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import retro

SOURCE = Path(retro.__file__).parent.parent
PATIENCE = 300.0


@dataclass
class Machine:
    """A network namespace."""

    name: str
    address: str
    cable: str
    """Its only network interface beside the loopback."""
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, command: Sequence[str], mounts: str = "", **environment: str) -> subprocess.Popen[str]:
        """Start a command there. The shell commands `mounts` change what it sees, and nobody else."""
        if mounts:
            command = ["sh", "-ec", f'{mounts}\nexec "$@"', "sh", *command]
        variables = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", **environment}
        process = subprocess.Popen(
            ["ip", "netns", "exec", self.name, *command],
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def run(self, command: Sequence[str], mounts: str = "", **environment: str) -> str:
        """Run a command there to its end, and return what it printed."""
        process = self.start(command, mounts, **environment)
        printed, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, f"{printed}\n{errors}"
        return printed

    def processes(self) -> list[int]:
        listed = subprocess.run(
            ["ip", "netns", "pids", self.name], capture_output=True, text=True, check=False
        )
        return [int(number) for number in listed.stdout.split()]

    def kill(self) -> None:
        """Pull the plug: every process of this machine is gone at once."""
        deadline = time.monotonic() + PATIENCE
        while processes := self.processes():
            assert time.monotonic() < deadline
            for number in processes:
                with suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)
            time.sleep(0.05)

    def is_doing(self, words: str) -> bool:
        """Whether a process with these words in its title runs there."""
        for number in self.processes():
            with suppress(OSError):
                if words.encode() in Path(f"/proc/{number}/cmdline").read_bytes():
                    return True
        return False


@contextmanager
def two_machines() -> Iterator[tuple[Machine, Machine]]:
    """Two machines that reach each other and nobody else."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("namespaces are made by root with iproute2; run: apt-get install iproute2")
    number = os.getpid() % 200
    first, second = (
        Machine(f"retro-{os.getpid()}-{end}", f"10.203.{number}.{end}", f"retro{number}c{end}")
        for end in (1, 2)
    )
    try:
        for machine in (first, second):
            _ip("netns", "add", machine.name)
        _ip("link", "add", first.cable, "type", "veth", "peer", "name", second.cable)
        for machine in (first, second):
            _ip("link", "set", machine.cable, "netns", machine.name)
            _ip("-n", machine.name, "addr", "add", f"{machine.address}/24", "dev", machine.cable)
            _ip("-n", machine.name, "link", "set", "lo", "up")
            _ip("-n", machine.name, "link", "set", machine.cable, "up")
        yield first, second
    finally:
        for machine in (first, second):
            machine.kill()
            for process in machine.started:
                process.communicate()
            subprocess.run(["ip", "netns", "del", machine.name], check=False, capture_output=True)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str], every: float = 0.003) -> None:
    """Wait for something to happen while a process runs."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        assert process.poll() is None, process.communicate()
        time.sleep(every)


def python(*arguments: str) -> list[str]:
    return [sys.executable, *arguments]
