import shutil
from pathlib import Path

import numpy as np
import pytest

from retro.config import CorpusConfig, DatastoreConfig
from retro.corpus.folder import CorpusFolder
from retro.corpus.ingest import ingest
from retro.errors import ArtifactError, ConfigError, DataError
from retro.jobs.retrieval import build as build_in
from retro.retrieval.datastore import Datastore, segment_writer
from retro.retrieval.datastore.build import build_datastore
from retro.retrieval.embedder.bert import BertEmbedder
from retro.retrieval.finding import find_neighbours
from retro.retrieval.retriever import Retriever
from retro.workspace import Workspace
from tests.retrieval.datastores import build, config_of, corpus_of


def keys_of(datastore: Datastore) -> np.ndarray:
    return np.concatenate([segment.keys for segment in datastore.snapshot().segments])


def test_values_are_the_chunk_and_what_follows_it_in_the_same_document(workspace: Workspace) -> None:
    datastore, store = workspace.datastore(), workspace.corpus().train
    snapshot = datastore.snapshot()
    chunk = 0
    for index in range(len(store)):
        tokens = store.document(index)
        for offset in range(0, len(tokens), 8):
            expected = tokens[offset : offset + 16]
            found = snapshot.values(np.array([chunk]))[0]
            assert np.array_equal(found[: len(expected)], expected)
            assert (found[len(expected) :] == store.pad_id).all()
            chunk += 1
    assert snapshot.num_chunks() == chunk
    assert not snapshot.is_live(np.array([-1, chunk, chunk + 5])).any()
    assert (snapshot.values(np.array([-1, chunk])) == store.pad_id).all()


