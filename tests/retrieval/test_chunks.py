from pathlib import Path

import numpy as np

from retro.corpus.tokenizers.sentencepiece import END_ID, PAD_ID
from retro.retrieval.chunks import ChunkTable
from retro.workspace import Workspace


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
    from retro.corpus.tokenizers.sentencepiece import SentencePieceTokenizer, train_model
    from retro.corpus.tokens import write_tokens

    tokenizer = SentencePieceTokenizer(train_model(["some words\n" * 9], 280))
    common = {"source": "s", "title": "", "language": "", "num_bytes": 1}
    rows = [
        {"id": name, "content_hash": name * 32, "num_tokens": count, **common}
        for name, count in (("a", 15), ("b", 16))
    ]
    arrays = [np.full(15, 5, dtype=np.uint16), np.full(16, 6, dtype=np.uint16)]
    documents = [
        EncodedDocument(number, row, tokens)
        for number, (row, tokens) in enumerate(zip(rows, arrays, strict=True))
    ]
    table = ChunkTable(write_tokens(documents, tmp_path / "tokens", tokenizer, {}, {}), 8)
    assert table.lengths.tolist() == [8, 8, 8, 8, 1]
    values = table.gather(np.arange(5), 16)
    assert (
        values[1].tolist() == [5] * 7 + [END_ID] + [PAD_ID] * 8
    )  # the continuation stops at the document's end
    assert values[2].tolist() == [6] * 16
    assert values[3].tolist() == [6] * 8 + [END_ID] + [PAD_ID] * 7
