"""Threads of one process: none waits for another, and each search is of one version."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retro.corpus.documents import Document
from retro.retrieval.datastore import Datastore
from retro.retrieval.datastore.ledger import CompactedError
from retro.retrieval.retriever import Retriever
from retro.retrieval.search import Search
from tests.retrieval.datastores import build, corpus_of, held, make_documents

SECONDS = 20.0
"""How long one thread waits for the other before the test fails."""


@pytest.fixture
def datastore(tmp_path: Path, text_folder: Path, static_encoder: str) -> Datastore:
    work = corpus_of(tmp_path / "work", text_folder)
    return build(work, tmp_path / "datastore", static_encoder, segment_chunks=200)


def meeting(function: Callable[..., Any], num_threads: int = 2) -> Callable[..., Any]:
    """The function, within which so many threads wait for each other."""
    barrier = threading.Barrier(num_threads, timeout=SECONDS)

    def wrapped(*arguments: Any, **named: Any) -> Any:
        barrier.wait()
        return function(*arguments, **named)

    return wrapped


def together(*works: Callable[[], Any]) -> list[Any]:
    with ThreadPoolExecutor(len(works)) as pool:
        return [future.result() for future in [pool.submit(work) for work in works]]


def test_two_searches_scan_a_segment_at_the_same_time(
    datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = datastore.snapshot().segments[0].index
    expected = datastore.search(["anyone may share"], 3)
    monkeypatch.setattr(index, "search", meeting(index.search))
    found = together(*[lambda: datastore.search(["anyone may share"], 3)] * 2)
    for one in found:
        assert [n.chunk for n in one[0]] == [n.chunk for n in expected[0]]


def test_searches_find_the_same_alone_and_together(datastore: Datastore) -> None:
    chunks = datastore.snapshot().values(np.arange(40), 8)
    alone = [datastore.search([chunk], 3) for chunk in chunks]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda chunk: datastore.search([chunk], 3), chunks))
    for (one,), (other,) in zip(alone, together, strict=True):
        assert [(n.chunk, n.distance) for n in one] == [(n.chunk, n.distance) for n in other]


def test_two_retrievers_scan_at_the_same_time(datastore: Datastore, monkeypatch: pytest.MonkeyPatch) -> None:
    index = datastore.snapshot().segments[0].index
    chunk = datastore.snapshot().values(np.array([3]), 8)[0]
    monkeypatch.setattr(index, "search", meeting(index.search))
    found = together(*[lambda: Retriever(datastore).values([chunk], 2)] * 2)
    assert np.array_equal(found[0][0], found[1][0])


def test_two_searches_embed_at_the_same_time(datastore: Datastore, monkeypatch: pytest.MonkeyPatch) -> None:
    chunk = datastore.snapshot().values(np.array([3]), 8)[0]
    monkeypatch.setattr(datastore.embedder, "embed", meeting(datastore.embedder.embed, 3))
    together(
        lambda: datastore.search(["anyone may share"], 3),
        lambda: Retriever(datastore).search([chunk], 3),
        lambda: Retriever(datastore).values([chunk], 3),
    )


def test_a_reader_does_not_wait_for_a_transaction_of_a_writer(datastore: Datastore) -> None:
    before = held(datastore)
    done = threading.Event()

    def read() -> set[str]:
        found = held(datastore)
        done.set()
        return found

    with ThreadPoolExecutor(1) as pool, datastore.ledger.transaction():
        datastore.ledger.set_fact("note", 1)
        reading = pool.submit(read)
        assert done.wait(SECONDS)
        assert reading.result() == before


def test_every_search_beside_a_writer_is_of_one_version(datastore: Datastore) -> None:
    """Eight threads search while another changes the datastore: each result is what one version holds."""
    now = held(datastore)
    versions = {datastore.ledger.version().number: now}
    stop = threading.Event()

    def search() -> list[tuple[int, set[str], int]]:
        seen = []
        while not stop.is_set():
            first = datastore.ledger.version().number
            found = held(datastore)
            seen.append((first, found, datastore.ledger.version().number))
        return seen

    def change(now: set[str] = now) -> None:
        try:
            for number in range(8):
                added = make_documents(["Anyone may share this. " * 5] * 2, first=2 * number)
                now = now | {document.id for document in added}
                versions[datastore.add(added)] = now
                now = now - {added[0].id}
                datastore.delete(ids=[added[0].id])
                versions[datastore.ledger.version().number] = now
                if number % 2:
                    versions[datastore.compact()] = now
        finally:
            stop.set()

    *results, _ = together(*[search] * 8, change)
    seen = [row for rows in results for row in rows]
    assert len({frozenset(found) for _, found, _ in seen}) > 3
    for first, found, last in seen:
        # Nothing that was deleted before the search began, and nothing of two versions at once.
        assert any(found == versions[number] for number in range(first, last + 1))


def ids(datastore: Datastore, version: Search, **filters: Any) -> set[str]:
    _, entries = datastore.queries(["anyone may share"])
    (found,) = datastore.search_version(version, entries, 100_000, **filters)
    return {neighbour.document for neighbour in found}


def test_a_stale_snapshot_gets_no_answer_of_a_newer_ledger(datastore: Datastore) -> None:
    texts = ["Anyone may share this. " * 5] * 2
    datastore.add(make_documents(texts, "first"))
    old = datastore.snapshot()
    datastore.delete(ids=["first-0"])
    datastore.add([Document("late", texts[0], "first")])
    assert ids(datastore, old, sources=["first"]) == {"first-0", "first-1"}
    assert ids(datastore, datastore.snapshot(), sources=["first"]) == {"first-1", "late"}
    assert "first-0" in ids(datastore, old)
    datastore.compact()
    for filters in ({}, {"sources": ["first"]}):
        with pytest.raises(
            CompactedError, match=r"has been compacted since version \d+; .*open the datastore again"
        ):
            ids(datastore, old, **filters)
    assert ids(datastore, datastore.snapshot(), sources=["first"]) == {"first-1", "late"}


def test_a_search_that_a_compaction_overtakes_is_done_again(
    datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger has lost rows that the scanned snapshot still held."""
    datastore.add(make_documents(["Anyone may share this. " * 5] * 2, "first"))
    old = datastore.snapshot()
    scan = old.search

    def overtaken(*arguments: Any) -> Any:
        found = scan(*arguments)
        datastore.delete(ids=["first-0"])
        datastore.compact()
        return found

    monkeypatch.setattr(old, "search", overtaken)
    assert {n.document for n in datastore.search(["anyone"], 100_000, sources=["first"])[0]} == {"first-1"}
