"""Safe by default: each switch, each limit, and what an answer never says."""

import base64
import json
import logging
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from retro.cli.main import main
from retro.config.serve import ServeConfig
from retro.errors import ConfigError
from retro.model.retro import Retro
from retro.serving.problems import without_paths
from retro.serving.security import POLICY, Guard
from retro.workspace import Workspace
from tests.serving.live import KEY, Live, live, served


@pytest.fixture(scope="module")
def far(small_work: Workspace, small_model: Retro) -> Iterator[Live]:
    """A server that others can reach: every address, under one name."""
    settings: dict[str, Any] = {"host": "0.0.0.0", "hosts": ("models.example",)}
    with live(served(small_work, small_model), KEY, **settings) as running:
        running.client.base_url = httpx.URL(running.url.replace("0.0.0.0", "127.0.0.1"))
        yield running


def test_it_listens_to_this_machine_alone() -> None:
    assert ServeConfig().host == "127.0.0.1"
    assert ServeConfig().is_local
    assert not ServeConfig(host="192.168.1.2").is_local


@pytest.mark.parametrize(
    ("settings", "key", "words"),
    [
        ({"host": "192.168.1.2"}, "", "can be reached from elsewhere"),
        ({"allow_writes": True}, "", "by whoever has a key"),
        ({}, "short", "at least 16"),
    ],
)
def test_it_does_not_start_without_what_it_needs(settings: dict[str, Any], key: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ServeConfig(**settings).expect_key(key)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"host": "0.0.0.0"}, "every address"),
        ({"cors": ("*",)}, "every site"),
        ({"port": 70_000}, "at most 65535"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"seconds": float("nan")}, "seconds is nan"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ServeConfig(**settings)


