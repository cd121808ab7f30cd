"""Runs that a chunk shares with its neighbours: where each ends, how long it is, and in which neighbour."""

import numpy as np

from retro.corpus.tokenizers.tokenizer import Tokenizer
from retro.retrieval.datastore import Neighbour
from retro.retrieval.search import Place
from retro.retrieval.shared_runs import LONGEST, Span, colour_chunks
from retro.workspace import Workspace


def neighbour(tokens: list[int]) -> Neighbour:
    return Neighbour(0, 1.0, np.array(tokens), "", "doc", "title", "source", Place(1, 4, 4, 8))


def coloured(workspace: Workspace, chunk: list[int], *found: list[int]) -> list[Span]:
    tokenizer: Tokenizer = workspace.datastore().tokenizer
    chunks = [[10, 11, 12, 13], chunk]
    return colour_chunks(chunks, [[neighbour(tokens) for tokens in found]], tokenizer)[1].spans


def test_all_tokens_of_a_run_know_its_length_and_its_neighbour(workspace: Workspace) -> None:
    spans = coloured(
        workspace,
        [30, 31, 32, 40, 30, 31],
        [50, 51, 30, 31, 60, 61, 62, 63],
        [30, 31, 32, 70, 40, 71, 72, 73],
    )
    assert [span.overlap for span in spans] == [1, 2, 3, 1, 1, 2]
    assert [span.run for span in spans] == [3, 3, 3, 1, 2, 2]
    # The run of three stands in the second neighbour alone, the run of two in both: the first counts.
    assert [span.rank for span in spans] == [1, 1, 1, 1, 0, 0]
    assert [span.level for span in spans] == [3, 3, 3, 1, 2, 2]


def test_what_is_not_shared_has_no_neighbour(workspace: Workspace) -> None:
    spans = coloured(workspace, [30, 99], [30, 31, 32, 33, 60, 61, 62, 63])
    assert [(span.run, span.rank) for span in spans] == [(1, 0), (0, None)]
    assert [span.rank for span in coloured(workspace, [30, 31])] == [None, None]


def test_levels_end_at_the_longest() -> None:
    assert Span("a", None).level is None
    assert Span("a", 9).level == LONGEST
    assert Span("a", 1, run=4).level == 4


def test_a_neighbour_keeps_its_place(workspace: Workspace) -> None:
    tokenizer = workspace.datastore().tokenizer
    chunk, _ = colour_chunks([[1, 2], [3, 4]], [[neighbour([5, 6, 7, 8])]], tokenizer)
    assert chunk.neighbours[0].place == Place(1, 4, 4, 8)


def test_a_place_is_where_the_document_holds_the_tokens(workspace: Workspace) -> None:
    datastore = workspace.datastore()
    store = workspace.store("train")
    rows = {(row["source"], row["id"]): number for number, row in enumerate(store.documents)}
    (found,) = datastore.search(["the licence permits anyone to use the software"], 4)
    assert len(found) == 4
    for hit in found:
        assert hit.place is not None
        document = store.document(rows[hit.source, hit.document])
        held = document[hit.place.start : hit.place.end].tolist()
        assert hit.tokens[: len(held)].tolist() == held
        assert len(held) == datastore.chunk_len or hit.place.chunk == hit.place.num_chunks - 1
