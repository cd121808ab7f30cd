import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retro.config import CorpusConfig
from retro.corpus.folder import CorpusFolder
from retro.corpus.ingest import ingest
from retro.errors import ArtifactError
from retro.retrieval import blocks, other_documents
from retro.retrieval import finding as module
from retro.retrieval.chunks import content_hashes
from retro.retrieval.datastore import Datastore, Neighbour
from retro.retrieval.datastore.snapshot import Snapshot
from retro.retrieval.finding import find_neighbours
from retro.retrieval.index import Entries
from retro.retrieval.neighbours import Neighbours
from retro.retrieval.other_documents import search_other_documents
from retro.retrieval.retriever import Retriever
from retro.workspace import Workspace
from tests.retrieval.datastores import build, corpus_of, make_documents


def brute_force(work: Workspace, split: str, chunk: int, k: int) -> np.ndarray:
    """Distances of the k nearest chunks of other documents, with plain numpy."""
    datastore, neighbours = work.datastore(), work.neighbours(split)
    text = datastore.tokenizer.decode(neighbours.table.tokens(chunk))
    query = datastore.embedder.embed([text])[0]
    (segment,) = datastore.snapshot().segments
    other = (
        segment.documents["content_hash"][segment.places]
        != content_hashes(neighbours.store)[neighbours.table.documents[chunk]]
    )
    distances = ((segment.keys.astype(np.float32) - query) ** 2).sum(-1)
    return np.sort(distances[other])[:k]


@pytest.mark.parametrize("split", ["train", "test"])
def test_neighbours_are_the_nearest_chunks_of_other_documents(workspace: Workspace, split: str) -> None:
    neighbours = workspace.neighbours(split)
    saved = np.load(neighbours.artifact.file("distances.npy"))
    for chunk in range(0, len(neighbours.table), 5):
        if np.isfinite(saved[chunk, 0]):
            np.testing.assert_allclose(saved[chunk], brute_force(workspace, split, chunk, 4), atol=2e-2)


def test_no_neighbour_is_of_the_same_document(workspace: Workspace) -> None:
    neighbours = workspace.neighbours("train")
    found = neighbours.documents(np.arange(len(neighbours.table)), 4)
    own = content_hashes(neighbours.store)[neighbours.table.documents]
    _, real = neighbours.values(np.arange(len(neighbours.table)), 4)
    assert real.any()
    assert not ((found == own[:, None]) & real).any()


def test_a_missing_neighbour_is_a_mask_and_never_a_text(tmp_path: Path, bert: str) -> None:
    """Where there are only the same document and its copies, nothing is found, and nothing stands for it."""
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "only.txt").write_text("The licence permits anyone to copy. " * 20)
    work = corpus_of(tmp_path / "work", folder, 280)
    datastore = build(work, tmp_path / "datastore", bert)
    datastore.add(make_documents([(folder / "only.txt").read_text()]))  # a copy under another name
    neighbours = find_neighbours(work.store("train"), datastore, tmp_path / "neighbours")
    values, mask = neighbours.values(np.arange(5), 2)
    assert not mask.any()
    assert (values == datastore.tokenizer.pad_id).all()
    keys = datastore.snapshot().segments[0].keys[:3]
    distances, chunks = search_other_documents(
        datastore.snapshot(), Entries(keys), np.full(3, 7, dtype=np.uint64), 1000
    )
    assert ((chunks >= 0).sum(axis=1) == len(datastore)).all()  # all there is, and no more
    assert np.isinf(distances[chunks < 0]).all()


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, text_folder: Path, bert: str) -> Path:
    folder = tmp_path_factory.mktemp("prepared")
    work = corpus_of(folder / "work", text_folder)
    find_neighbours(work.store("train"), build(work, folder / "datastore", bert), folder / "neighbours")
    return folder


@pytest.fixture
def copied(prepared: Path, tmp_path: Path) -> Path:
    shutil.copytree(prepared, tmp_path / "copy")
    return tmp_path / "copy"


def same(ours: Neighbours, theirs: Neighbours) -> bool:
    return np.array_equal(ours.chunks, theirs.chunks) and np.array_equal(
        np.load(ours.artifact.file("distances.npy")), np.load(theirs.artifact.file("distances.npy"))
    )