def test_a_chunk_s_own_text_finds_itself_and_exclusion_takes_it_out(workspace: Workspace) -> None:
    datastore = workspace.datastore()
    text = datastore.tokenizer.decode(
        datastore.snapshot().values(np.array([len(datastore) // 2]), 8)[0].tolist()
    )
    nearest = datastore.search([text], 3)[0]
    assert nearest[0].distance == pytest.approx(0.0, abs=1e-2)  # keys are kept in float16
    assert [n.distance for n in nearest] == sorted(n.distance for n in nearest)
    assert text in nearest[0].text
    without = datastore.search([text], 3, exclude=[nearest[0].document])[0]
    assert len(without) == 3
    assert nearest[0].document not in {n.document for n in without}
    with pytest.raises(DataError, match=r"no document of the datastore has the id 'mistyped'"):
        datastore.search([text], 3, exclude=["mistyped"])


def test_more_neighbours_than_chunks_gives_all_of_them(workspace: Workspace) -> None:
    datastore = workspace.datastore()
    assert len(datastore.search(["the licence"], 10_000)[0]) == len(datastore)
    everything = [document["id"] for document in workspace.corpus().train.documents]
    assert datastore.search(["the licence"], 3, exclude=everything) == [[]]
    assert datastore.search([], 3) == []
    assert datastore.search(["", " \n", "licence"], 1)[:2] == [[], []]
    with pytest.raises(ConfigError, match="k is 0"):
        datastore.search(["the licence"], 0)


def test_a_retriever_takes_tokens_and_texts_and_sources(workspace: Workspace) -> None:
    retriever = Retriever(workspace.datastore())
    tokens = workspace.corpus().train.document(0)[:8]
    by_tokens, by_text = retriever.search(
        [np.asarray(tokens), retriever.tokenizer.decode(tokens.tolist())], k=2
    )
    assert [(n.chunk, n.document) for n in by_tokens] == [(n.chunk, n.document) for n in by_text]
    (only,) = retriever.search([np.asarray(tokens)], 2, sources=[by_tokens[0].source])
    assert [n.chunk for n in only] == [n.chunk for n in by_text]
    with pytest.raises(DataError, match="has the source 'nowhere'"):
        retriever.search([np.asarray(tokens)], 2, sources=["nowhere"])


def test_embedding_goes_on_where_it_was_interrupted(
    workspace: Workspace, text_folder: Path, bert: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_writer, "SHARD", 16)
    work = corpus_of(tmp_path / "work", text_folder)
    whole = build(work, tmp_path / "whole", bert)
    calls: list[int] = []
    original = BertEmbedder.embed

    def failing(self: BertEmbedder, texts):  # type: ignore[no-untyped-def]
        calls.append(len(texts))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(self, texts)

    monkeypatch.setattr(BertEmbedder, "embed", failing)
    with pytest.raises(KeyboardInterrupt):
        build(work, tmp_path / "broken", bert)
    before = len(calls)
    assert not (tmp_path / "broken").exists()
    resumed = build(work, tmp_path / "broken", bert)
    assert len(calls) - before == -(-whole.snapshot().num_chunks() // 16) - 2
    assert np.array_equal(keys_of(resumed), keys_of(whole))


def test_segments_of_bounded_size_hold_the_same(text_folder: Path, bert: str, tmp_path: Path) -> None:
    """However a datastore is cut, chunks have the same numbers and searches find the same."""
    work = corpus_of(tmp_path / "work", text_folder)
    whole, cut = build(work, tmp_path / "whole", bert), build(work, tmp_path / "cut", bert, segment_chunks=60)
    assert len(whole.snapshot().segments) == 1 < len(cut.snapshot().segments)
    assert all(
        segment.num_chunks.sum() <= 60 or len(segment.documents) == 1 for segment in cut.snapshot().segments
    )
    texts = ["the licence permits", "without any warranty", "Document 7"]
    for ours, theirs in zip(whole.search(texts, 9), cut.search(texts, 9), strict=True):
        assert [(n.chunk, n.document) for n in ours] == [(n.chunk, n.document) for n in theirs]
        np.testing.assert_allclose([n.distance for n in ours], [n.distance for n in theirs], atol=1e-4)
    assert np.array_equal(whole.snapshot().values(np.arange(50)), cut.snapshot().values(np.arange(50)))


def test_building_tells_when_keys_are_indexed(text_folder: Path, bert: str, tmp_path: Path) -> None:
    """Linking or training takes minutes and tells nothing, so what it is must stand there."""
    work = corpus_of(tmp_path / "work", text_folder)
    told: list[tuple[int, int, str]] = []

    def listen(done: int, total: int, step: str = "", note: str = "") -> None:
        told.append((done, total, step))

    config = config_of(bert, segment_chunks=60)
    store = work.store("train")
    datastore = build_datastore([store], work.tokenizer_path, tmp_path / "cut", config, listen)
    segments = datastore.snapshot().segments
    indexed = [(done, total, step) for done, total, step in told if step]
    assert indexed == [(0, 0, f"Indexing {len(segment.keys)} keys") for segment in segments]
    # What is counted goes on over all segments.
    counted = [done for done, _, step in told if not step]
    assert counted == sorted(counted)
    assert counted[-1] == datastore.snapshot().num_chunks()


def test_several_token_stores_make_one_datastore(text_folder: Path, bert: str, tmp_path: Path) -> None:
    work = CorpusFolder(tmp_path / "work")
    ingest(work, [str(text_folder)], CorpusConfig(vocab_size=320, valid_fraction=0.0, test_fraction=0.3))
    stores = [work.store("train"), work.store("test")]
    datastore = build_datastore(stores, work.tokenizer_path, tmp_path / "both", config_of(bert))
    assert datastore.snapshot().num_documents == len(stores[0]) + len(stores[1])
    with pytest.raises(ArtifactError, match=r"other settings or inputs \(built from differ\)"):
        build_datastore(stores[:1], work.tokenizer_path, tmp_path / "both", config_of(bert))
    with pytest.raises(ArtifactError, match=r"\(config differ\)"):
        build_datastore(stores, work.tokenizer_path, tmp_path / "both", config_of(bert, num_neighbours=5))


@pytest.mark.parametrize("num_documents", [1, 2])
def test_the_smallest_corpora_work(tmp_path: Path, bert: str, num_documents: int) -> None:
    """One document, shorter than a chunk, has no neighbour but itself: none."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(num_documents):
        (folder / f"{number}.txt").write_text(f"few words {number}")
    work = Workspace(tmp_path / "work")
    ingest(work, [str(folder)], CorpusConfig(vocab_size=275, valid_fraction=0.0, test_fraction=0.0))
    datastore = build_in(work, DatastoreConfig(embedder=bert, chunk_len=64, num_neighbours=3))
    assert len(datastore) == num_documents
    neighbours = find_neighbours(work.store("train"), datastore, work.neighbours_path("train"))
    assert (np.asarray(neighbours.chunks) >= 0).sum(axis=1).tolist() == [num_documents - 1] * num_documents


def test_chunks_without_text_are_counted_and_not_found(tmp_path: Path, bert: str) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_text("words" + "\n" * 40 + "more words")
    work = corpus_of(tmp_path / "work", folder, 270)
    datastore = build(work, tmp_path / "datastore", bert)
    report = datastore.ledger.segments()[0].report
    assert report["empty_chunks"] >= 3
    assert report["keys"] == report["chunks"] - report["empty_chunks"] == len(datastore)
    assert all(neighbour.text.strip() for neighbour in datastore.search(["words"], 50)[0])


def test_token_ids_beyond_16_bits_come_back(tmp_path: Path, bert: str, text_folder: Path) -> None:
    """int16 ids overflowed in one of the peers."""
    from tests.corpus.tokenizers.test_huggingface import byte_level

    folder = byte_level(tmp_path / "hf", eos_token="<|endoftext|>")
    import json

    model = json.loads((folder / "tokenizer.json").read_text())
    model["model"]["vocab"] = {
        piece: number + 70_000 * (number > 300) for piece, number in model["model"]["vocab"].items()
    }
    for token in model["added_tokens"]:
        token["id"] = model["model"]["vocab"].get(token["content"], 170_000)
    (folder / "tokenizer.json").write_text(json.dumps(model))
    work = CorpusFolder(tmp_path / "work")
    corpus = ingest(
        work, [str(text_folder)], CorpusConfig(tokenizer=str(folder), valid_fraction=0.0, test_fraction=0.0)
    )
    assert corpus.train.tokens.dtype == np.uint32
    assert corpus.train.tokens.max() > 65_535
    datastore = build(work, tmp_path / "datastore", bert)
    assert datastore.snapshot().values(np.array([0]))[0].tolist() == corpus.train.document(0)[:16].tolist()


def test_another_tokenizer_or_encoder_is_refused(
    workspace: Workspace, text_folder: Path, bert: str, tmp_path: Path
) -> None:
    other = CorpusFolder(tmp_path)
    ingest(other, [str(text_folder)], CorpusConfig(vocab_size=300, valid_fraction=0.15, test_fraction=0.15))
    with pytest.raises(ArtifactError, match=r"was made with tokenizer .*; expected .*; run: retro ingest"):
        find_neighbours(other.store("train"), workspace.datastore(), tmp_path / "neighbours")
    datastore = build(other, tmp_path / "datastore", bert)
    with datastore.ledger.transaction():
        datastore.ledger.set_fact("encoder", "0123")
    with pytest.raises(ArtifactError, match=r"built with another .*same embedder for keys and queries"):
        Datastore.open(tmp_path / "datastore").search(["text"], 1)


@pytest.mark.parametrize("name", ["tokens.bin", "documents.npy", "keys.npy", "rows.npy", "index/index.json"])
def test_a_broken_or_missing_file_is_one_clear_line(workspace: Workspace, tmp_path: Path, name: str) -> None:
    shutil.copytree(workspace.datastore_path, tmp_path / "datastore")
    file = next((tmp_path / "datastore" / "segments").iterdir()) / name
    file.write_bytes(file.read_bytes()[: 7 if name != "tokens.bin" else 0])
    with pytest.raises(ArtifactError, match=r"retro "):
        Datastore.open(tmp_path / "datastore")
    file.unlink()
    with pytest.raises(ArtifactError, match=r"retro build"):
        Datastore.open(tmp_path / "datastore")


def test_what_is_no_datastore_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"is no finished datastore; .*run: retro build WORK"):
        Datastore.open(tmp_path)
    (tmp_path / "catalogue.sqlite").write_bytes(
        b"not a database at all, but long enough to be looked at" * 50
    )
    with pytest.raises(ArtifactError, match=r"is not a readable ledger"):
        Datastore.open(tmp_path)


def test_a_datastore_from_when_the_embedder_was_called_an_encoder_is_opened(
    text_folder: Path, static_encoder: str, tmp_path: Path
) -> None:
    work = corpus_of(tmp_path / "work", text_folder)
    datastore = build(work, tmp_path / "datastore", static_encoder)
    config = datastore.ledger.fact("config")
    renamed = {name.replace("embedder", "encoder"): value for name, value in config.items()}
    with datastore.ledger.transaction():
        datastore.ledger.set_fact("config", renamed)
    datastore.close()
    assert Datastore.open(tmp_path / "datastore").config.embedder == static_encoder
    assert len(build(work, tmp_path / "datastore", static_encoder))
