"""Requests to a server: valid ones, changed a little, and bytes that are none. It answers all of them."""

import json
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retro.workspace import Workspace
from tests.fuzz.mutations import changed_bytes, changed_json
from tests.fuzz.watch import IS_LONG, count, inputs
from tests.serving.live import KEY, Live, live, served

COMPLETION: dict[str, Any] = {
    "model": "small",
    "prompt": "The licence",
    "max_tokens": 3,
    "temperature": 0.5,
    "top_p": 0.9,
    "n": 1,
    "stream": False,
    "stream_options": {"include_usage": True},
    "stop": ["x"],
    "seed": 1,
    "presence_penalty": 0.1,
    "frequency_penalty": 0.1,
    "logprobs": 1,
    "echo": False,
    "retro": {
        "retrieval": True,
        "num_neighbours": 2,
        "sources": [],
        "exclude": ["03.txt"],
        "passages": [],
        "every": 1,
        "worth": False,
        "explain": False,
    },
}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": COMPLETION,
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2},
    "/documents": {"text": "A new text.", "title": "New", "id": "", "source": "added"},
    "/tokenize": {"prompt": "The licence", "add_special_tokens": False},
    "/detokenize": {"tokens": [1, 2, 3]},
}
PLACES = (
    "/sources",
    "/sources/03.txt",
    "/search",
    "/v1/models",
    "/documents/03.txt",
    "/page/app.js",
    "/info",
)
PART = 1.0 if IS_LONG else 0.5
"""A server is asked as often as there are inputs in all; half as often unless many were asked for."""
QUERIES = ("limit", "after", "source", "q", "k", "exclude", "at", "around", "strange")
HEAD = (
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
)


@pytest.fixture(scope="module")
def open_server(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    work = Workspace(Path(shutil.copytree(finished, tmp_path_factory.mktemp("asked") / "work")))
    what = served(work, work.run("retro").model)
    with live(what, KEY, allow_writes=True, max_tokens=8, idle_seconds=2.0) as running:
        yield running
        assert running.client.get("/health").json()["status"] == "ok"


def expect_sound(answer: httpx.Response, folder: str) -> None:
    """An answer or an error in OpenAI's shape; never a fault of ours, and nothing of this machine."""
    assert answer.status_code < 500, answer.text
    assert folder not in answer.text
    assert "Traceback" not in answer.text
    assert answer.headers["x-content-type-options"] == "nosniff"
    if answer.status_code >= 400:
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
        assert answer.json()["error"]["message"]
    count("server", "refused" if answer.status_code >= 400 else "read")


@inputs(0.4 * PART)
@given(data=st.data())
def test_bodies(open_server: Live, data: st.DataObject) -> None:
    place = data.draw(st.sampled_from(sorted(BODIES)))
    body = data.draw(changed_json(BODIES[place])).encode(errors="replace")
    answer = open_server.client.post(place, content=body, headers={"Content-Type": "application/json"})
    expect_sound(answer, str(open_server.server.memory.datastore.path))


@inputs(0.25 * PART)
@given(data=st.data())
def test_bytes(open_server: Live, data: st.DataObject) -> None:
    place = data.draw(st.sampled_from(sorted(BODIES)))
    body = data.draw(changed_bytes(json.dumps(BODIES[place]).encode()))
    kind = data.draw(st.sampled_from(["application/json", "text/plain", "", "application/json; charset=x"]))
    answer = open_server.client.post(place, content=body, headers={"Content-Type": kind})
    expect_sound(answer, str(open_server.server.memory.datastore.path))


@inputs(0.25 * PART)
@given(
    place=st.sampled_from(PLACES),
    more=st.text(max_size=20),
    query=st.dictionaries(
        st.sampled_from(QUERIES), st.text(max_size=20) | st.integers().map(str), max_size=3
    ),
    method=st.sampled_from(["GET", "HEAD", "DELETE", "PUT", "OPTIONS", "PATCH"]),
)
def test_addresses(open_server: Live, place: str, more: str, query: dict[str, str], method: str) -> None:
    # What UTF-8 cannot hold is spelled by its bytes.
    tail = quote(more.encode("utf-8", "surrogatepass"), safe="/")
    asked = urlencode({key: value.encode("utf-8", "surrogatepass") for key, value in query.items()})
    answer = open_server.client.request(method, f"{place}{tail}?{asked}")
    if method == "HEAD":
        count("server", "refused" if answer.status_code >= 400 else "read")
        assert answer.status_code < 500
    else:
        expect_sound(answer, str(open_server.server.memory.datastore.path))


# The server's own thread may draw random numbers while a request is drawn here.
@pytest.mark.filterwarnings("ignore:Do not use the `random` module")
@inputs(0.1 * PART)
@given(data=st.data())
def test_raw_requests(open_server: Live, data: st.DataObject) -> None:
    body = json.dumps(COMPLETION).encode()
    request = data.draw(changed_bytes(HEAD + str(len(body)).encode() + b"\r\n\r\n" + body))
    host, port = open_server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as client:
        client.sendall(request)
        # It is not waited for what may never come: half a request is asked for elsewhere.
        client.shutdown(socket.SHUT_WR)
        found = b""
        try:
            while part := client.recv(1 << 16):
                found += part
        except (ConnectionResetError, TimeoutError):
            count("server", "refused")
            return
    count("server", "read" if b"HTTP/1.1 200" in found else "refused")
    assert not found or found.startswith(b"HTTP/1.1 ")
    assert b"HTTP/1.1 5" not in found or b"stopping" in found
    assert b"Traceback" not in found
