import shutil
from pathlib import Path

import numpy as np
import pytest

from retro.errors import ArtifactError
from retro.retrieval import neighbours as module
from retro.retrieval.chunks import content_hashes
from retro.retrieval.datastore import Datastore
from retro.retrieval.index import Entries
from retro.retrieval.neighbours import Neighbours, find_neighbours
from retro.retrieval.other_documents import search_other_documents
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
    """When everything there is is of the same document or a copy of it, nothing is found, and nothing is shown in its place."""
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
    from retro.config import CorpusConfig

    shutil.copytree(copied / "work" / "tokenizer", tmp_path / "split" / "tokenizer")
    from retro.corpus.encode import encode_text
    from retro.corpus.pack import pack
    from retro.corpus.readers import Problems, read
    from retro.corpus.text import write_text
    from retro.corpus.tokenizers.tokenizer import Tokenizer
    from retro.stages.executor import LocalExecutor

    documents = [d for d in read(str(text_folder)) if d.id != "05.txt"]
    documents += make_documents(["A brand new document about copying. " * 5])
    config = CorpusConfig(vocab_size=320, valid_fraction=0.0, test_fraction=0.0)
    text = write_text(reversed(documents), tmp_path / "text", config, {}, LocalExecutor(1), Problems())
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


def test_neighbours_of_other_data_are_refused(workspace: Workspace) -> None:
    path = workspace.neighbours_path("train")
    with pytest.raises(ArtifactError, match="other tokens"):
        Neighbours.open(path, workspace.store("test"), workspace.datastore())


def test_missing_neighbours_say_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="run: retro ingest"):
        Workspace(tmp_path / "nothing").neighbours("train").values(np.arange(1), 1)
