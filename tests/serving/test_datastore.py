"""The datastore while it serves: it is read, grows, forgets, is compacted, and is taken away."""

import json
import shutil
import threading
import time
from itertools import pairwise
from typing import Any

import pytest

from retro.config.serve import ServeConfig
from retro.retrieval.datastore import Datastore
from retro.workspace import Workspace
from tests.serving.live import KEY, Live

NASTY = (
    "<script>alert(1)</script> <img src=x onerror=alert(2)> </textarea>\u202etxt.exe\u202c \x00\x07\x1b[31m "
    "&amp; \"quoted\" 'single' {{template}} ${code}\n"
) * 4
ASKED: dict[str, Any] = {"temperature": 0, "max_tokens": 20, "min_tokens": 20}


def documents_read(answer: dict[str, Any]) -> set[str]:
    chunks = answer["choices"][0]["retro"]["chunks"]
    return {neighbour["document"] for chunk in chunks for neighbour in chunk["neighbours"]}


def test_documents_are_listed_page_by_page(server: Live) -> None:
    first = server.client.get("/sources?limit=20").json()
    second = server.client.get(f"/sources.json?limit=20&after={first['next']}").json()
    assert first["total"] == second["total"] == len(first["data"]) + len(second["data"])
    assert second["next"] is None
    ids = [row["id"] for row in first["data"] + second["data"]]
    assert len(set(ids)) == len(ids)
    found = server.client.get("/sources", params={"q": "03.tx"}).json()
    assert [row["id"] for row in found["data"]] == ["03.txt"]
    assert server.client.get("/sources", params={"q": "%"}).json()["total"] == 0
    assert server.client.get("/sources?after=x").status_code == 400
    assert server.client.get("/sources?source=nowhere").json()["data"] == []


def test_a_document_is_read_whole_and_around_a_place(server: Live, texts: list[str]) -> None:
    row = server.client.get("/sources", params={"q": "03.txt"}).json()["data"][0]
    whole = server.client.get(f"/sources/{row['document']}").json()
    assert whole["text"] == texts[3]
    assert (whole["start"], whole["previous"], whole["following"]) == (0, None, None)
    assert server.client.get("/sources/03.txt").json() == whole
    assert server.client.get("/sources/03.txt.json").json() == whole
    part = server.client.get("/sources/03.txt", params={"at": 101, "around": 32}).json()
    assert part["start"] <= 96 < part["end"]
    marked = part["text"][part["marked_start"] : part["marked_end"]]
    tokenizer = server.server.served.tokenizer
    assert marked == tokenizer.decode(tokenizer.encode(texts[3])[96:104])
    # From part to part the whole document can be read.
    text, place = "", f"/sources/{row['document']}?at=0&around=32"
    seen = []
    while place is not None:
        found = server.client.get(place).json()
        seen.append((found["start"], found["end"]))
        text += found["text"]
        place = found["following"]
    assert text == texts[3]
    assert all(end == start for (_, end), (start, _) in pairwise(seen))
    assert server.client.get("/sources/nothing").status_code == 404
    assert server.client.get("/sources/..%2f..%2fetc%2fpasswd").status_code == 404


def test_a_browser_gets_the_page_for_a_document(server: Live) -> None:
    answer = server.client.get("/sources/03.txt", headers={"Accept": "text/html,application/xhtml+xml"})
    assert answer.headers["content-type"].startswith("text/html")
    twin = server.client.get("/sources/03.txt.json", headers={"Accept": "text/html"})
    assert twin.json()["id"] == "03.txt"


def test_a_search_is_that_of_the_datastore(server: Live, small_work: Workspace, texts: list[str]) -> None:
    found = server.client.get("/search", params={"q": texts[5][20:60], "k": 3}).json()
    expected = small_work.datastore().search([texts[5][20:60]], 3)[0]
    assert [row["id"] for row in found["results"]] == [neighbour.document for neighbour in expected]
    left = server.client.get(
        "/search.json", params={"q": texts[5][20:60], "k": 3, "exclude": found["results"][0]["document"]}
    ).json()
    assert found["results"][0]["document"] not in [row["document"] for row in left["results"]]
    assert server.client.get("/search", params={"q": "x", "source": "nowhere"}).status_code == 400
    assert server.client.get("/search").status_code == 400
    assert server.client.get("/search?q=x&k=1000").status_code == 400


def test_nothing_is_written_unless_that_is_switched_on(server: Live) -> None:
    for answer in (
        server.client.post("/documents", json={"text": "A new text"}),
        server.client.delete("/documents/03.txt"),
    ):
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "read_only")


def test_a_new_document_is_read_by_the_next_request_and_a_deleted_one_by_none(
    writable: Live, texts: list[str]
) -> None:
    prompt = texts[0][:80]
    new = writable.client.post("/documents", json={"text": prompt + texts[0][80:], "title": "New"})
    # It has the text of another: it is one document more, with the same content hash.
    assert new.status_code == 201
    added = writable.client.post("/documents", json={"text": prompt + " and more of it", "title": "More"})
    name = added.json()["document"]
    assert name in documents_read(writable.complete(prompt, retro={"num_neighbours": 40}, **ASKED))
    assert writable.client.get(added.json()["url"]).json()["title"] == "More"
    deleted = writable.client.delete(f"/documents/{name}").json()
    assert deleted["deleted"] == 1
    assert deleted["version"] > added.json()["version"]
    assert name not in documents_read(writable.complete(prompt, retro={"num_neighbours": 40}, **ASKED))
    assert writable.client.get(f"/sources/{name}").status_code == 404
    assert writable.client.delete(f"/documents/{name}").status_code == 404
    found = writable.client.get("/search", params={"q": prompt, "k": 50}).json()
    assert name not in [row["document"] for row in found["results"]]
    # All copies of a text go together.
    assert writable.client.delete(f"/documents/{new.json()['document']}").json()["deleted"] == 2
    again = writable.client.post("/documents", json={"text": "x y", "id": "twice"})
    assert again.status_code == 201
    assert writable.client.post("/documents", json={"text": "x z", "id": "twice"}).status_code == 400


