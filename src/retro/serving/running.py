"""The server as a process: sockets, signals, and an end that loses nothing."""

import asyncio
import logging
import socket
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from retro.config.serve import ServeConfig
from retro.errors import ConfigError
from retro.serving.app import make_app
from retro.serving.server import Server

LOG = logging.getLogger("retro.serving")


def protocol(idle_seconds: float) -> type[asyncio.Protocol]:
    """uvicorn's own protocol, but for clients that begin a request and never end it, or never read."""

    class Impatient(HttpToolsProtocol):
        _patience: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._wait()

        def on_message_begin(self) -> None:
            super().on_message_begin()
            # A stream whose reader does not read cuts the connection by this.
            extensions: Any = {"retro.abort": self.transport.abort}
            self.scope["extensions"] = extensions

        def on_headers_complete(self) -> None:
            self._calm()
            super().on_headers_complete()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if not self.transport.is_closing():
                self._wait()

        def connection_lost(self, exc: Exception | None) -> None:
            self._calm()
            super().connection_lost(exc)

        def _wait(self) -> None:
            self._calm()
            # Until a head is whole, however slowly it drips in.
            self._patience = self.loop.call_later(idle_seconds, self._lose_patience)

        def _calm(self) -> None:
            if self._patience is not None:
                self._patience.cancel()
                self._patience = None

        def _lose_patience(self) -> None:
            if self.cycle is None or self.cycle.response_complete:
                self.transport.abort()

    return Impatient


class Process(uvicorn.Server):
    """uvicorn, with an engine that is told to stop before the connections are."""

    def __init__(self, config: uvicorn.Config, server: Server) -> None:
        super().__init__(config)
        self.own = server

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # New requests are refused from here on; those under way end, or are told that they cannot.
        await asyncio.to_thread(self.own.engine.stop, self.own.config.grace)
        await super().shutdown(sockets)


def listen(config: ServeConfig) -> socket.socket:
    """The socket to listen at, open before the model is loaded: a taken port is told at once."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    # By its name: only of sockets that say so does asyncio turn off the waiting for full packets, which costs
    # every answer 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((config.host, config.port))
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"{config.host} port {config.port} cannot be listened at ({error.strerror}); "
            "expected one that is free: --port 0 takes any"
        ) from None
    listener.listen(config.max_connections)
    return listener


def address(listener: socket.socket) -> str:
    """Where a server can be reached."""
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def make_process(server: Server, key: str = "") -> Process:
    config = server.config
    settings = uvicorn.Config(
        make_app(server, key),
        http=protocol(config.idle_seconds),
        loop="asyncio",
        # Nobody is asked for them, and the door does not know them.
        ws="none",
        log_level="warning",
        # No line for each request: addresses hold what people search for.
        access_log=False,
        limit_concurrency=config.max_connections,
        timeout_keep_alive=int(max(1, config.idle_seconds)),
        timeout_graceful_shutdown=int(config.grace) + 1,
        server_header=False,
        h11_max_incomplete_event_size=1 << 16,
    )
    return Process(settings, server)


def serve(server: Server, listener: socket.socket, key: str = "") -> None:
    """Serve until a signal says to stop."""
    process = make_process(server, key)
    asyncio.run(process.serve([listener]))
