"""What is added is merged and indexed by itself, and searches stay searches of few indexes."""

import random
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retro.config import DatastoreConfig
from retro.corpus.folder import CorpusFolder
from retro.errors import ArtifactError
from retro.retrieval.datastore import Datastore, joint, merging, scanning
from retro.retrieval.datastore.build import build_datastore, sync_datastore
from retro.retrieval.datastore.merging import Merge, SegmentState, next_merge
from retro.retrieval.datastore.verify import verify
from retro.retrieval.finding import find_neighbours
from retro.retrieval.index import Entries, quantiser
from retro.retrieval.index.compressed import CompressedIndex
from retro.stages.executor import LocalExecutor
from retro.stages.files import file_checksum
from tests.retrieval.datastores import build, config_of, corpus_of, held, make_documents
from tests.sending import Sending

CONFIG = DatastoreConfig(segment_chunks=1000, exact_below=200)
SMALL: dict[str, Any] = {"segment_chunks": 400, "exact_below": 300}
"""Settings with which a few documents outgrow a segment."""


def waiting(*sizes: int) -> list[SegmentState]:
    return [SegmentState(size, size, is_linear=True, is_joined=False) for size in sizes]


def joined(*sizes: int) -> list[SegmentState]:
    return [SegmentState(size, size, is_linear=True, is_joined=True) for size in sizes]


def graph(size: int) -> SegmentState:
    return SegmentState(size, size, is_linear=False, is_joined=False)


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ([], None),
        (waiting(*[5] * 7), None),
        (waiting(*[5] * 8), Merge((tuple(range(8)),))),
        (waiting(1, *[10] * 8), Merge((tuple(range(9)),))),  # smaller ones go along
        (waiting(*[5] * 7, 10), None),
        ([graph(700), *waiting(150)], None),
        ([graph(700), *waiting(150, 60)], Merge(((0, 1, 2),), is_indexed=True)),
        ([graph(900), *waiting(150, 60)], Merge(((1, 2),), joins=True)),
        ([*joined(900, 900), *waiting(190)], None),
        ([*joined(900, 900), *waiting(190, 20)], Merge(((2, 3),), joins=True)),
        ([*joined(900, *[60] * 8), *waiting(200)], Merge((tuple(range(1, 9)),), joins=True)),
        (waiting(900, 900, 900), Merge((), joins=True)),
    ],
)
def test_what_is_worthwhile(
    states: list[SegmentState], expected: Merge | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert next_merge(states, CONFIG) == expected


def test_other_kinds_of_index_are_left_to_compact() -> None:
    for kind in ("bm25", "hybrid", "scann", "HNSW24", "IVF16,Flat"):
        config = DatastoreConfig(segment_chunks=1000, exact_below=200, index=kind)
        assert next_merge(waiting(*[900] * 20), config) is None


@pytest.fixture(scope="module")
def sentences() -> list[str]:
    """Forty sentences of common words, of which no two are alike."""
    rng = random.Random(3)
    words = "the licence permits anyone to use copy modify and share this software"
    return [" ".join(rng.choices(words.split(), k=14)) + ".\n" for _ in range(40)]


@pytest.fixture(scope="module")
def built(
    tmp_path_factory: pytest.TempPathFactory, sentences: list[str], static_encoder: str
) -> Iterator[Path]:
    """A workspace of 900 chunks, and its datastore in three segments below one index."""
    folder = tmp_path_factory.mktemp("merging")
    rng = random.Random(4)
    (folder / "texts").mkdir()
    for number in range(30):
        text = f"Text {number}\n" + "".join(rng.choices(sentences, k=12))
        (folder / "texts" / f"{number:02d}.txt").write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merging, "MIN_JOINED", 300)
        work = corpus_of(folder / "work", folder / "texts")
        build(work, folder / "datastore", static_encoder, **SMALL).close()
        yield folder


@pytest.fixture
def datastore(built: Path, tmp_path: Path) -> Datastore:
    shutil.copytree(built / "datastore", tmp_path / "datastore")
    return Datastore.open(tmp_path / "datastore")


