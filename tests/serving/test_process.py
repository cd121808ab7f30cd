"""The command as a process: it says when it is ready, ends in good order, and a kill loses nothing."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from retro.cli.main import main
from retro.retrieval.datastore import Datastore
from retro.retrieval.datastore.verify import verify
from retro.workspace import Workspace
from tests.scoring.runs import workspace_with_run
from tests.serving.live import KEY


@pytest.fixture(scope="module")
def run_work(tmp_path_factory: pytest.TempPathFactory, text_folder: Path, static_encoder: str) -> Workspace:
    return workspace_with_run(tmp_path_factory.mktemp("process") / "work", text_folder, static_encoder)


class Command:
    """`retro serve` in a process of its own."""

    def __init__(self, work: Workspace, *options: str) -> None:
        environment = {**os.environ, "RETRO_KEY": KEY, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "retro", "serve", str(work.path), "--port", "0", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        assert self.process.stdout is not None
        self.said = self.process.stdout.readline() + self.process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+", self.said)
        assert found, (self.said, self.process.stderr and self.process.stderr.read())
        self.url = found[0]
        self.client = httpx.Client(
            base_url=self.url, headers={"Authorization": f"Bearer {KEY}"}, timeout=60, trust_env=False
        )
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            try:
                self.client.get("/health")
                return
            except httpx.TransportError:
                time.sleep(0.02)

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=60)
        self.client.close()
        return self.process.returncode, errors


@pytest.fixture
def command(run_work: Workspace) -> Iterator[Command]:
    started = Command(run_work, "--allow-writes", "--max-tokens", "4000", "--grace", "20")
    yield started
    started.client.close()
    if started.process.poll() is None:
        started.process.kill()
        started.process.communicate()


def test_it_serves_and_a_signal_lets_answers_end(command: Command) -> None:
    assert "ready in" in command.said
    assert command.client.get("/v1/models").json()["data"][0]["id"] == "retro"
    body = {"prompt": "The licence", "max_tokens": 300, "min_tokens": 300, "stream": True, "temperature": 0}
    lines: list[str] = []
    begun = threading.Event()

    def read() -> None:
        client = httpx.Client(base_url=command.url, timeout=60, trust_env=False)
        with client, client.stream("POST", "/v1/completions", json=body) as answer:
            for line in answer.iter_lines():
                lines.append(line)
                begun.set()

    reader = threading.Thread(target=read)
    reader.start()
    assert begun.wait(30)
    status, errors = command.end()
    reader.join(30)
    assert "data: [DONE]" in lines
    written = [
        part
        for line in lines
        if line.startswith("data: {")
        for part in json.loads(line.removeprefix("data: "))["choices"]
    ]
    assert written[-1]["finish_reason"] == "length"
    assert len(written[-1]["retro"]["chunks"]) > 30
    assert status in (0, -signal.SIGTERM, 128 + signal.SIGTERM), errors
    assert "Traceback" not in errors


def test_a_kill_loses_nothing_in_the_datastore(command: Command, run_work: Workspace) -> None:
    """While documents are being added: those that were answered for are there, and nothing is damaged."""
    added: list[str] = []

    def add() -> None:
        for number in range(1000):
            body: dict[str, Any] = {"text": f"Text {number} of many. " * 20, "id": f"new-{number}"}
            try:
                answer = command.client.post("/documents", json=body)
            except httpx.TransportError:
                return
            if answer.status_code == 201:
                added.append(answer.json()["id"])

    writer = threading.Thread(target=add)
    writer.start()
    while len(added) < 5:
        time.sleep(0.01)
    command.process.kill()
    command.process.communicate()
    writer.join(30)
    datastore = Datastore.open(run_work.datastore_path)
    verify(datastore)
    ids = {row[0] for row in datastore.ledger.rows("SELECT id FROM documents WHERE deleted IS NULL")}
    assert set(added) <= ids
    datastore.close()


def test_a_port_that_is_taken_is_told_before_anything_is_loaded(
    run_work: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", str(run_work.path), "--port", str(port)]) == 1
    assert "cannot be listened at" in capsys.readouterr().err


def test_the_commands_help_needs_no_web_framework() -> None:
    code = (
        "import sys; from retro.cli.main import main; main(['--help']); main(['serve', '--help']);"
        "print([name for name in ('fastapi', 'uvicorn', 'pydantic', 'torch') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[-1] == "[]"
