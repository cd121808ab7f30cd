"""Who may ask what: the one door that every request passes, before anything of it is understood."""

import asyncio
import base64
import binascii
import hashlib
import hmac
import json
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from retro.config.serve import LOOPBACK, ServeConfig
from retro.serving.problems import FAULT, ProblemError

LOG = logging.getLogger("retro.serving")
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "font-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)
METHODS = "GET, POST, DELETE, OPTIONS"
THROWN_AWAY = 8 << 20
"""Bytes beyond the limit that are read before a client is told."""
WRITES = ("/documents",)
"""What changes the datastore."""

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Guard:
    """Checks the host, the origin, the key and the size of a request, and puts the headers on an answer."""

    def __init__(
        self,
        app: App,
        config: ServeConfig,
        key: str = "",
        count: Callable[[str, int], None] = lambda _route, _status: None,
    ) -> None:
        """`count` is told the route and the status of every answer."""
        self.app = app
        self.config = config
        self._count = count
        # Only a hash is kept: comparing hashes takes as long whatever is compared.
        self._key = _digest(key.encode()) if key else None
        names = {*LOOPBACK, *config.hosts}
        if config.host:
            names.add(config.host)
        if config.public_url:
            names.add(urlsplit(config.public_url).hostname or "")
        self._hosts = {name.lower() for name in names if name}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        headers = dict(reversed(scope["headers"]))
        origin = headers.get(b"origin", b"").decode("latin-1")
        answer = _Answer(send, self._headers(origin))
        try:
            self._check(scope, headers, origin)
            if scope["method"] == "OPTIONS" and origin in self.config.cors:
                await answer.send_empty(204)
                return
            if scope["method"] in ("POST", "PUT", "PATCH", "DELETE"):
                receive = await self._read_body(scope, headers, receive)
            await self.app(scope, receive, answer)
        except ProblemError as problem:
            if answer.began:
                raise
            await answer.send_problem(problem, self._challenge(problem))
        except Exception:
            LOG.exception("a request has met a fault")
            if answer.ended:
                return
            if answer.began:
                raise
            await answer.send_problem(ProblemError(500, FAULT))
        finally:
            # By the route's pattern: names of documents would make as many numbers as there are documents.
            self._count(getattr(scope.get("route"), "path", "none"), answer.status)

    def _headers(self, origin: str) -> list[tuple[bytes, bytes]]:
        if origin and origin in self.config.cors:
            shared = [
                (b"access-control-allow-origin", origin.encode("latin-1")),
                (b"access-control-allow-methods", METHODS.encode()),
                (b"access-control-allow-headers", b"authorization, content-type"),
                (b"vary", b"origin"),
            ]
            # A page of another site must be able to read what it may ask for.
            own = [pair for pair in HEADERS if pair[0] != b"cross-origin-resource-policy"]
            return [*own, (b"cross-origin-resource-policy", b"cross-origin"), *shared]
        return list(HEADERS)

    def _check(self, scope: Scope, headers: dict[bytes, bytes], origin: str) -> None:
        host = headers.get(b"host", b"").decode("latin-1")
        if _host_name(host) not in self._hosts:
            # A page of another site may give its own name this machine's address.
            raise ProblemError(400, "the request is for a host that this server does not know", code="host")
        if origin and origin not in self.config.cors and scope["method"] not in ("GET", "HEAD"):
            same = urlsplit(origin).netloc.lower() == host.lower()
            if not same:
                raise ProblemError(403, "pages of other sites may not ask this server", code="origin")
        if scope["method"] == "OPTIONS" and origin in self.config.cors:
            return  # a browser asks without a key whether it may ask
        if self._needs_key(scope) and not self._has_key(headers):
            raise ProblemError(401, "expected the key: Authorization: Bearer KEY", code="invalid_api_key")

    def _needs_key(self, scope: Scope) -> bool:
        if self._key is None:
            return False
        is_write = scope["path"].startswith(WRITES) and scope["method"] != "GET"
        return is_write or not self.config.is_local

    def _has_key(self, headers: dict[bytes, bytes]) -> bool:
        assert self._key is not None
        given = _given_key(headers.get(b"authorization", b""))
        return hmac.compare_digest(_digest(given), self._key)

    def _challenge(self, problem: ProblemError) -> list[tuple[bytes, bytes]]:
        """A browser asks for a name and a password where the page itself needs the key."""
        if problem.status != 401:
            return []
        way = b"Bearer" if self.config.is_local else b'Basic realm="retro", charset="UTF-8"'
        return [(b"www-authenticate", way)]

    async def _read_body(self, scope: Scope, headers: dict[bytes, bytes], receive: Receive) -> Receive:
        """Read the body, within the limits of size and time; what is given back gives it once more."""
        limit = self.config.max_body
        if scope["path"].startswith(WRITES):
            # JSON spells a character in up to six.
            limit = max(limit, 6 * self.config.max_document + 4096)
        body = bytearray()
        size = 0
        try:
            async with asyncio.timeout(self.config.idle_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ProblemError(400, "the client has left")
                    size += len(message.get("body", b""))
                    if size <= limit:
                        body += message["body"]
                    # A little more is read and thrown away, as a client that still sends hears nothing.
                    if not message.get("more_body") or size > limit + THROWN_AWAY:
                        break
        except TimeoutError:
            raise ProblemError(408, "the request was not sent in time") from None
        if size > limit:
            raise ProblemError(413, f"the request is larger than {limit:,} bytes")
        kept: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def again() -> Message:
            return kept.pop() if kept else await receive()

        return again


class _Answer:
    """Sends an answer with the headers of this server."""

    def __init__(self, send: Send, headers: list[tuple[bytes, bytes]]) -> None:
        self._send = send
        self._headers = headers
        self.began = False
        self.ended = False
        self.status = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.began = True
            self.status = message["status"]
            own = {name.lower() for name, _ in message.get("headers", [])}
            added = [pair for pair in self._headers if pair[0] not in own]
            message = {**message, "headers": [*message.get("headers", []), *added]}
        elif message["type"] == "http.response.body":
            self.ended = not message.get("more_body", False)
        await self._send(message)

    async def send_empty(self, status: int) -> None:
        await self({"type": "http.response.start", "status": status, "headers": []})
        await self({"type": "http.response.body", "body": b""})

    async def send_problem(
        self, problem: ProblemError, more: list[tuple[bytes, bytes]] | None = None
    ) -> None:
        body = json.dumps(problem.body().model_dump()).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        # A body that was not read to its end would be taken for the next request.
        if problem.status in (408, 413):
            headers.append((b"connection", b"close"))
        if problem.wait:
            headers.append((b"retry-after", str(problem.wait).encode()))
        headers += more or []
        await self({"type": "http.response.start", "status": problem.status, "headers": headers})
        await self({"type": "http.response.body", "body": body})


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _given_key(header: bytes) -> bytes:
    """The key of an `Authorization` header: a bearer's, or the password that a browser has asked for."""
    way, _, value = header.partition(b" ")
    value = value.strip()
    if way.lower() == b"bearer":
        return value
    if way.lower() == b"basic":
        try:
            return base64.b64decode(value, validate=True).partition(b":")[2]
        except (binascii.Error, ValueError):
            return b""
    return b""


def _host_name(host: str) -> str:
    """The name in a Host header, without the port and the brackets of an address."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.rpartition(":")[0].lower() if host.count(":") == 1 else host.lower()
