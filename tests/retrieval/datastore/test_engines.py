"""A datastore behind each search engine: the same tests for all, and what only an engine can do wrong."""

import re
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retro.errors import ArtifactError, ConfigError
from retro.retrieval.chunks import content_hashes
from retro.retrieval.datastore import Datastore
from retro.retrieval.datastore.elsewhere import EngineSnapshot
from retro.retrieval.datastore.info import describe
from retro.retrieval.datastore.verify import verify
from retro.retrieval.engines import EngineError, Holding
from retro.retrieval.engines.milvus import MilvusEngine
from retro.retrieval.finding import find_neighbours
from retro.retrieval.index import Entries
from retro.retrieval.retriever import Retriever
from retro.retrieval.search import Search
from tests.retrieval.datastores import build, corpus_of, held, make_documents
from tests.sending import Sending

WORDS = ("licence", "warranty", "software", "anyone", "share", "fitness")
ENGINES: dict[str, Callable[[Path], str]] = {
    "local": lambda folder: "local",
    "milvus": lambda folder: f"milvus:{folder / 'milvus.db'}",
    "ray": lambda folder: "ray",
}
"""The address of each kind of engine. Another kind is one more entry."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, text_folder: Path, static_encoder: str) -> Path:
    folder = tmp_path_factory.mktemp("engines")
    work = corpus_of(folder / "work", text_folder)
    build(work, folder / "datastore", static_encoder, target_recall=0.98).close()
    return folder


@pytest.fixture
def plain(built: Path, tmp_path: Path) -> Iterator[Datastore]:
    """The same datastore, searched here."""
    shutil.copytree(built / "datastore", tmp_path / "plain")
    datastore = Datastore.open(tmp_path / "plain")
    yield datastore
    datastore.close()


@pytest.fixture(scope="module")
def filled(built: Path) -> Path:
    """A datastore with its file of Milvus Lite, filled once and copied for every test."""
    pytest.importorskip("milvus_lite")
    folder = built / "filled"
    shutil.copytree(built / "datastore", folder / "datastore")
    datastore = Datastore.open(folder / "datastore")
    datastore.use_engine(ENGINES["milvus"](folder))
    datastore.close()
    return folder


@pytest.fixture
def milvus(filled: Path, tmp_path: Path) -> Iterator[Datastore]:
    shutil.copytree(filled, tmp_path / "copy")
    datastore = Datastore.open(tmp_path / "copy" / "datastore")
    moved = {**datastore.ledger.fact("engine"), "address": ENGINES["milvus"](tmp_path / "copy")}
    with datastore.ledger.transaction():
        datastore.ledger.set_fact("engine", moved)
    datastore.refresh()
    yield datastore
    datastore.close()


@pytest.fixture(scope="module")
def ray_here() -> Iterator[Any]:
    """A real Ray of this machine."""
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield ray
    ray.shutdown()


@pytest.fixture(params=["local", "milvus", pytest.param("ray", marks=pytest.mark.slow)])
def datastore(request: pytest.FixtureRequest, built: Path, tmp_path: Path) -> Iterator[Datastore]:
    if request.param == "milvus":
        yield request.getfixturevalue("milvus")
        return
    if request.param == "ray":
        request.getfixturevalue("ray_here")
    shutil.copytree(built / "datastore", tmp_path / "datastore")
    datastore = Datastore.open(tmp_path / "datastore")
    datastore.use_engine(ENGINES[request.param](tmp_path))
    yield datastore
    datastore.close()


def expect_same(ours: Datastore, theirs: Datastore, k: int = 5, recall: float = 1.0, **filters: Any) -> None:
    """The same neighbours up to the recall of the engine; of equally near ones it may find others."""
    texts = [f"{first} {second}" for first in WORDS for second in WORDS]
    pairs = list(zip(ours.search(texts, k, **filters), theirs.search(texts, k, **filters), strict=True))
    within = [n.distance <= others[-1].distance for mine, others in pairs for n in mine]
    assert np.mean(within) >= recall
    assert all(len(mine) == len(others) > 0 for mine, others in pairs)
    truth = {(n.chunk, row): n.distance for row, (_, others) in enumerate(pairs) for n in others}
    for row, (mine, _) in enumerate(pairs):
        assert not {n.document for n in mine} & {*filters.get("exclude", ())}
        assert {n.source for n in mine} <= {*filters.get("sources", (n.source for n in mine))}
        assert len({n.chunk for n in mine}) == len(mine)
        assert [n.distance for n in mine] == sorted(n.distance for n in mine)
        # To the bit, although the engine rounds in another way.
        assert all(truth.get((n.chunk, row), n.distance) == n.distance for n in mine)


def test_the_neighbours_are_those_of_this_machine(datastore: Datastore, plain: Datastore) -> None:
    assert isinstance(datastore.snapshot(), Search)
    expect_same(datastore, plain)
    expect_same(datastore, plain, k=60)
    expect_same(datastore, plain, exclude=["03.txt", "17.txt"])
    keys = Entries(plain.snapshot().segments[0].keys[:200])
    for mine, others in zip(
        datastore.snapshot().search(keys, 7), plain.snapshot().search(keys, 7), strict=True
    ):
        assert mine.shape == others.shape == (200, 7)
    assert held(datastore) == held(plain)


def test_what_is_added_and_deleted_is_followed(datastore: Datastore, plain: Datastore) -> None:
    for each in (datastore, plain):
        each.add(make_documents(["Anyone may share this. " * 5, "Nothing of the kind. " * 5]))
        each.delete(ids=["more-1", "03.txt"])
    expect_same(datastore, plain, k=20)
    expect_same(datastore, plain, sources=["more"])
    assert held(datastore) == held(plain)
    for each in (datastore, plain):
        each.compact()
        each.add(make_documents(["Without any warranty. " * 5], "late"))
    expect_same(datastore, plain, k=20)
    assert {"more-0", "late-0"} <= held(datastore)
    assert not {"more-1", "03.txt"} & held(datastore)
    verify(datastore)


def test_neighbours_and_retrievers_use_it(
    built: Path, text_folder: Path, datastore: Datastore, plain: Datastore, tmp_path: Path
) -> None:
    store = corpus_of(built / "work", text_folder).store("train")
    ours = find_neighbours(store, datastore, tmp_path / "ours")
    theirs = find_neighbours(store, plain, tmp_path / "theirs")
    within = np.asarray(ours.distances) <= np.asarray(theirs.distances)[:, -1:]
    assert within.all()
    own = ours.snapshot.content_hashes(np.asarray(ours.chunks, dtype=np.int64))
    assert not (own == content_hashes(store)[ours.table.documents][:, None]).any()
    tokens = np.asarray(store.document(2)[:8])
    values, mask = Retriever(datastore).values([tokens], 2)
    assert mask.all()
    assert values[0, 0, :8].tolist() == tokens.tolist()


def test_workers_leave_the_searching_to_an_engine(
    built: Path, text_folder: Path, milvus: Datastore, tmp_path: Path
) -> None:
    sending = Sending()
    store = corpus_of(built / "work", text_folder).store("train")
    here = find_neighbours(store, milvus, tmp_path / "here")
    there = find_neighbours(store, milvus, tmp_path / "there", executor=sending)
    assert not sending.sent
    np.testing.assert_array_equal(here.chunks, there.chunks)


@pytest.mark.slow
def test_threads_search_it_while_it_changes(datastore: Datastore) -> None:
    stop = threading.Event()
    _, entries = datastore.queries(["anyone may share"])

    def search() -> int:
        searches = 0
        while not stop.is_set():
            (found,) = datastore.search_entries(entries, 10)
            assert len(found) == 10
            searches += 1
        return searches

    with ThreadPoolExecutor(3) as pool:
        searching = [pool.submit(search) for _ in range(3)]
        try:
            for number in range(3):
                datastore.add(make_documents(["Anyone may share this. " * 5], first=number))
                datastore.delete(ids=[f"more-{number}"])
        finally:
            stop.set()
        assert all(future.result() > 0 for future in searching)


def test_info_says_which_engine_and_how_well(datastore: Datastore) -> None:
    facts = dict(describe(datastore).facts)
    setting = datastore.engine_setting()
    if setting is None:
        assert facts["searched by"].startswith("1 index (exact)")
    elif setting.holds_files:
        assert re.match(r"ray \(retro_.*recall@10 1\.000, ", facts["searched by"])
        held_by = r"1 part, each held by 2 processes: part 1 on ([\d.]+), \1$"
        assert re.search(held_by, facts["searched by"])
    else:
        assert "milvus.db" in facts["searched by"]
        assert re.search(r"recall@10 (0\.9\d\d|1\.000), .*; up to date", facts["searched by"])


@pytest.mark.slow
def test_a_large_collection_has_a_graph_that_is_tuned(
    milvus: Datastore, plain: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that has outgrown exact search is made anew."""
    setting = milvus.engine_setting()
    assert setting is not None
    assert (setting.effort, setting.recall_at_10) == (0, 1.0)
    monkeypatch.setattr("retro.retrieval.engines.milvus.EXACT_BELOW", 300)
    for each in (milvus, plain):
        each.add(make_documents(["Anyone may share this. " * 5]))
    setting = milvus.engine_setting()
    assert setting is not None
    assert setting.effort >= 32
    assert 0.9 < setting.recall_at_10 <= 1.0
    expect_same(milvus, plain, recall=0.7)  # so many keys are equal here that a graph has holes


