"""Lists, counts and passages of a datastore, always of its newest version."""

from pathlib import Path

import pytest

from retro.errors import DataError
from retro.retrieval.datastore import Datastore
from retro.retrieval.datastore.listing import are_live, count_sources, list_documents, read_document
from tests.retrieval.datastores import build, corpus_of, held, make_documents


@pytest.fixture
def datastore(tmp_path: Path, text_folder: Path, static_encoder: str) -> Datastore:
    return build(corpus_of(tmp_path / "work", text_folder), tmp_path / "datastore", static_encoder)


def test_documents_are_listed_counted_and_read(datastore: Datastore, texts: list[str]) -> None:
    everything = list_documents(datastore, 1000)
    assert everything.total == len(everything.rows) == len(texts)
    first = list_documents(datastore, 10)
    rest = list_documents(datastore, 1000, after=first.rows[-1].number)
    assert first.rows + rest.rows == everything.rows
    version, sizes = count_sources(datastore)
    assert version == everything.version
    assert sum(size.documents for size in sizes) == len(texts)
    assert sum(size.bytes for size in sizes) == sum(len(text.encode()) for text in texts)
    assert list_documents(datastore, 10, text="07.T").rows[0].id == "07.txt"
    passage = read_document(datastore, "07.txt", 0, 100_000)
    assert datastore.tokenizer.decode(passage.tokens) == texts[7]
    middle = read_document(datastore, passage.row.content_hash, 43, 16)
    assert (middle.start, middle.end) == (40, 56)
    assert middle.tokens == passage.tokens[40:56]
    # Beyond its end it is the last chunk.
    assert read_document(datastore, "07.txt", 10**9, 16).end == passage.row.num_tokens
    with pytest.raises(DataError, match="no document"):
        read_document(datastore, "nothing", 0, 8)
    datastore.close()


def test_what_is_deleted_is_nowhere(datastore: Datastore) -> None:
    row = list_documents(datastore, 1).rows[0]
    assert are_live(datastore, [row.first_chunk, 10**9]) == [True, False]
    datastore.delete(content_hashes=[row.content_hash])
    assert row.id not in {other.id for other in list_documents(datastore, 1000).rows}
    assert are_live(datastore, [row.first_chunk]) == [False]
    with pytest.raises(DataError):
        read_document(datastore, row.id, 0, 8)
    datastore.compact()
    assert are_live(datastore, [row.first_chunk]) == [False]
    assert list_documents(datastore, 1000).total == 39
    datastore.close()


def test_documents_are_left_out_by_id_or_content_hash(datastore: Datastore, texts: list[str]) -> None:
    copies = make_documents([texts[3], texts[3]])
    datastore.add(copies)
    content_hash = copies[0].content_hash
    found = datastore.search([texts[3][:60]], 1000)[0]
    assert {neighbour.document for neighbour in found} == held(datastore)
    assert {n.content_hash for n in found if n.document == "03.txt"} == {content_hash}
    # All copies of a text go by its hash, and one by its id.
    by_hash = datastore.search([texts[3][:60]], 1000, exclude=[content_hash])[0]
    assert held(datastore) - {n.document for n in by_hash} == {"03.txt", "more-0", "more-1"}
    by_id = datastore.search([texts[3][:60]], 1000, exclude=["03.txt"])[0]
    assert held(datastore) - {n.document for n in by_id} == {"03.txt"}
    with pytest.raises(DataError, match="no document"):
        datastore.search(["x"], 1, exclude=["f" * 32])
    datastore.close()
