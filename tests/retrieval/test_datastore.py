from pathlib import Path

import numpy as np
import pytest

from retro.config import CorpusConfig, DatastoreConfig
from retro.corpus.sentencepiece import END_ID, PAD_ID
from retro.errors import ArtifactError, DataError
from retro.retrieval.chunks import ChunkTable
from retro.retrieval.datastore import SHARD, Datastore
from retro.retrieval.embedder import Embedder, batches_by_length
from retro.retrieval.index import FaissIndex, measure_recall
from retro.workspace import Workspace
from tests.workspaces import small_run


def test_chunks_lie_on_each_document_s_own_grid(workspace: Workspace) -> None:
    store = workspace.corpus().train
    table = ChunkTable(store, 8)
    for document in range(len(store)):
        tokens = store.document(document)
        chunks = range(table.first[document], table.first[document + 1])
        assert len(chunks) == -(-len(tokens) // 8)
        assert np.array_equal(np.concatenate([table.tokens(chunk) for chunk in chunks]), tokens)
        assert all(table.documents[chunk] == document for chunk in chunks)
    assert (table.lengths == [len(table.tokens(chunk)) for chunk in range(len(table))]).all()


def test_a_document_of_whole_chunks_has_no_empty_last_chunk(tmp_path: Path) -> None:
    from retro.corpus.encode import EncodedDocument
    from retro.corpus.sentencepiece import SentencePieceTokenizer, train_model
    from retro.corpus.tokens import write_tokens

    tokenizer = SentencePieceTokenizer(train_model(["some words\n" * 9], 280))
    common = {"source": "s", "title": "", "language": "", "num_bytes": 1}
    rows = [{"id": name, "content_hash": name, "num_tokens": count, **common} for name, count in (("a", 15), ("b", 16))]
    arrays = [np.full(15, 5, dtype=np.uint16), np.full(16, 6, dtype=np.uint16)]
    documents = [EncodedDocument(number, row, tokens) for number, (row, tokens) in enumerate(zip(rows, arrays, strict=True))]
    table = ChunkTable(write_tokens(documents, rows, tmp_path / "tokens", tokenizer, {}, {}), 8)
    assert table.lengths.tolist() == [8, 8, 8, 8, 1]
    values = table.gather(np.arange(5), 16)
    assert values[1].tolist() == [5] * 7 + [END_ID] + [PAD_ID] * 8  # the continuation stops at the document's end
    assert values[2].tolist() == [6] * 16
    assert values[3].tolist() == [6] * 8 + [END_ID] + [PAD_ID] * 7


def test_values_are_the_chunk_and_what_follows_it_in_the_same_document(workspace: Workspace) -> None:
    datastore = workspace.datastore()
    for row in range(0, len(datastore), 7):
        chunk = int(datastore.rows[row])
        document = datastore.store.document(int(datastore.table.documents[chunk]))
        offset = int(datastore.table.starts[chunk] - datastore.store.starts[datastore.table.documents[chunk]])
        expected = document[offset : offset + 16]
        found = datastore.values(np.array(row))
        assert np.array_equal(found[: len(expected)], expected)
        assert (found[len(expected) :] == PAD_ID).all()


def test_a_chunk_s_own_text_finds_itself_and_exclusion_takes_it_out(workspace: Workspace) -> None:
    datastore = workspace.datastore()
    row = len(datastore) // 2
    text = datastore.tokenizer.decode(datastore.table.tokens(int(datastore.rows[row])))
    nearest = datastore.search([text], 3)[0]
    assert nearest[0].distance == pytest.approx(0.0, abs=1e-2)  # keys are kept in float16
    assert [n.distance for n in nearest] == sorted(n.distance for n in nearest)
    assert text in nearest[0].text
    without = datastore.search([text], 3, exclude=[nearest[0].document])[0]
    assert len(without) == 3
    assert nearest[0].document not in {n.document for n in without}


def test_more_neighbours_than_chunks_gives_all_of_them(workspace: Workspace) -> None:
    datastore = workspace.datastore()
    assert len(datastore.search(["the licence"], 10_000)[0]) == len(datastore)
    everything = [document["id"] for document in datastore.store.documents]
    assert datastore.search(["the licence"], 3, exclude=everything) == [[]]
    assert datastore.search([], 3) == []


def test_keys_do_not_depend_on_the_batch(bert: str) -> None:
    """Batches are formed by length; padding must not leak into the mean."""
    embedder = Embedder(bert)
    texts = ["short", "a much longer text than the others, with many more pieces in it", "middle sized text", ""]
    together = embedder.embed(texts)
    alone = np.concatenate([embedder.embed([text]) for text in texts])
    np.testing.assert_allclose(together, alone, atol=1e-5)
    assert embedder.embed([]).shape == (0, embedder.width)


def test_batches_by_length_cover_everything_within_the_budget() -> None:
    lengths = [3, 50, 7, 7, 1, 20]
    batches = batches_by_length(lengths, 50)
    assert sorted(index for batch in batches for index in batch) == list(range(6))
    assert all(len(batch) == 1 or len(batch) * max(lengths[i] for i in batch) <= 50 for batch in batches)


def test_embedding_goes_on_where_it_was_interrupted(
    workspace: Workspace, text_folder: Path, bert: str, tmp_path: Path, monkeypatch
) -> None:  # type: ignore[no-untyped-def]
    assert SHARD > 0
    monkeypatch.setattr("retro.retrieval.datastore.SHARD", 16)
    run, work = small_run(bert), Workspace(tmp_path)
    work.ingest([str(text_folder)], run.corpus)
    calls: list[int] = []
    original = Embedder.embed

    def failing(self: Embedder, texts, progress=None):  # type: ignore[no-untyped-def]
        calls.append(len(texts))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(self, texts, progress)

    monkeypatch.setattr(Embedder, "embed", failing)
    with pytest.raises(KeyboardInterrupt):
        work.build(run.datastore)
    before = len(calls)
    datastore = work.build(run.datastore)
    assert len(calls) - before == -(-len(datastore) // 16) - 2
    np.testing.assert_allclose(datastore.keys(), workspace.datastore().keys(), atol=1e-3)  # other batches round otherwise


def test_hnsw_finds_nearly_what_exact_search_finds() -> None:
    keys = np.random.default_rng(0).normal(size=(2000, 16)).astype(np.float32)
    exact, approximate = FaissIndex.for_size(16, 2000, 5000), FaissIndex.for_size(16, 2000, 1000)
    for index in (exact, approximate):
        index.add(keys)
    assert (exact.kind, approximate.kind) == ("exact", "hnsw")
    assert measure_recall(exact, keys) == 1.0
    assert measure_recall(approximate, keys) > 0.95
    _, rows = approximate.search(keys[:3], 500)
    assert (rows >= 0).all()


@pytest.mark.parametrize("num_documents", [1, 2])
def test_the_smallest_corpora_work(tmp_path: Path, bert: str, num_documents: int) -> None:
    """One document, shorter than a chunk, has no neighbour but itself: none."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(num_documents):
        (folder / f"{number}.txt").write_text(f"few words {number}")
    work = Workspace(tmp_path / "work")
    work.ingest([str(folder)], CorpusConfig(vocab_size=275, valid_fraction=0.0, test_fraction=0.0))
    datastore = work.build(DatastoreConfig(encoder=bert, chunk_len=64, num_neighbours=3))
    assert len(datastore) == num_documents
    neighbours = work.find_neighbours("train")
    assert neighbours.counts.tolist() == [num_documents - 1] * num_documents


def test_another_tokenizer_or_encoder_is_refused(workspace: Workspace, text_folder: Path, bert: str, tmp_path: Path) -> None:
    run, other = small_run(bert), Workspace(tmp_path)
    other.ingest([str(text_folder)], CorpusConfig(vocab_size=300, valid_fraction=0.15, test_fraction=0.15))
    with pytest.raises(ArtifactError, match=r"was made with tokenizer .*; expected .*; run: retro ingest"):
        from retro.retrieval.neighbours import find_neighbours

        find_neighbours(other.store("train"), workspace.datastore(), tmp_path / "neighbours")
    other.build(run.datastore)
    import json

    manifest = tmp_path / "datastore" / "manifest.json"
    content = json.loads(manifest.read_text())
    content["inputs"]["encoder"] = "0123"
    manifest.write_text(json.dumps(content))
    with pytest.raises(ArtifactError, match=r"built with another .*same encoder for keys and queries"):
        Datastore.open(tmp_path / "datastore").search(["text"], 1)


def test_a_truncated_index_is_named(text_folder: Path, bert: str, tmp_path: Path) -> None:
    run, work = small_run(bert), Workspace(tmp_path)
    work.ingest([str(text_folder)], run.corpus)
    index = work.build(run.datastore).artifact.file("index.faiss")
    index.write_bytes(index.read_bytes()[:100])
    with pytest.raises(ArtifactError, match=r"index.faiss is not a readable FAISS index.*retro build"):
        Datastore.open(tmp_path / "datastore")


def test_no_encoder_at_all_is_named() -> None:
    with pytest.raises(DataError, match=r"no encoder could be loaded from '/nowhere/bert'.*retro fetch minilm"):
        Embedder("/nowhere/bert")