def test_an_engine_that_is_a_little_behind_misses_nothing(
    milvus: Datastore, plain: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As between the commit of a change and the end of its way to the engine."""
    with monkeypatch.context() as patch:
        patch.setattr("retro.retrieval.datastore.writer.bring_up_to_date", lambda *_: None)
        milvus.add(make_documents(["Anyone may share this. " * 5]))
        milvus.delete(ids=["03.txt"])
    plain.add(make_documents(["Anyone may share this. " * 5]))
    plain.delete(ids=["03.txt"])
    expect_same(milvus, plain, k=20)
    expect_same(milvus, plain, sources=["more"])
    assert held(milvus) == held(plain)


def test_what_is_deleted_leaves_the_engine_as_well(milvus: Datastore) -> None:
    setting = milvus.engine_setting()
    assert setting is not None
    engine = milvus.engine(setting)
    chunks = milvus.snapshot().segments[0].chunks
    gone = chunks[milvus.snapshot().segments[0].places == 3]
    milvus.delete(ids=["03.txt"])
    holding = engine.holding()
    assert holding is not None
    assert holding.lineage == milvus.snapshot().version.lineage
    found = engine.search(np.zeros((1, 32), dtype=np.float32), len(chunks), 0)[1]
    assert len(gone)
    assert not np.isin(gone, found).any()
    assert (found >= 0).sum() == len(chunks) - len(gone)


def test_where_an_engine_can_give_too_few_the_rest_is_found_here(
    milvus: Datastore, plain: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MilvusEngine, "most", 12)
    expect_same(milvus, plain, k=3)
    expect_same(milvus, plain, k=30)


def test_filters_that_are_too_long_for_an_engine_hold_all_the_same(
    milvus: Datastore, plain: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in (milvus, plain):
        each.add(make_documents(["Anyone may share this. " * 5]))
    monkeypatch.setattr("retro.retrieval.engines.milvus.LONGEST", 0)
    left_out = [f"{number:02d}.txt" for number in range(0, 40, 2)]
    (found,) = milvus.search(["licence"], 40, exclude=left_out)
    assert len(found) == 40
    assert not {neighbour.document for neighbour in found} & {*left_out}
    expect_same(milvus, plain, exclude=left_out)
    expect_same(milvus, plain, sources=["more"])


def test_an_engine_that_is_far_behind_is_refused(milvus: Datastore, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("retro.retrieval.datastore.writer.bring_up_to_date", lambda *_: None)
        milvus.add(make_documents(["Anyone may share this. " * 5]))
    snapshot = milvus.snapshot()
    assert isinstance(snapshot, EngineSnapshot)
    snapshot._max_behind = 3
    with pytest.raises(EngineError, match=r"is at version 1, and lacks 1 document; .*run: retro db engine"):
        milvus.search(["anyone"], 3)


def test_another_datastore_is_neither_searched_nor_overwritten(
    milvus: Datastore, plain: Datastore, tmp_path: Path
) -> None:
    setting = milvus.engine_setting()
    assert setting is not None
    milvus.add(make_documents(["Anyone may share this. " * 5]))
    plain.add(make_documents(["Something else. " * 5]))  # the same beginning, and another end
    with pytest.raises(EngineError, match="holds another datastore; expected none, or that of") as caught:
        plain.use_engine(setting.address)
    assert "\n" not in str(caught.value)
    assert "more-0" in held(milvus)
    with plain.ledger.transaction():
        plain.ledger.set_fact("engine", milvus.ledger.fact("engine"))
    plain.refresh()
    with pytest.raises(EngineError, match="holds another datastore; expected version 2 of"):
        plain.search(["anyone"], 3)
    plain.use_engine(setting.address, "another_one")
    assert plain.search(["anyone"], 3)[0]
    assert milvus.search(["anyone"], 3)[0]


def test_other_keys_under_the_same_name_are_noticed(milvus: Datastore) -> None:
    setting = milvus.engine_setting()
    assert setting is not None
    engine = milvus.engine(setting)
    snapshot = milvus.snapshot()
    (segment,) = snapshot.segments
    engine.put(segment.chunks, segment.documents["number"][segment.places], segment.keys[::-1])
    with pytest.raises(EngineError, match="has other keys than this datastore"):
        for start in range(0, 200, 10):
            snapshot.search(Entries(segment.keys[start : start + 10]), 3)


def test_a_fill_that_was_cut_off_is_told_and_done_again(
    milvus: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = milvus.engine_setting()
    assert setting is not None
    engine = milvus.engine(setting)
    first = milvus.ledger.versions()[0].lineage
    engine.begin(32, 1000, Holding(first, ""))
    milvus.refresh()
    with pytest.raises(EngineError, match="was not filled to its end"):
        milvus.search(["anyone"], 3)
    milvus.use_engine(setting.address)
    assert milvus.search(["anyone"], 3)[0]


def test_an_engine_that_is_lost_is_one_clear_line(milvus: Datastore, monkeypatch: pytest.MonkeyPatch) -> None:
    assert milvus.search(["anyone"], 3)[0]
    setting = milvus.engine_setting()
    assert setting is not None
    engine = milvus.engine(setting)
    assert isinstance(engine, MilvusEngine)
    with monkeypatch.context() as patch:
        patch.setattr(engine._client, "search", lost)
        with pytest.raises(
            EngineError, match=r"does not answer \(socket closed\); .*run: retro db engine"
        ) as caught:
            milvus.search(["anyone"], 3)
        assert "\n" not in str(caught.value)
    assert milvus.search(["anyone"], 3)[0]
    with monkeypatch.context() as patch:
        patch.setattr(engine._client, "upsert", lost)
        with pytest.raises(EngineError, match=r"version 2 is committed, but Milvus at .* does not answer"):
            milvus.add(make_documents(["Anyone may share this. " * 5]))
    assert "more-0" in held(milvus)  # nothing is lost meanwhile
    engine._client.drop_collection(setting.collection)
    milvus.refresh()
    with pytest.raises(EngineError, match=r"does not exist; expected version 2 of .*run: retro db engine"):
        milvus.search(["anyone"], 3)
    assert verify(milvus).keys
    assert "does not exist" in dict(describe(milvus).facts)["searched by"]
    milvus.use_engine("local")
    assert "more-0" in held(milvus)


def lost(*_: Any, **__: Any) -> None:
    raise ConnectionError("socket\n closed")


def test_what_is_no_engine_is_named(plain: Datastore, tmp_path: Path) -> None:
    for address in ("elastic:http://x", "milvus:", "http://x:1"):
        with pytest.raises(ConfigError, match="is no search engine; expected local, or one of milvus:WHERE"):
            plain.use_engine(address)
    with pytest.raises(ConfigError, match=r"is no place of Milvus; expected an address .* \.db"):
        plain.use_engine("milvus:somewhere")
    pytest.importorskip("milvus_lite")
    with pytest.raises(EngineError, match=r"does not answer \(.*not exists\)"):
        plain.use_engine(f"milvus:{tmp_path}/nowhere/milvus.db")
    assert plain.engine_setting() is None
    assert plain.search(["anyone"], 3)[0]
    with plain.ledger.transaction():
        plain.ledger.set_fact("engine", {"address": 7})
    with pytest.raises((ArtifactError, ConfigError), match="engine"):
        Datastore.open(plain.path)
