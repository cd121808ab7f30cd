"""A stream of events to one reader, who may be slow, or leave."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from fastapi.responses import Response

from retro.serving.security import Receive, Scope, Send

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    # A proxy must not keep what is to be read at once.
    (b"x-accel-buffering", b"no"),
]
KEEP_ALIVE = 15.0
"""Seconds without anything to say after which a stream says so."""


class EventStream(Response):
    """Sends lines as they come. `cancel` is called at the end, when it does no harm if all is done."""

    def __init__(self, lines: AsyncIterator[bytes], cancel: Callable[[], None], idle_seconds: float) -> None:
        super().__init__()
        self._lines = lines
        self._cancel = cancel
        self._idle_seconds = idle_seconds
        self._waits = False
        """Whether the reader must read before more can be sent."""
        self._last = time.monotonic()
        """When sending began or ended for the last time."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        tasks = [asyncio.ensure_future(self._send(send))]
        tasks += [asyncio.ensure_future(self._watch(send)), asyncio.ensure_future(left(receive))]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except TimeoutError:
            # The reader has not read for too long: its connection is cut, as it would never be closed.
            abort: Callable[[], Any] | None = scope.get("extensions", {}).get("retro.abort")
            if abort is not None:
                abort()
        finally:
            for task in tasks:
                task.cancel()
            self._cancel()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        async for line in self._lines:
            await self._send_one(send, line)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_one(self, send: Send, line: bytes) -> None:
        self._last, self._waits = time.monotonic(), True
        await send({"type": "http.response.body", "body": line, "more_body": True})
        self._last, self._waits = time.monotonic(), False

    async def _watch(self, send: Send) -> None:
        """Look from time to time, which is cheaper than a clock for every line."""
        while True:
            await asyncio.sleep(min(1.0, self._idle_seconds / 4))
            idle = time.monotonic() - self._last
            if self._waits and idle > self._idle_seconds:
                raise TimeoutError
            if not self._waits and idle > KEEP_ALIVE:
                await self._send_one(send, b": keep-alive\n\n")


async def left(receive: Receive) -> None:
    """Wait until the reader has left."""
    while (await receive())["type"] != "http.disconnect":
        pass