def test_deleted_neighbours_are_masked_before_anything_is_searched_again(
    copied: Path, text_folder: Path
) -> None:
    work, datastore = corpus_of(copied / "work", text_folder), Datastore.open(copied / "datastore")
    neighbours = Neighbours.open(copied / "neighbours", work.store("train"), datastore)
    all_chunks = np.arange(len(neighbours.table))
    values, before = neighbours.values(all_chunks, 4)
    victims = [work.store("train").documents[index]["id"] for index in range(0, 40, 3)]
    datastore.delete(ids=victims)
    opened = Neighbours.open(copied / "neighbours", work.store("train"), datastore)
    masked_values, after = opened.values(all_chunks, 4)
    gone = before & ~after
    assert gone.any()
    assert (masked_values[gone] == datastore.tokenizer.pad_id).all()
    assert np.array_equal(masked_values[after], values[after])


def test_neighbours_of_some_documents_are_those_they_had(workspace: Workspace) -> None:
    whole = workspace.neighbours("train")
    some = whole.select([7, 2])
    assert [row["id"] for row in some.store.documents] == [
        whole.store.documents[number]["id"] for number in (7, 2)
    ]
    rows = np.concatenate(
        [np.arange(whole.table.first[number], whole.table.first[number + 1]) for number in (7, 2)]
    )
    assert [some.table.tokens(chunk).tolist() for chunk in range(len(some.table))] == [
        whole.table.tokens(row).tolist() for row in rows
    ]
    for ours, theirs in zip(some.values(np.arange(len(rows)), 3), whole.values(rows, 3), strict=True):
        assert np.array_equal(ours, theirs)
    assert some.store.num_bytes.tolist() == whole.store.num_bytes[[7, 2]].tolist()
    assert some.store.fingerprint not in (whole.store.fingerprint, whole.select([2, 7]).store.fingerprint)


def test_neighbours_are_described_without_deleted_ones(copied: Path, text_folder: Path) -> None:
    work, datastore = corpus_of(copied / "work", text_folder), Datastore.open(copied / "datastore")
    neighbours = Neighbours.open(copied / "neighbours", work.store("train"), datastore)
    (before,) = neighbours.describe(np.array([3]), 4)
    values, _ = neighbours.values(np.array([3]), 4)
    assert np.array_equal(np.stack([neighbour.tokens for neighbour in before]), values[0])
    assert [neighbour.distance for neighbour in before] == sorted(neighbour.distance for neighbour in before)
    datastore.delete(ids=[before[1].document])
    (after,) = Neighbours.open(copied / "neighbours", work.store("train"), datastore).describe(
        np.array([3]), 4
    )
    assert [n.chunk for n in after] == [n.chunk for n in before if n.document != before[1].document]


def test_finding_again_after_changes_equals_finding_anew(
    copied: Path, text_folder: Path, texts: list[str]
) -> None:
    """Only chunks that lost a neighbour are searched in full; the others look through what was added."""
    work, datastore = corpus_of(copied / "work", text_folder), Datastore.open(copied / "datastore")
    store = work.store("train")
    steps = [
        lambda: datastore.add(make_documents([text[::-1] + texts[0][:40] for text in texts[:5]])),
        lambda: datastore.delete(ids=["03.txt", "more-2"]),
        lambda: datastore.compact(),
        lambda: (
            datastore.add(make_documents(["anyone may share " * 9], "third")),
            datastore.delete(ids=["more-1"]),
            datastore.compact(),
        ),
    ]
    written = 0
    for number, step in enumerate(steps):
        step()
        updated = find_neighbours(store, datastore, copied / "neighbours")
        counts = updated.artifact.counts
        anew = find_neighbours(store, datastore, copied / f"anew-{number}")
        assert same(updated, anew)
        assert counts["searched"] < counts["chunks"]
        assert anew.artifact.counts["searched"] == counts["chunks"]
        if number == 0:
            assert (counts["searched"], counts["looked_through_added"]) == (0, counts["chunks"])
        if number == 1:
            assert counts["looked_through_added"] == 0
        if number == 2:  # compacting changes nothing that is held
            assert updated.artifact.path.stat().st_mtime_ns == written
        written = updated.artifact.path.stat().st_mtime_ns


