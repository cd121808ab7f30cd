"""A real server on a free port of loopback, in a thread of this process."""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from retro.config.serve import ServeConfig
from retro.generation.sampler import Sampler
from retro.model.protocol import LanguageModel
from retro.serving.asking import Served
from retro.serving.memory import Memory
from retro.serving.running import Process, address, listen, make_process
from retro.serving.server import Server
from retro.workspace import Workspace

KEY = "a-key-of-many-letters"


class Live:
    """A server that runs, and a client of it."""

    def __init__(self, server: Server, key: str = "", send_buffer: int = 0) -> None:
        """`send_buffer` bounds the bytes that the kernel takes for a client that does not read."""
        self.server = server
        self.key = key
        listener = listen(server.config)
        if send_buffer:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        self.url = address(listener)
        self.process: Process = make_process(server, key)
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self.process.serve([listener])), daemon=True
        )
        self._thread.start()
        while not self.process.started:
            time.sleep(0.01)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.client = httpx.Client(base_url=self.url, headers=headers, timeout=60, trust_env=False)

    def stop(self) -> None:
        self.client.close()
        self.process.should_exit = True
        self._thread.join(60)
        assert not self._thread.is_alive()

    def complete(self, prompt: Any, **fields: Any) -> dict[str, Any]:
        answer = self.client.post("/v1/completions", json={"prompt": prompt, **fields})
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def text(self, prompt: Any, **fields: Any) -> str:
        return str(self.complete(prompt, **fields)["choices"][0]["text"])


def served(work: Workspace, model: LanguageModel, name: str = "small") -> Served:
    memory = Memory(work.datastore(), 2)
    return Served(name=name, sampler=Sampler(model, memory), memory=memory, created=1)


@contextmanager
def live(what: Served, key: str = "", send_buffer: int = 0, **settings: Any) -> Iterator[Live]:
    config = ServeConfig(**{"port": 0, "grace": 5.0, **settings})
    running = Live(Server(what, config), key, send_buffer)
    try:
        yield running
    finally:
        running.stop()
