"""Neighbours by BM25 beside a datastore of keys, against a datastore that is built for BM25."""

from pathlib import Path

import numpy as np
import pytest

from retro.errors import ConfigError
from retro.retrieval.finding import find_neighbours
from retro.retrieval.lexical import WordRetriever, search_by_words
from retro.workspace import Workspace
from tests.retrieval.datastores import build, corpus_of

pytest.importorskip("bm25s")


@pytest.mark.parametrize("deleted", [False, True])
def test_they_are_those_of_a_datastore_of_words(
    text_folder: Path, static_encoder: str, tmp_path: Path, deleted: bool
) -> None:
    work = corpus_of(tmp_path / "work", text_folder)
    by_keys = build(work, tmp_path / "keys", static_encoder)
    by_words = build(work, tmp_path / "words", static_encoder, index="bm25")
    if deleted:
        for datastore in (by_keys, by_words):
            datastore.delete(["00.txt", "07.txt"])
    dense = find_neighbours(work.store("train"), by_keys, tmp_path / "dense")
    expected = find_neighbours(work.store("train"), by_words, tmp_path / "expected")
    found = search_by_words(dense)
    np.testing.assert_array_equal(found.chunks, expected.chunks)
    np.testing.assert_allclose(found.distances, expected.distances, rtol=1e-6)
    assert found.index_bytes > 0
    lexical = dense.replaced(found.chunks, found.distances)
    chunks = np.arange(len(dense.table))
    for mine, theirs in zip(lexical.values(chunks, 2), expected.values(chunks, 2), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert not np.array_equal(lexical.chunks, dense.chunks)


def test_a_live_search_finds_what_a_saved_one_does(workspace: Workspace) -> None:
    neighbours = workspace.neighbours("test")
    found = search_by_words(neighbours)
    retriever = WordRetriever(workspace.datastore(), 2)
    asked = [chunk for chunk in range(len(neighbours.table)) if (found.chunks[chunk] >= 0).all()][:20]
    live = retriever.search([neighbours.table.tokens(chunk) for chunk in asked], found.chunks.shape[1])
    for chunk, row in zip(asked, live, strict=True):
        # Documents of the test split are not in the datastore, so nothing has to be left out.
        assert [one.chunk for one in row] == found.chunks[chunk].tolist()
    assert asked
    assert retriever.search([np.zeros(0, dtype=np.int64)], 2) == [[]]
    with pytest.raises(ConfigError, match="expected no filter"):
        retriever.search([], 2, sources=["x"])
