import numpy as np
import pytest
import torch

from retro.errors import ConfigError, DataError
from retro.model.retro import Retro
from retro.retrieval.datastore import Neighbour
from retro.retrieval.retriever import Retriever
from retro.sampling.choice import Choice
from retro.sampling.colours import colour_sample
from retro.sampling.html import samples_table
from retro.sampling.sampler import Sample, Sampler
from retro.workspace import Workspace
from tests.workspaces import small_run

GREEDY = Choice(temperature=0.0)


@pytest.fixture
def sampler(workspace: Workspace, bert: str) -> Sampler:
    torch.manual_seed(0)
    return Sampler(Retro(small_run(bert).model), Retriever(workspace.datastore(), 2))


@pytest.mark.parametrize("prompt_tokens", [1, 7, 8, 9, 20])
def test_each_complete_chunk_is_searched_once_and_used(sampler: Sampler, texts: list[str], prompt_tokens: int) -> None:
    """The sample's tokens are the greedy choices of one full forward over all of them, with the neighbours that it reports."""
    tokenizer = sampler.retriever.tokenizer
    prompt = tokenizer.decode(tokenizer.encode(texts[0])[:prompt_tokens])
    sample = sampler.generate(prompt, 20, GREEDY)
    assert len(sample.neighbours) == len(sample.tokens) // 8
    for chunk, found in zip(sample.chunks(), sample.neighbours, strict=False):
        expected = sampler.retriever.datastore.search([tokenizer.decode(chunk)], 2)[0]
        assert [n.row for n in found] == [n.row for n in expected]
    values = np.stack([[n.tokens for n in found] for found in sample.neighbours])
    with torch.no_grad():
        logits = sampler.model(torch.tensor([sample.tokens]), torch.from_numpy(values)[None])[0]
    logits[:, 0] = -torch.inf
    predicted = logits.argmax(-1)[sample.prompt_len - 1 : -1].tolist()
    assert predicted == sample.continuation


def test_stream_is_generate(sampler: Sampler, texts: list[str]) -> None:
    whole = sampler.generate(texts[1], 12, Choice(), seed=5)
    parts = list(sampler.stream(texts[1], 12, Choice(), seed=5))
    assert [part.id for part in parts] == whole.continuation
    assert sum(part.neighbours is not None for part in parts) == len(whole.tokens) // 8 - whole.prompt_len // 8


def test_seeds_reproduce_and_differ(sampler: Sampler) -> None:
    first, again, other = (sampler.generate("the licence", 20, Choice(temperature=1.5), seed=seed).tokens for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_retrieval_off_retrieves_nothing(sampler: Sampler, texts: list[str]) -> None:
    sample = sampler.generate(texts[0], 5, GREEDY, retrieval=False)
    assert sample.neighbours == []


def test_excluded_documents_are_not_retrieved(workspace: Workspace, bert: str, texts: list[str]) -> None:
    model = Retro(small_run(bert).model)
    first = Sampler(model, Retriever(workspace.datastore(), 2)).generate(texts[0], 1, GREEDY)
    seen = {n.document for found in first.neighbours for n in found}
    again = Sampler(model, Retriever(workspace.datastore(), 2, exclude=tuple(seen))).generate(texts[0], 1, GREEDY)
    assert seen
    assert not seen & {n.document for found in again.neighbours for n in found}


def test_bad_requests_are_refused(sampler: Sampler, workspace: Workspace, bert: str) -> None:
    with pytest.raises(DataError, match="prompt is empty"):
        sampler.generate("", 3)
    with pytest.raises(ConfigError, match="num_neighbours is 0"):
        Retriever(workspace.datastore(), 0)
    import dataclasses

    for change, message in (({"chunk_len": 16}, "chunks have 8 tokens"), ({"vocab_size": 400}, "knows 320 tokens")):
        with pytest.raises(ConfigError, match=message):
            Sampler(Retro(dataclasses.replace(small_run(bert).model, **change)), sampler.retriever)  # type: ignore[arg-type]


def test_colours_show_common_runs_in_both_directions(workspace: Workspace) -> None:
    tokenizer = workspace.datastore().tokenizer
    neighbour = Neighbour(0, 1.0, np.array([20, 21, 22, 23, 24, 25, 0, 0]), "", "doc", "A title", "source")
    sample = Sample([10, 11, 20, 21, 22, 30, 24, 25, 24], prompt_len=5, chunk_len=4, neighbours=[[neighbour], []])
    first, second, third = colour_sample(sample, tokenizer)
    assert [span.overlap for span in first.spans] == [None] * 4
    assert [span.overlap for span in second.spans] == [3, 0, 1, 2]  # the run of 20, 21, 22 begins in the chunk before
    assert [span.overlap for span in third.spans] == [None]
    assert (first.prompt_len, second.prompt_len, third.prompt_len) == (4, 1, 0)
    shown = first.neighbours[0]
    assert [span.overlap for span in shown.neighbour] == [0, 0, 1, 0]
    assert [span.overlap for span in shown.continuation] == [1, 2]
    page = samples_table([first], [first, second, third], 2)
    assert page.count("<tr>") == 1 + 3
    assert "A title" in page
