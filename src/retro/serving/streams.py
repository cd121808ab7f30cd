"""A stream of events to one reader, who may be slow, or leave."""

import asyncio
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


class EventStream(Response):
    """Sends lines as they come. `cancel` is called unless all of them were sent."""

    def __init__(self, lines: AsyncIterator[bytes], cancel: Callable[[], None], idle_seconds: float) -> None:
        super().__init__()
        self._lines = lines
        self._cancel = cancel
        self._idle_seconds = idle_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.ensure_future(self._send(send))
        leaving = asyncio.ensure_future(_left(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        except TimeoutError:
            # The reader has not read for too long: its connection is cut, as it would never be closed.
            abort: Callable[[], Any] | None = scope.get("extensions", {}).get("retro.abort")
            if abort is not None:
                abort()
        finally:
            leaving.cancel()
            sending.cancel()
            self._cancel()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        async for line in self._lines:
            async with asyncio.timeout(self._idle_seconds):
                await send({"type": "http.response.body", "body": line, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _left(receive: Receive) -> None:
    """Wait until the reader has left."""
    while (await receive())["type"] != "http.disconnect":
        pass
