import numpy as np
import pytest

from retro.errors import ConfigError
from retro.retrieval.datastore import Neighbour
from retro.retrieval.retriever import Passage, Passages, Retriever, Searcher, stack_neighbours
from retro.workspace import Workspace


def test_passages_are_cut_and_padded(workspace: Workspace) -> None:
    tokenizer = workspace.datastore().tokenizer
    long = "the licence permits anyone to use this software. " * 10
    passages = Passages([Passage("copy", "A title"), long, " "], tokenizer, chunk_len=8)
    short, cut = passages.search([np.zeros(8)], 5)[0]
    assert isinstance(passages, Searcher)
    assert (passages.num_neighbours, short.title, cut.title) == (2, "A title", "passage 2")
    assert short.tokens.tolist() == [
        *tokenizer.encode("copy"),
        *[tokenizer.pad_id] * (16 - len(tokenizer.encode("copy"))),
    ]
    assert cut.tokens.tolist() == tokenizer.encode(long)[:16]
    assert long.startswith(cut.text)
    assert passages.search([np.zeros(8)] * 2, 1, exclude=["A title"]) == [[cut], [cut]]
    with pytest.raises(ConfigError, match="no passage holds text"):
        Passages([""], tokenizer, 8)


def test_the_retriever_skips_blank_chunks_and_gives_what_there_is(
    workspace: Workspace, texts: list[str]
) -> None:
    retriever, tokenizer = Retriever(workspace.datastore(), 2), workspace.datastore().tokenizer
    blank, real = (np.array(tokenizer.encode(text)[:8]) for text in (" \n" * 9, texts[0]))
    none, some, again = retriever.search([blank, real, real], 3)
    assert none == []
    assert len(some) == 3
    assert [n.chunk for n in some] == [n.chunk for n in again]
    assert len(retriever.search([real], 10**6)[0]) == len(workspace.datastore())
    assert retriever.search([], 2) == []


def test_missing_neighbours_are_masked() -> None:
    neighbour = Neighbour(0, 1.0, np.arange(1, 5), "", "", "", "")
    values, mask = stack_neighbours([[neighbour, neighbour], [], [neighbour]], 4, pad_id=9)
    assert mask.tolist() == [[True, True], [False, False], [True, False]]
    assert values[2].tolist() == [[1, 2, 3, 4], [9, 9, 9, 9]]
