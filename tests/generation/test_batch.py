"""A running batch: sequences come and go, and each is what it would be alone."""

from typing import Any

import pytest
import torch

from retro.errors import DataError
from retro.generation.batch import RunningBatch
from retro.generation.request import Choice, Request, Retrieval
from retro.generation.sampler import Sampler
from retro.generation.sequence import Growing, Token
from retro.retrieval.retriever import Retriever
from retro.workspace import Workspace
from tests.generation.test_sampler import random_model

WAYS: list[dict[str, Any]] = [
    {"max_tokens": 17},
    {"max_tokens": 9, "seed": 4, "choice": Choice(temperature=0.0)},
    {"max_tokens": 21, "retrieval": False, "choice": Choice(top_k=5, temperature=1.3)},
    {"max_tokens": 12, "samples": 2, "choice": Choice(frequency_penalty=1.0, presence_penalty=-0.5)},
    {"max_tokens": 14, "retrieval": Retrieval(num_neighbours=1, every=2), "choice": Choice(top_p=0.7)},
    {"max_tokens": 8, "choice": Choice(repetition_penalty=1.4)},
]


@pytest.fixture(scope="module")
def sampler(workspace: Workspace, bert: str) -> Sampler:
    return Sampler(random_model(bert), Retriever(workspace.datastore(), 2))


def requests_of(texts: list[str]) -> list[Request]:
    return [Request(prompts=[texts[n][: 9 + 23 * n]], **way) for n, way in enumerate(WAYS)]


@pytest.mark.parametrize("pace", [1, 3, 6])
def test_sequences_that_come_later_are_what_they_would_be_alone(
    sampler: Sampler, texts: list[str], pace: int
) -> None:
    requests = requests_of(texts)
    alone = [[sample.text for sample in sampler.generate_all(request)[0]] for request in requests]
    groups = [sampler.begin(request)[0] for request in requests]
    batch = RunningBatch(sampler.model)
    waiting, most = list(groups), 0
    turn = 0
    while waiting or batch.sequences:
        if waiting and turn % pace == 0:
            batch.join([waiting.pop(0)])
        most = max(most, len(batch.sequences))
        batch.draw()
        batch.feed()
        turn += 1
    assert [[sequence.sample.text for sequence in group] for group in groups] == alone
    assert most > 2


def test_sequences_that_are_taken_out_leave_the_others_as_they_are(
    sampler: Sampler, texts: list[str]
) -> None:
    requests = requests_of(texts)
    alone = [sampler.generate_all(request)[0][0].text for request in requests]
    groups = [sampler.begin(request)[0] for request in requests]
    batch = RunningBatch(sampler.model)
    batch.join(groups)
    for turn in range(30):
        batch.draw()
        batch.feed()
        if turn == 3:
            batch.leave([*groups[0], *groups[3]])
            batch.leave(groups[0])  # once more is no error
    assert [groups[n][0].sample.text for n in (1, 2, 4, 5)] == [alone[n] for n in (1, 2, 4, 5)]
    assert len(groups[0][0].sample.continuation) == 4


def test_a_search_that_fails_ends_its_own_sequences(
    sampler: Sampler, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = requests_of(texts)
    alone = sampler.generate(requests[2]).text
    retriever = sampler.retriever
    assert retriever is not None

    def fail(*_: Any) -> Any:
        raise DataError("the memory is gone")

    search = retriever.search
    for isolate in (True, False):
        groups = [sampler.begin(requests[n])[0] for n in (0, 2)]
        batch = RunningBatch(sampler.model, isolate=isolate)
        monkeypatch.setattr(retriever, "search", search)
        batch.join(groups)
        monkeypatch.setattr(retriever, "search", fail)
        told: list[tuple[Growing, Token]] = []
        if not isolate:
            with pytest.raises(DataError, match="gone"):
                for _ in range(30):
                    told += batch.draw()
                    batch.feed()
            continue
        while batch.sequences:
            told += batch.draw()
            batch.feed()
        assert isinstance(groups[0][0].fault, DataError)
        assert groups[0][0].sample.finish is None
        assert groups[1][0].sample.text == alone


def test_a_penalty_for_each_time_lets_no_token_come_twice(sampler: Sampler) -> None:
    choice = Choice(temperature=0.0, frequency_penalty=1e6)
    sample = sampler.generate("The licence", max_tokens=40, choice=choice)
    assert len(set(sample.continuation)) == len(sample.continuation)
    plain = sampler.generate("The licence", max_tokens=40, choice=Choice(temperature=0.0))
    assert len(set(plain.continuation)) < len(plain.continuation)


def test_the_most_probable_tokens_are_told(sampler: Sampler) -> None:
    tokens = list(sampler.stream("The licence", max_tokens=5, log_probs=True, top_log_probs=3))
    for token in tokens:
        best = [log_prob for _, log_prob in token.top]
        assert len(best) == 3
        assert best == sorted(best, reverse=True)
        assert token.log_prob is not None
        assert token.log_prob <= best[0] + 1e-9
    off: dict[str, Any] = {"retrieval": False, "choice": Choice(temperature=0.0)}
    greedy = list(sampler.stream("The licence", max_tokens=5, top_log_probs=1, **off))
    with torch.no_grad():
        prompt = sampler.tokenizer.encode("The licence")
        logits = sampler.model(torch.tensor([prompt]))[0, -1]
    assert greedy[0].top[0][1] == pytest.approx(float(logits.log_softmax(-1).max()))