def test_markup_and_control_characters_stay_what_they_are(writable: Live) -> None:
    added = writable.client.post(
        "/documents", json={"text": NASTY, "title": "<b>Nasty</b>\u202e", "id": "n/a"}
    )
    name = added.json()["document"]
    answer = writable.client.get(f"/sources/{name}")
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.json()["text"] == NASTY
    assert writable.client.get("/sources/n%2Fa").json()["title"] == "<b>Nasty</b>\u202e"
    for body in ({"text": " \n"}, {"text": "a\ud800"}, {"text": ""}, {"text": "x", "source": ""}):
        refused = writable.client.post(
            "/documents", content=json.dumps(body), headers={"Content-Type": "application/json"}
        )
        assert refused.status_code == 400, body


def test_an_answer_under_way_reads_a_deleted_document_no_more_and_shows_nothing_of_it(
    writable: Live, texts: list[str]
) -> None:
    """From its next chunk on; and at its end, what it has read before is not shown."""
    prompt = texts[0][:80]
    first = writable.complete(prompt, retro={"num_neighbours": 1}, **ASKED)
    victim = first["choices"][0]["retro"]["chunks"][0]["neighbours"][0]
    body = {"prompt": prompt, "stream": True, "max_tokens": 600, "min_tokens": 600, "temperature": 0}
    body["retro"] = {"num_neighbours": 1}
    begun, last, deleted_at = [], {}, None
    with writable.client.stream("POST", "/v1/completions", json=body) as answer:
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                continue
            record = json.loads(line.removeprefix("data: "))
            choice = record["choices"][0]
            if "retro_chunk" in choice:
                begun.append(choice["retro_chunk"])
                if deleted_at is None:
                    assert begun[0]["neighbours"][0]["document"] == victim["document"]
                    assert writable.client.delete(f"/documents/{victim['document']}").status_code == 200
                    deleted_at = writable.server.engine.counts.tokens
            last = record
    # Where the engine was when the deletion was done, one more chunk may have been under way.
    assert deleted_at is not None
    written = deleted_at - 20
    late = [chunk for chunk in begun if chunk["first_token"] > written + 8]
    assert late
    assert all(chunk["neighbours"][0]["document"] != victim["document"] for chunk in late)
    retro = last["choices"][0]["retro"]
    gone = retro["chunks"][0]["neighbours"][0]
    assert (gone["deleted"], gone["text"], gone["title"], gone["document"]) == (True, "", "", "")
    assert victim["document"] not in json.dumps(last)


def test_it_is_compacted_while_it_serves(writable: Live, own_work: Workspace, texts: list[str]) -> None:
    """By another process, as far as the server can tell."""
    other = Datastore.open(own_work.datastore_path)
    stop, faults = threading.Event(), []

    def ask() -> None:
        while not stop.is_set():
            try:
                writable.complete(texts[1][:60], **ASKED)
            except AssertionError as error:
                faults.append(error)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(4):
        other.delete(ids=[f"{number + 2:02d}.txt"] if number != 1 else ["07.txt"])
        other.compact()
        time.sleep(0.1)
    stop.set()
    for thread in threads:
        thread.join()
    assert not faults
    # Named documents that are gone for good are no error: they cannot be read anyway.
    answer = writable.complete(texts[1][:60], retro={"exclude": ["02.txt"]}, **ASKED)
    assert "not in the datastore" in answer["choices"][0]["retro"]["notes"][0]
    other.close()


def test_without_its_datastore_the_server_goes_on(
    writable: Live, own_work: Workspace, texts: list[str]
) -> None:
    assert writable.complete(texts[1][:60], **ASKED)
    shutil.rmtree(own_work.datastore_path)
    answer = writable.client.post("/v1/completions", json={"prompt": texts[1][:60], **ASKED})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "datastore_unavailable")
    assert "retry-after" in answer.headers
    named = {"prompt": texts[1][:60], "retro": {"sources": ["texts0"], "exclude": ["03.txt"]}, **ASKED}
    assert writable.client.post("/v1/completions", json=named).status_code == 503
    for place in ("/sources", "/sources/03.txt", "/search?q=x", "/info"):
        assert writable.client.get(place).status_code == 503, place
    assert writable.client.post("/documents", json={"text": "x"}).status_code == 503
    assert writable.text(texts[1][:60], retro={"retrieval": False}, **ASKED)
    assert writable.client.get("/health").json()["status"] == "ok"


def test_a_key_is_needed_to_write_even_here(writable: Live) -> None:
    headers = {"Authorization": "Bearer wrong"}
    assert writable.client.delete("/documents/03.txt", headers=headers).status_code == 401
    assert writable.client.post("/documents", json={"text": "x"}, headers=headers).status_code == 401
    assert writable.client.get("/sources", headers=headers).status_code == 200


def test_a_large_document_is_refused(writable: Live) -> None:
    most = ServeConfig().max_document
    answer = writable.client.post("/documents", json={"text": "word " * (most // 5 + 10)})
    assert answer.status_code == 413
    assert KEY not in answer.text


@pytest.mark.parametrize("place", ["/documents", "/documents/x/y"])
def test_writing_has_no_other_way(writable: Live, place: str) -> None:
    assert writable.client.put(place, json={}).status_code in (401, 404, 405)