def test_documents_that_are_new_in_the_tokens_are_searched_alone(
    copied: Path, text_folder: Path, tmp_path: Path
) -> None:
    """Neighbours belong to documents by their content, wherever they stand in the store."""
    datastore = Datastore.open(copied / "datastore")
    work = Workspace(tmp_path / "split")

    shutil.copytree(copied / "work" / "tokenizer", tmp_path / "split" / "tokenizer")
    from retro.corpus.encode import encode_text
    from retro.corpus.pack import pack
    from retro.corpus.readers import Problems, read
    from retro.corpus.reading import Stream
    from retro.corpus.text import write_text
    from retro.corpus.tokenizers.tokenizer import Tokenizer
    from retro.stages.executor import LocalExecutor

    documents = [d for d in read(str(text_folder)) if d.id != "05.txt"]
    documents += make_documents(["A brand new document about copying. " * 5])
    config = CorpusConfig(vocab_size=320, valid_fraction=0.0, test_fraction=0.0)
    stream = Stream(reversed(documents), Problems())
    text = write_text(lambda _: [stream], tmp_path / "text", config, {}, LocalExecutor(1), Problems())
    encoded = encode_text(text, work.tokenizer_path, tmp_path / "encoded", LocalExecutor(1))
    store = pack(encoded, Tokenizer.open(work.tokenizer_path), tmp_path / "tokens", config).train
    updated = find_neighbours(store, datastore, copied / "neighbours")
    new = int(-(-len(store.document(0)) // 8))
    assert updated.artifact.counts["searched"] == new
    assert same(updated, find_neighbours(store, datastore, tmp_path / "anew"))


def test_an_update_that_was_interrupted_loses_nothing(
    copied: Path, text_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, datastore = corpus_of(copied / "work", text_folder), Datastore.open(copied / "datastore")
    datastore.delete(ids=["03.txt"])

    def failing(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module._Finding, "finish", failing)
        with pytest.raises(KeyboardInterrupt):
            find_neighbours(work.store("train"), datastore, copied / "neighbours")
    updated = find_neighbours(work.store("train"), datastore, copied / "neighbours")
    assert 0 < updated.artifact.counts["searched"] < updated.artifact.counts["chunks"]
    assert not (copied / "neighbours.former").exists()


def interrupted_after(num_blocks: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Small blocks, and an interruption after so many of them; the list counts the searched ones."""
    searched: list[int] = []
    search = blocks.search_other_documents

    def failing(*arguments: Any) -> Any:
        if len(searched) == num_blocks:
            raise KeyboardInterrupt
        searched.append(1)
        return search(*arguments)

    monkeypatch.setattr(module, "QUERIES", 50)
    monkeypatch.setattr(blocks, "search_other_documents", failing)
    return searched


def test_finding_that_was_interrupted_goes_on_behind_the_last_block(
    copied: Path, text_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, datastore = corpus_of(copied / "work", text_folder), Datastore.open(copied / "datastore")
    store = work.store("train")
    with monkeypatch.context() as patch:
        searched = interrupted_after(3, patch)
        with pytest.raises(KeyboardInterrupt):
            find_neighbours(store, datastore, tmp_path / "broken")
        assert len(searched) == 3
    with monkeypatch.context() as patch:
        searched = interrupted_after(1000, patch)
        whole = find_neighbours(store, datastore, tmp_path / "whole")
        num_blocks = len(searched)
        searched.clear()
        resumed = find_neighbours(store, datastore, tmp_path / "broken")
        assert len(searched) == num_blocks - 3
    assert same(resumed, whole)
    assert resumed.artifact.counts == whole.artifact.counts
    assert sorted(file.name for file in resumed.artifact.path.iterdir()) == [
        "distances.npy",
        "documents.npy",
        "manifest.json",
        "neighbours.npy",
    ]


def test_an_interrupted_update_goes_on_as_well_and_begins_anew_for_another_version(
    copied: Path, text_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, datastore = corpus_of(copied / "work", text_folder), Datastore.open(copied / "datastore")
    store = work.store("train")
    for number in range(2):
        datastore.add(make_documents([f"anyone may share {number} " * 9], f"added-{number}"))
        with monkeypatch.context() as patch:
            interrupted_after(2, patch)
            with pytest.raises(KeyboardInterrupt):
                find_neighbours(store, datastore, copied / "neighbours")
    with monkeypatch.context() as patch:
        searched = interrupted_after(1000, patch)
        updated = find_neighbours(store, datastore, copied / "neighbours")
        assert len(searched) == -(-updated.artifact.counts["looked_through_added"] // 50) - 2
    assert same(updated, find_neighbours(store, datastore, tmp_path / "anew"))


def found_live(datastore: Datastore, found: Neighbours) -> Iterator[tuple[int, list[Neighbour]]]:
    """Every chunk of the store with what a retriever finds for it in other documents."""
    for document, row in enumerate(found.store.documents):
        chunks = range(found.table.first[document], found.table.first[document + 1])
        tokens = [found.table.tokens(chunk) for chunk in chunks]
        yield from zip(chunks, Retriever(datastore).search(tokens, 4, exclude=[row["id"]]), strict=True)


@pytest.mark.parametrize("index", ["exact", "bm25"])
def test_live_neighbours_are_the_precomputed_ones(
    text_folder: Path, static_encoder: str, tmp_path: Path, index: str
) -> None:
    """To the bit: a live query is rounded as the stored keys are, and has the very tokens of the chunk.

    A chunk's text often begins in the middle of a word and would be cut into other tokens than it came from.
    """
    if index == "bm25":
        pytest.importorskip("bm25s")
    work = corpus_of(tmp_path / "work", text_folder)
    datastore = build(work, tmp_path / "datastore", static_encoder, index=index)
    found = find_neighbours(work.store("train"), datastore, tmp_path / "neighbours")
    tokenizer, chunks = datastore.tokenizer, [found.table.tokens(chunk).tolist() for chunk in range(50)]
    assert any(tokenizer.encode(tokenizer.decode(chunk)) != chunk for chunk in chunks)
    for chunk, neighbours in found_live(datastore, found):
        real = found.chunks[chunk] >= 0
        assert [n.chunk for n in neighbours] == found.chunks[chunk][real].tolist()
        assert [n.distance for n in neighbours] == found.distances[chunk][real].tolist()


def test_a_retriever_s_values_are_those_of_precomputed_neighbours(
    text_folder: Path, static_encoder: str, tmp_path: Path
) -> None:
    work = CorpusFolder(tmp_path / "work")
    ingest(work, [str(text_folder)], CorpusConfig(vocab_size=320, valid_fraction=0.0, test_fraction=0.3))
    datastore = build(work, tmp_path / "datastore", static_encoder)
    found = find_neighbours(work.store("test"), datastore, tmp_path / "neighbours")
    chunks = np.arange(len(found.table))
    values, mask = Retriever(datastore).values([found.table.tokens(chunk) for chunk in chunks], 4)
    expected, expected_mask = found.values(chunks, 4)
    np.testing.assert_array_equal(values, expected)
    np.testing.assert_array_equal(mask, expected_mask)


def widened(snapshot: Snapshot, entries: Entries, own: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """All chunks of other documents, nearest first, cut at k: what widening the search must come to."""
    distances, chunks = snapshot.search(entries, len(snapshot))
    other = (chunks >= 0) & (snapshot.content_hashes(chunks) != own[:, None])
    order = np.argsort(~other, axis=1, kind="stable")[:, :k]
    kept = np.take_along_axis(other, order, axis=1)
    return (
        np.where(kept, np.take_along_axis(distances, order, axis=1), np.inf),
        np.where(kept, np.take_along_axis(chunks, order, axis=1), -1),
    )


@pytest.mark.parametrize(("max_pairs", "max_reach"), [(1 << 22, 1 << 14), (64, 1 << 14), (64, 16), (1, 1)])
def test_the_search_among_other_documents_is_bounded_and_finds_the_same(
    text_folder: Path,
    static_encoder: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    max_pairs: int,
    max_reach: int,
) -> None:
    """One document with most of the chunks, which is also there as a copy."""
    shutil.copytree(text_folder, tmp_path / "texts")
    long = "The licence permits anyone to copy and share this software. " * 40
    (tmp_path / "texts" / "long.txt").write_text(long)
    datastore = build(
        corpus_of(tmp_path / "work", tmp_path / "texts"), tmp_path / "datastore", static_encoder
    )
    datastore.add(make_documents([long]))
    snapshot = datastore.snapshot()
    keys = np.concatenate([segment.keys for segment in snapshot.segments])
    own = snapshot.content_hashes(np.concatenate([segment.chunks for segment in snapshot.segments]))
    monkeypatch.setattr(other_documents, "MAX_PAIRS", max_pairs)
    monkeypatch.setattr(other_documents, "MAX_REACH", max_reach)
    asked: list[tuple[int, int]] = []
    scan = snapshot.search

    def recording(entries: Entries, k: int, *filters: Any) -> Any:
        asked.append((len(entries), k))
        return scan(entries, k, *filters)

    with monkeypatch.context() as patch:
        patch.setattr(snapshot, "search", recording)
        distances, chunks = search_other_documents(snapshot, Entries(keys), own, 3)
    assert all(queries == 1 or queries * reach <= max_pairs for queries, reach in asked)
    assert all(reach <= max(3, max_reach) for _, reach in asked)
    expected = widened(snapshot, Entries(keys), own, 3)
    np.testing.assert_array_equal(chunks, expected[1])
    np.testing.assert_array_equal(distances, expected[0])


def test_neighbours_of_other_data_are_refused(workspace: Workspace) -> None:
    path = workspace.neighbours_path("train")
    with pytest.raises(ArtifactError, match="other tokens"):
        Neighbours.open(path, workspace.store("test"), workspace.datastore())


def test_missing_neighbours_say_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="run: retro ingest"):
        Workspace(tmp_path / "nothing").neighbours("train").values(np.arange(1), 1)