def texts_of(sentences: list[str], count: int, seed: int, length: int = 2) -> list[str]:
    rng = random.Random(seed)
    return ["".join(rng.choices(sentences, k=length)) for _ in range(count)]


def recall(datastore: Datastore, exact: Datastore) -> float:
    """The part of the exactly nearest ten that is found; equally near ones count."""
    snapshot, truth = datastore.snapshot(), exact.snapshot()
    keys = np.concatenate([segment.keys for segment in snapshot.segments])
    found, _ = snapshot.search(Entries(keys), 10)
    limits, _ = truth.search(Entries(keys), 10)
    return float((found <= limits[:, -1:]).mean())


def test_a_build_of_many_segments_ends_in_one_index(
    built: Path, datastore: Datastore, static_encoder: str, tmp_path: Path
) -> None:
    snapshot = datastore.snapshot()
    assert len(snapshot.segments) >= 3
    assert [len(part.segments) for part in snapshot.indexed] == [len(snapshot.segments)]
    assert snapshot.kinds[0].startswith("OPQ")
    whole = build(CorpusFolder(built / "work"), tmp_path / "whole", static_encoder)
    assert len(snapshot) == len(whole) >= 800
    assert recall(datastore, whole) >= 0.95
    assert np.array_equal(snapshot.values(np.arange(50)), whole.snapshot().values(np.arange(50)))
    assert verify(datastore).files > 5 * len(snapshot.segments)  # those of the index as well
    report = datastore.ledger.indexes()[0].report["index"]
    assert report["recall_at_10"] >= 0.9
    # A segment that is never searched by itself is not measured by itself.
    rows = [row for row in datastore.ledger.segments() if row.report["keys"] >= SMALL["exact_below"]]
    assert rows
    assert all(row.report["index"] == {"kind": "exact"} for row in rows)


def test_a_datastore_of_graphs_is_searched_as_it_is_and_joined_by_compact(
    built: Path, static_encoder: str, tmp_path: Path
) -> None:
    """As it was before one index could be over several segments: the ledger had no table for such."""
    work = CorpusFolder(built / "work")
    old = build(work, tmp_path / "old", static_encoder, **SMALL, index="HNSW24")
    with old.ledger.transaction():
        old.ledger.set_fact("config", {**old.ledger.fact("config"), "index": "auto"})
    before = old.search(["licence", "software to share"], 10)
    old.close()
    opened = Datastore.open(tmp_path / "old")
    assert {part.index.kind for part in opened.snapshot().indexed} == {"HNSW24"}
    assert opened.ledger.indexes() == []
    found = opened.search(["licence", "software to share"], 10)
    assert [[(n.chunk, n.distance) for n in row] for row in found] == [
        [(n.chunk, n.distance) for n in row] for row in before
    ]
    lineage = opened.snapshot().version.lineage
    opened.compact()
    assert len(opened.snapshot().indexed) == 1
    assert opened.snapshot().kinds[0].startswith("OPQ")
    assert opened.snapshot().version.lineage == lineage
    assert held(opened) == {f"{number:02d}.txt" for number in range(30)}
    verify(opened)