def test_the_command_refuses_in_one_line(
    small_work: Workspace, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RETRO_KEY", raising=False)
    assert main(["serve", str(small_work.path), "--host", "10.0.0.1"]) == 1
    assert "expected a key" in capsys.readouterr().err
    assert main(["serve", str(small_work.path), "--allow-writes"]) == 1
    assert "--key-file" in capsys.readouterr().err


ROUTES = (
    "/",
    "/page/app.js",
    "/health",
    "/info",
    "/metrics",
    "/v1/models",
    "/sources",
    "/openapi.json",
    "/no",
)


@pytest.mark.parametrize("place", ROUTES)
def test_off_loopback_every_route_needs_the_key(far: Live, place: str) -> None:
    for headers in ({"Authorization": ""}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic !!"}):
        answer = far.client.get(place, headers=headers)
        assert answer.status_code == 401, headers
        assert answer.headers["www-authenticate"].startswith("Basic")
        assert answer.json()["error"]["type"] == "authentication_error"
    assert far.client.get(place).status_code in (200, 404)
    password = base64.b64encode(f"anyone:{KEY}".encode()).decode()
    assert far.client.get(place, headers={"Authorization": f"Basic {password}"}).status_code in (200, 404)


def test_the_key_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashes of equal length are compared, by the function that is made for it."""
    compared: list[tuple[bytes, bytes]] = []
    monkeypatch.setattr(
        "retro.serving.security.hmac.compare_digest", lambda a, b: (compared.append((a, b)), a == b)[1]
    )
    guard = Guard(None, ServeConfig(), KEY)  # type: ignore[arg-type]
    assert not guard._has_key({b"authorization": b"Bearer x"})
    assert guard._has_key({b"authorization": f"Bearer {KEY}".encode()})
    assert {len(part) for pair in compared for part in pair} == {32}
    assert KEY.encode() not in [part for pair in compared for part in pair]


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "localhost.evil.example:80"])
def test_requests_for_other_hosts_are_refused(server: Live, host: str) -> None:
    answer = server.client.get("/health", headers={"Host": host})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "host")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:1234", "[::1]:80", "LOCALHOST"])
def test_requests_for_this_host_are_taken(server: Live, host: str) -> None:
    assert server.client.get("/health", headers={"Host": host}).status_code == 200


def test_a_name_of_its_own_is_known(far: Live) -> None:
    assert far.client.get("/health", headers={"Host": "models.example"}).status_code == 200


def test_pages_of_other_sites_may_not_ask(server: Live) -> None:
    body = {"prompt": "The", "max_tokens": 1}
    answer = server.client.post("/v1/completions", json=body, headers={"Origin": "https://evil.example"})
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers
    preflight = server.client.options("/v1/completions", headers={"Origin": "https://evil.example"})
    assert preflight.status_code == 403
    assert "access-control-allow-origin" not in preflight.headers
    own = server.client.post("/v1/completions", json=body, headers={"Origin": server.url})
    assert own.status_code == 200
    # A form can send text without asking; it is not read as JSON.
    plain = server.client.post(
        "/v1/completions", content=json.dumps(body), headers={"Content-Type": "text/plain"}
    )
    assert plain.status_code in (400, 415)


def test_a_site_that_is_named_may_ask(small_work: Workspace, small_model: Retro) -> None:
    site = "https://app.example"
    with live(served(small_work, small_model), cors=(site,)) as running:
        preflight = running.client.options("/v1/completions", headers={"Origin": site})
        assert preflight.status_code == 204
        assert preflight.headers["access-control-allow-origin"] == site
        answer = running.client.post(
            "/v1/completions", json={"prompt": "The", "max_tokens": 1}, headers={"Origin": site}
        )
        assert answer.headers["access-control-allow-origin"] == site
        other = running.client.get("/health", headers={"Origin": "https://b.example"})
        assert "access-control-allow-origin" not in other.headers


@pytest.mark.parametrize("place", ["/", "/health", "/no", "/sources/nothing", "/v1/completions"])
def test_every_answer_has_the_headers(server: Live, place: str) -> None:
    answer = server.client.get(place)
    assert answer.headers["content-security-policy"] == POLICY
    assert "unsafe" not in POLICY
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert "server" not in answer.headers


def test_a_large_body_is_not_read(server: Live) -> None:
    answer = server.client.post("/v1/completions", content=b"x" * ((1 << 20) + 1))
    assert answer.status_code == 413

    def drip() -> Iterator[bytes]:
        for _ in range(40):
            yield b"x" * 65536

    # Without a length, too.
    assert server.client.post("/v1/completions", content=drip()).status_code == 413


def test_half_a_request_is_not_waited_for(small_work: Workspace, small_model: Retro) -> None:
    with live(served(small_work, small_model), idle_seconds=0.5) as running:
        host, port = running.url.removeprefix("http://").split(":")
        halves = [
            b"POST /v1/comp",
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Le",
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{",
            b"",
        ]
        for half in halves:
            with socket.create_connection((host, int(port)), timeout=10) as client:
                client.sendall(half)
                started = time.monotonic()
                found = b""
                try:
                    while part := client.recv(4096):
                        found += part
                except ConnectionResetError:
                    pass
                assert time.monotonic() - started < 5, half
                assert found == b"" or b" 408 " in found
        assert running.client.get("/health").json()["status"] == "ok"


def test_connections_are_bounded(small_work: Workspace, small_model: Retro) -> None:
    with live(served(small_work, small_model), max_connections=4) as running:
        host, port = running.url.removeprefix("http://").split(":")
        idle = [socket.create_connection((host, int(port))) for _ in range(6)]
        time.sleep(0.1)
        with httpx.Client(base_url=running.url, trust_env=False) as client:
            assert client.get("/health").status_code == 503
        for one in idle:
            one.close()
        time.sleep(0.1)
        assert running.client.get("/health").status_code == 200


def test_no_answer_tells_of_this_machine(server: Live, small_work: Workspace) -> None:
    folder = str(small_work.path)
    answers = [
        server.client.get("/openapi.json"),
        server.client.get("/info"),
        server.client.get("/metrics"),
        server.client.get("/no"),
        server.client.get("/page/../app.py"),
        server.client.get("/page/%2e%2e/app.py"),
        server.client.get("/page//etc/passwd"),
        server.client.get("/sources?source=nowhere"),
        server.client.post("/v1/completions", json={"prompt": "a", "retro": {"sources": ["nowhere"]}}),
        server.client.post("/v1/completions", content=b"{", headers={"Content-Type": "application/json"}),
    ]
    for answer in answers:
        assert folder not in answer.text
        assert "Traceback" not in answer.text
        assert "site-packages" not in answer.text
    assert [answer.status_code for answer in answers[4:7]] == [404, 404, 404]


def test_paths_are_taken_out_of_messages() -> None:
    told = without_paths(
        "no document has it in /home/me/work/datastore; expected one; run: retro db info /home"
    )
    assert told == "no document has it in …; expected one"
    assert without_paths("top_p is 1/2 and/or 3") == "top_p is 1/2 and/or 3"


def test_the_key_is_never_in_a_log(far: Live, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    with caplog.at_level(logging.DEBUG):
        far.client.get("/health")
        far.client.get("/nothing", headers={"Authorization": "Bearer wrong-" + KEY})
        far.client.post("/v1/completions", json={"prompt": 5})
    ours = [record for record in caplog.records if record.name.startswith(("retro", "uvicorn"))]
    assert all(KEY not in record.getMessage() for record in ours)


def test_an_error_of_ours_is_one_line_without_a_trace(
    server: Live, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("secret detail of /home/someone/file")

    monkeypatch.setattr(server.server.asker, "completion", broken)
    answer = server.client.post("/v1/completions", json={"prompt": "a"})
    assert answer.status_code == 500
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert "secret" not in answer.text
    # It is written into the log once the client has its answer.
    deadline = time.monotonic() + 5
    while "secret detail" not in caplog.text and time.monotonic() < deadline:
        time.sleep(0.01)
    assert "secret detail" in caplog.text
    assert answer.headers["content-security-policy"] == POLICY
