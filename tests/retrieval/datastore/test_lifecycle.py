"""Adding, deleting, compacting, verifying."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from retro.errors import ArtifactError, DataError
from retro.retrieval.datastore import Datastore
from retro.retrieval.datastore.info import tokens_of_deleted
from retro.retrieval.datastore.verify import verify
from retro.retrieval.datastore.writer import Writer
from retro.retrieval.finding import find_neighbours
from retro.retrieval.neighbours import Neighbours
from retro.retrieval.thinning import thinned_neighbours
from tests.retrieval.datastores import build, corpus_of, held, make_documents


def chunk_of(datastore: Datastore, text: str) -> str:
    """The first chunk of a text, which finds itself."""
    return datastore.tokenizer.decode(datastore.tokenizer.encode(text)[: datastore.chunk_len])


SECRET = "Zyzzyva quokka wombat marmoset axolotl ocelot narwhal pangolin.\n"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, text_folder: Path, bert: str) -> Path:
    folder = tmp_path_factory.mktemp("lifecycle")
    build(corpus_of(folder / "work", text_folder), folder / "datastore", bert).close()
    return folder


@pytest.fixture
def datastore(built: Path, tmp_path: Path) -> Datastore:
    shutil.copytree(built / "datastore", tmp_path / "datastore")
    return Datastore.open(tmp_path / "datastore")


def test_what_is_added_is_found_by_readers_that_were_open(datastore: Datastore) -> None:
    reader = Datastore.open(datastore.path)
    before, chunks = reader.snapshot().version.number, len(reader)
    version = datastore.add(make_documents([SECRET * 3, "Other words entirely. " * 6]))
    assert version == before + 1
    found = reader.search([chunk_of(reader, SECRET)], 1)[0][0]
    assert (found.document, found.title, found.source) == ("more-0", "Title 0", "more")
    assert len(reader) > chunks
    assert reader.snapshot().version.number == version
    verify(reader)


def test_what_is_deleted_is_found_by_no_search_that_starts_later(datastore: Datastore) -> None:
    datastore.add(make_documents([SECRET * 3, SECRET * 2, "Other words entirely. " * 6]))
    reader = Datastore.open(datastore.path)
    old = reader.snapshot()
    assert datastore.delete(ids=["more-0"]) == 1
    assert reader.search([chunk_of(reader, SECRET)], 1)[0][0].document == "more-1"
    assert "more-0" not in held(reader)
    assert datastore.delete(titles=["Title 1"]) == 1
    assert datastore.delete(sources=["more"]) == 1
    assert not {"more-0", "more-1", "more-2"} & held(reader)
    assert old.version.number == reader.snapshot().version.number - 3  # what was begun keeps its version
    assert len(old) > len(reader)


def test_numbers_are_never_given_again(datastore: Datastore) -> None:
    """A neighbour that was saved before must never become another text."""
    datastore.add(make_documents([SECRET * 3]))
    chunk = datastore.search([chunk_of(datastore, SECRET)], 1)[0][0].chunk
    datastore.delete(ids=["more-0"])
    datastore.compact()
    datastore.add(make_documents(["Something else. " * 9]))
    assert not datastore.snapshot().is_live(np.array([chunk])).any()
    assert datastore.search([chunk_of(datastore, "Something else. " * 9)], 1)[0][0].chunk > chunk


def occurrences(folder: Path, patterns: list[bytes]) -> list[str]:
    return [
        f"{file.name}: {p!r}"
        for file in folder.rglob("*")
        if file.is_file()
        for p in patterns
        if p in file.read_bytes()
    ]


def test_compacting_removes_every_byte_of_a_deleted_document(datastore: Datastore) -> None:
    (document,) = make_documents([SECRET * 4], source="confidential")
    datastore.add([document])
    snapshot = datastore.snapshot()
    tokens = np.array(datastore.tokenizer.encode(document.text), dtype=datastore.tokenizer.dtype)
    key = snapshot.segments[-1].keys[0].tobytes()
    marks = [
        tokens[:16].tobytes(),
        key,
        b"confidential",
        document.content_hash.encode(),
        SECRET[:20].encode(),
    ]
    assert len(occurrences(datastore.path, marks)) >= 4
    datastore.delete(ids=[document.id])
    survivors = datastore.search(["the licence permits"], 5)
    datastore.compact()
    assert occurrences(datastore.path, marks) == []
    assert [n.chunk for n in datastore.search(["the licence permits"], 5)[0]] == [
        n.chunk for n in survivors[0]
    ]
    verify(datastore, sample=1000)


def test_compacting_joins_what_was_added_and_changes_no_answer(datastore: Datastore) -> None:
    for number in range(3):
        datastore.add(make_documents([f"{SECRET} {number} " * 3], first=number))
    datastore.delete(ids=["more-1"])
    texts = [SECRET, "warranty of fitness", "more"]
    before = datastore.search(texts, 20)
    assert len(datastore.snapshot().segments) == 4
    version = datastore.compact()
    assert len(datastore.snapshot().segments) == 1
    for ours, theirs in zip(before, datastore.search(texts, 20), strict=True):
        assert [(n.chunk, n.document, n.text) for n in ours] == [
            (n.chunk, n.document, n.text) for n in theirs
        ]
    assert datastore.compact() == version  # nothing was left to do
    assert len(list((datastore.path / "segments").iterdir())) == 1


def test_everything_can_be_deleted(datastore: Datastore) -> None:
    datastore.delete(sources=list({row[0] for row in datastore.ledger.rows("SELECT source FROM documents")}))
    assert datastore.search(["licence"], 3) == [[]]
    datastore.compact()
    assert datastore.search(["licence"], 3) == [[]]
    assert verify(datastore).keys == 0
    datastore.add(make_documents([SECRET]))
    assert held(datastore) == {"more-0"}


def test_neighbours_in_an_empty_datastore_are_none(
    built: Path, text_folder: Path, datastore: Datastore, tmp_path: Path
) -> None:
    store = corpus_of(built / "work", text_folder).store("train")
    datastore.delete(sources=list({row[0] for row in datastore.ledger.rows("SELECT source FROM documents")}))
    for name in ("deleted", "compacted"):
        found = find_neighbours(store, datastore, tmp_path / name)
        assert found.artifact.counts["neighbours"] == 0
        assert (np.asarray(found.chunks) == -1).all()
        assert not found.values(np.arange(5), 2)[1].any()
        assert (
            thinned_neighbours(store, datastore, tmp_path / f"thinned-{name}", [0.5])[0.5].max_neighbours == 4
        )
        datastore.compact()


def test_documents_without_any_text_are_held_and_never_found(datastore: Datastore) -> None:
    """A segment of them has an index without keys."""
    before = held(datastore)
    datastore.add(make_documents([" \n \n "]))
    assert held(datastore) == before
    assert datastore.snapshot().num_documents == len(before) + 1


def test_words_of_deleted_documents_that_the_tokenizer_knows_are_counted(
    tmp_path: Path, text_folder: Path, static_encoder: str
) -> None:
    shutil.copytree(text_folder, tmp_path / "texts")
    (tmp_path / "texts" / "secret.txt").write_text("Zyzzyva " * 200)
    datastore = build(
        corpus_of(tmp_path / "work", tmp_path / "texts", 360), tmp_path / "datastore", static_encoder
    )
    vocab_size = datastore.tokenizer.vocab_size
    assert tokens_of_deleted(datastore.snapshot(), vocab_size) == 0
    datastore.delete(ids=["secret.txt"])
    assert tokens_of_deleted(datastore.snapshot(), vocab_size) > 0
    datastore.compact()
    assert occurrences(datastore.path / "tokenizer", [b"Zyzzyva"])  # which is why it has to be said
    assert tokens_of_deleted(datastore.snapshot(), vocab_size) == 0


def test_a_change_that_cannot_be_made_changes_nothing(datastore: Datastore) -> None:
    version = datastore.snapshot().version
    datastore_documents = make_documents([SECRET, SECRET])
    with pytest.raises(DataError, match=r"'more-0' of source 'more' is given twice; .* nothing was added"):
        datastore.add([*datastore_documents, datastore_documents[0]])
    with pytest.raises(DataError, match="no document to add"):
        datastore.add([])
    with pytest.raises(DataError, match=r"has the title 'Unheard'"):
        datastore.delete(titles=["Unheard"])
    with pytest.raises(DataError, match="nothing was named"):
        datastore.delete()
    assert datastore.snapshot().version == version
    datastore.add(datastore_documents)
    with pytest.raises(DataError, match=r"is there already; .*retro db delete"):
        datastore.add(datastore_documents)
    verify(datastore)


def test_there_is_one_writer_at_a_time(datastore: Datastore) -> None:
    with Writer(datastore), pytest.raises(ArtifactError, match="is being written by another process"):
        Datastore.open(datastore.path).delete(ids=["00.txt"])


def test_verify_names_what_is_wrong(datastore: Datastore) -> None:
    looked = verify(datastore)
    assert looked.keys == looked.recomputed or looked.recomputed == 100
    keys = datastore.snapshot().segments[0].path / "keys.npy"
    content = bytearray(keys.read_bytes())
    content[-3] ^= 0xFF
    keys.write_bytes(bytes(content))
    with pytest.raises(ArtifactError, match=r"keys.npy does not match its checksum"):
        verify(datastore)


def test_verify_finds_keys_of_another_text(datastore: Datastore, monkeypatch: pytest.MonkeyPatch) -> None:
    embed = datastore.embedder.embed
    monkeypatch.setattr(datastore.embedder, "embed", lambda texts: embed([f"not {text}" for text in texts]))
    with pytest.raises(ArtifactError, match=r"the key of chunk \d+ .* is not that of its text"):
        verify(datastore)


def test_lineage_tells_histories_apart(built: Path, tmp_path: Path) -> None:
    """The same changes give the same lineage; other changes, or another order, another."""
    lineages = []
    for number, names in enumerate((("a", "b"), ("a", "b"), ("b", "a"))):
        shutil.copytree(built / "datastore", tmp_path / str(number))
        datastore = Datastore.open(tmp_path / str(number))
        for name in names:
            datastore.add(make_documents([f"{name} words"], source=name))
        lineages.append(datastore.snapshot().version.lineage)
    assert lineages[0] == lineages[1] != lineages[2]


def test_neighbours_found_in_another_history_are_refused(
    built: Path, text_folder: Path, datastore: Datastore, tmp_path: Path
) -> None:
    work = corpus_of(built / "work", text_folder)
    other = build(work, tmp_path / "other", datastore.config.embedder, num_neighbours=3)
    find_neighbours(work.store("train"), other, tmp_path / "neighbours")
    other.add(make_documents([SECRET]))
    Neighbours.open(tmp_path / "neighbours", work.store("train"), other)
    datastore.add(make_documents(["Another."]))
    find_neighbours(work.store("train"), datastore, tmp_path / "theirs")
    with pytest.raises(ArtifactError, match="another datastore"):
        Neighbours.open(tmp_path / "theirs", work.store("train"), other)