def test_what_is_added_is_indexed_when_it_is_worthwhile(
    datastore: Datastore, sentences: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much is added and how often, a search looks through one index and a few keys more."""
    before = held(datastore)
    lists = datastore.snapshot().joint.index.num_lists  # type: ignore[union-attr]
    monkeypatch.setattr(quantiser, "train", None)  # the index is extended, not trained again
    added = 0
    for number in range(16):
        documents = make_documents(texts_of(sentences, 4, number), first=4 * number)
        version = datastore.add(documents)
        assert datastore.ledger.versions()[version - 1].action == "add"
        added += 4
        parts = datastore.snapshot().indexed
        assert sum(len(part) for part in parts[1:]) < SMALL["exact_below"]
        assert len(parts) <= 1 + 2 * merging.FEW
    assert held(datastore) == before | {f"more-{number}" for number in range(added)}
    actions = [version.action for version in datastore.ledger.versions()]
    assert actions.count("merge") >= 3
    assert len(datastore.snapshot().segments) < 16
    assert datastore.snapshot().joint.index.num_lists == lists  # type: ignore[union-attr]
    verify(datastore)


def test_workers_search_the_same_joint_index(
    built: Path, datastore: Datastore, sentences: list[str], tmp_path: Path
) -> None:
    datastore.add(make_documents(texts_of(sentences, 3, 1)))
    datastore.delete(ids=["03.txt"])
    store = CorpusFolder(built / "work").store("train")
    assert datastore.snapshot().joint is not None
    here = find_neighbours(store, datastore, tmp_path / "here")
    there = find_neighbours(store, datastore, tmp_path / "there", executor=Sending())
    np.testing.assert_array_equal(here.chunks, there.chunks)
    np.testing.assert_array_equal(here.distances, there.distances)
    assert (np.asarray(here.chunks) >= 0).any()


def test_a_graph_is_extended_while_all_fits_a_segment(
    built: Path, static_encoder: str, sentences: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = CorpusFolder(built / "work")
    datastore = build(work, tmp_path / "datastore", static_encoder, exact_below=300)
    (segment,) = datastore.snapshot().segments
    assert segment.index.kind == "HNSW24"
    linked: list[int] = []
    add = type(segment.index).add
    monkeypatch.setattr(
        type(segment.index),
        "add",
        lambda self, entries: (linked.append(len(entries)), add(self, entries))[1],  # type: ignore[func-returns-value]
    )
    datastore.add(make_documents(texts_of(sentences, 20, 1)))
    assert [part.index.kind for part in datastore.snapshot().indexed] == ["HNSW24", "exact"]
    datastore.add(make_documents(texts_of(sentences, 40, 2), "others"))
    assert [part.index.kind for part in datastore.snapshot().indexed] == ["HNSW24"]
    assert len(linked) == 1
    assert linked[0] < len(datastore) / 2
    exact = build(work, tmp_path / "exact", static_encoder)
    exact.add(make_documents(texts_of(sentences, 20, 1)))
    exact.add(make_documents(texts_of(sentences, 40, 2), "others"))
    assert recall(datastore, exact) >= 0.95
    verify(datastore)


def test_deleted_documents_are_never_found_by_the_joint_index(
    datastore: Datastore, sentences: list[str]
) -> None:
    gone = ["03.txt", "17.txt"]
    everything = held(datastore)
    datastore.delete(ids=gone)
    assert held(datastore) == everything - set(gone)
    (found,) = datastore.search([sentences[0]], 50, exclude=["05.txt"])
    assert not {neighbour.document for neighbour in found} & {*gone, "05.txt"}
    datastore.add(make_documents(texts_of(sentences, 60, 1)))  # joins what was added
    assert not held(datastore) & set(gone)
    secret = datastore.ledger.rows("SELECT title FROM documents WHERE deleted IS NOT NULL")
    assert len(secret) == len(gone)
    datastore.compact()
    assert datastore.ledger.num_deleted() == 0
    assert len(datastore.snapshot().indexed) == 1
    assert held(datastore) == everything - set(gone) | {f"more-{number}" for number in range(60)}
    verify(datastore)


def test_every_key_keeps_its_code_through_compactions_and_merges(
    datastore: Datastore, sentences: list[str]
) -> None:
    """Segments that are written anew come after others that are newer: rows are in no order of chunks."""
    datastore.delete(ids=["03.txt"])
    datastore.compact()
    datastore.add(make_documents(texts_of(sentences, 60, 1)))
    joined = datastore.snapshot().joint
    assert joined is not None
    assert (np.diff(joined.chunks()) < 0).any()
    assert isinstance(joined.index, CompressedIndex)
    kept, made = joined.index.codes(), joined.index.encode(joined.index.keys[:])
    # Equal keys make equal entries of the tables, of which any may be taken: compared is what they stand for.
    decode = joined.index._index.sa_decode  # type: ignore[union-attr]
    np.testing.assert_allclose(decode(kept), decode(made), atol=1e-3)


def test_rows_of_documents_that_a_merge_dropped_are_compacted(datastore: Datastore) -> None:
    # Nothing else is left to do for `compact` then.
    datastore.delete(ids=sorted(held(datastore)))
    datastore.compact()
    for number in range(merging.FEW):
        datastore.add(make_documents(["Some words."], f"source-{number}"))
        if number < 2:
            datastore.delete(sources=[f"source-{number}"])
    assert datastore.ledger.version().action == "merge"
    assert datastore.ledger.num_deleted() == 2
    datastore.compact()
    assert datastore.ledger.num_deleted() == 0
    assert "source-0-0" not in held(datastore)


def test_neighbours_are_brought_up_to_date_across_merges(
    built: Path, datastore: Datastore, sentences: list[str], tmp_path: Path
) -> None:
    store = CorpusFolder(built / "work").store("train")
    find_neighbours(store, datastore, tmp_path / "neighbours")
    datastore.add(make_documents(texts_of(sentences, 60, 1)))
    assert datastore.ledger.version().action == "merge"
    updated = find_neighbours(store, datastore, tmp_path / "neighbours")
    assert updated.artifact.counts["searched"] < len(updated.chunks) / 2
    anew = find_neighbours(store, datastore, tmp_path / "anew")
    assert np.mean(np.asarray(updated.distances) == np.asarray(anew.distances)) > 0.9


class Threads:
    """An executor that finishes items in any order."""

    def map(self, function: Callable[..., Any], items: Iterable[Any]) -> Iterator[Any]:
        with ThreadPoolExecutor(3) as pool:
            yield from pool.map(function, list(items))

    def needs(self, work: Path | None, *sources: Path) -> None: ...

    def close(self) -> None: ...


class Encoding(Sending):
    """Sends everything, and knows which keys it was to encode."""

    def __init__(self) -> None:
        super().__init__()
        self.encoded: list[tuple[str, int, int]] = []

    def map(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        is_encoding = getattr(function, "func", None) is joint._encode
        for item in items:
            if is_encoding:
                self.encoded.append(item)
            yield from super().map(function, [item])


def files_of(datastore: Datastore) -> dict[str, str]:
    """Checksums of everything but what holds measured speeds."""
    files = (file for file in datastore.path.rglob("*") if file.is_file())
    return {
        str(file.relative_to(datastore.path)): file_checksum(file)
        for file in files
        if "catalogue" not in file.name and file.name != "index.json"
    }


def test_an_interrupted_index_goes_on_and_is_the_same(
    built: Path, datastore: Datastore, static_encoder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever executor encodes, and however often it is interrupted."""
    work = CorpusFolder(built / "work")
    stores = [work.store("train")]
    config = config_of(static_encoder, **SMALL)
    path = tmp_path / "again"
    encode = joint._encode
    calls: list[Any] = []

    def failing(trained: str, shard: Any) -> np.ndarray:
        calls.append(shard)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return encode(trained, shard)

    monkeypatch.setattr(joint, "_encode", failing)
    with pytest.raises(KeyboardInterrupt):
        build_datastore(stores, work.tokenizer_path, path, config)
    assert not path.exists()
    monkeypatch.setattr(quantiser, "train", None)  # the training was kept, and the first shard
    again = build_datastore(stores, work.tokenizer_path, path, config, executor=Threads())
    assert len(calls) == len(again.snapshot().segments) + 1
    assert files_of(again) == files_of(datastore)


@pytest.mark.slow
def test_codes_made_by_other_processes_are_the_same(
    built: Path, datastore: Datastore, static_encoder: str, tmp_path: Path
) -> None:
    work = CorpusFolder(built / "work")
    executor = LocalExecutor(2)
    try:
        again = build_datastore(
            [work.store("train")],
            work.tokenizer_path,
            tmp_path / "again",
            config_of(static_encoder, **SMALL),
            executor=executor,
        )
    finally:
        executor.close()
    assert files_of(again) == files_of(datastore)


def test_codes_are_made_wherever_the_executor_runs_in_every_change(
    built: Path, datastore: Datastore, sentences: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Additions and compactions make the same files as one process, byte for byte."""
    monkeypatch.setattr(joint, "BLOCK", 100)
    shutil.copytree(datastore.path, tmp_path / "elsewhere")
    elsewhere = Datastore.open(tmp_path / "elsewhere")
    store = CorpusFolder(built / "work").store("train")
    many, few = make_documents(texts_of(sentences, 90, 1)), make_documents(texts_of(sentences, 9, 2), "few")
    made: dict[str, int] = {}
    sending = Encoding()
    changes: dict[str, Callable[[Datastore, Any], Any]] = {
        "add": lambda each, executor: each.add(many, executor=executor),
        "delete": lambda each, _: each.delete(ids=["03.txt", "more-1"]),
        "few": lambda each, executor: each.add(few, executor=executor),
        "compact": lambda each, executor: each.compact(executor=executor),
        "sync": lambda each, executor: each.sync(
            make_documents(texts_of(sentences, 99, 3)), executor=executor
        ),
        "merge": lambda each, executor: each.merge(executor=executor),
        "follow": lambda each, executor: sync_datastore(each, store, executor=executor),
    }
    for name, change in changes.items():
        change(datastore, None)
        before = len(sending.encoded)
        change(elsewhere, sending)
        made[name] = len(sending.encoded) - before
        assert files_of(elsewhere) == files_of(datastore), name
    assert datastore.snapshot().joint is not None
    assert made["add"] > 2
    assert made["compact"] >= 1
    assert made["sync"] > 2
    assert made["delete"] == made["few"] == made["merge"] == 0
    # By these a worker sees that it has the same training and the same keys.
    assert {"index.faiss", "keys.npy"} <= {path.name for path in sending.needed}


def test_a_killed_merge_loses_nothing(
    datastore: Datastore, sentences: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = Datastore.open(datastore.path)
    documents = make_documents(texts_of(sentences, 60, 1))
    with monkeypatch.context() as patch:
        patch.setattr(joint, "tune", None)
        with pytest.raises(TypeError):
            datastore.add(documents)
    assert held(reader) >= {document.id for document in documents}  # the addition was committed before it
    verify(Datastore.open(datastore.path))
    assert datastore.merge() == reader.ledger.version().number
    assert len(reader.snapshot().indexed) == 1
    assert held(reader) >= {document.id for document in documents}
    assert [path.name for path in (datastore.path / "indexes").iterdir()] == [
        reader.snapshot().joint.name  # type: ignore[union-attr]
    ]


def test_segments_are_searched_by_threads_with_the_same_result(
    built: Path, static_encoder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datastore = build(CorpusFolder(built / "work"), tmp_path / "d", static_encoder, segment_chunks=100)
    snapshot = datastore.snapshot()
    assert len(snapshot.indexed) > 5
    keys = Entries(snapshot.segments[2].keys[:30])
    expected = snapshot.search(keys, 7)
    monkeypatch.setattr(scanning, "SMALL", 0)
    for _ in range(5):
        found = snapshot.search(keys, 7)
        assert np.array_equal(found[0], expected[0])
        assert np.array_equal(found[1], expected[1])


def test_a_lost_or_strange_joint_index_is_one_clear_line(datastore: Datastore) -> None:
    (row,) = datastore.ledger.indexes()
    file = datastore.path / "indexes" / row.name / "index.faiss"
    whole = file.read_bytes()
    for content in (whole[: len(whole) // 2], b""):
        file.write_bytes(content)
        with pytest.raises(ArtifactError, match=r"has lost a file of version .*retro build") as caught:
            Datastore.open(datastore.path)
        assert "\n" not in str(caught.value)
    with pytest.raises(ArtifactError, match=r"does not match its checksum"):
        verify(datastore)
    file.write_bytes(whole)
    with datastore.ledger.transaction():
        datastore.ledger.rows("""UPDATE indexes SET segments = '["000007"]'""")
    with pytest.raises(ArtifactError, match="expected segments of the datastore"):
        Datastore.open(datastore.path)
