import dataclasses
import itertools
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from retro.errors import ConfigError, DataError
from retro.generation.batch import retrieve
from retro.generation.request import Choice, Prompt, Request, Retrieval
from retro.generation.sampler import Sampler
from retro.generation.sequence import Sample
from retro.model.retro import Retro
from retro.retrieval.datastore import Datastore, Neighbour
from retro.retrieval.retriever import Passages, Retriever, stack_neighbours
from retro.workspace import Workspace
from tests.retrieval.datastores import held, make_documents
from tests.workspaces import small_run

GREEDY = Choice(temperature=0.0)
WILD = Choice(temperature=1.5)


def random_model(bert: str, baseline: bool = False) -> Retro:
    """Double precision, so that a batch and its sequences alone give the same tokens for certain."""
    torch.manual_seed(0)
    config = small_run(bert).model
    return Retro(config.baseline() if baseline else config).double()


@pytest.fixture(scope="module")
def sampler(workspace: Workspace, bert: str) -> Sampler:
    return Sampler(random_model(bert), Retriever(workspace.datastore(), 2))


def full_logits(model: Retro, sample: Sample) -> torch.Tensor:
    """One full forward over a finished sample with the neighbours that it reports."""
    inputs = [torch.tensor([sample.tokens])]
    if any(sample.neighbours):
        inputs += [
            torch.from_numpy(array)[None]
            for array in stack_neighbours(sample.neighbours, model.config.retrieved_len, 0)
        ]
    with torch.no_grad():
        logits: torch.Tensor = model(*inputs)[0]
    return logits


def check_greedy(model: Retro, sample: Sample) -> None:
    logits = full_logits(model, sample)
    logits[:, 0] = -torch.inf
    assert logits.argmax(-1)[sample.prompt_len - 1 : -1].tolist() == sample.continuation


@pytest.mark.parametrize("prompt_tokens", [1, 7, 8, 9, 20])
def test_each_complete_chunk_is_searched_once_and_used(
    sampler: Sampler, texts: list[str], prompt_tokens: int
) -> None:
    """The tokens are the greedy choices of one full forward over them, with the neighbours it reports."""
    tokenizer, retriever = sampler.tokenizer, sampler.retriever
    assert isinstance(retriever, Retriever)
    prompt = tokenizer.decode(tokenizer.encode(texts[0])[:prompt_tokens])
    sample = sampler.generate(prompt, max_tokens=20, choice=GREEDY)
    assert len(sample.neighbours) == len(sample.tokens) // 8
    for chunk, found in zip(sample.chunks(), sample.neighbours, strict=False):
        expected = retriever.datastore.search([tokenizer.decode(chunk)], 2)[0]
        assert [n.chunk for n in found] == [n.chunk for n in expected]
    check_greedy(sampler.model, sample)
    assert prompt + sample.text == tokenizer.decode(sample.tokens)
    assert sample.finish == "length"


def test_a_pointer_is_sampled_as_the_full_forward_scores_it(
    workspace: Workspace, bert: str, texts: list[str]
) -> None:
    """Alone and in a batch of unlike lengths; and it is heard."""
    plain = random_model(bert)
    retrieval = dataclasses.replace(plain.config.retrieval, pointer=True)
    torch.manual_seed(0)
    model = Retro(dataclasses.replace(plain.config, retrieval=retrieval)).double()
    pointing = Sampler(model, Retriever(workspace.datastore(), 2))
    prompts = ["the", texts[0][:40], texts[1]]
    samples = [sample for (sample,) in pointing.generate_all(prompts, max_tokens=20, choice=GREEDY)]
    for prompt, sample in zip(prompts, samples, strict=True):
        check_greedy(model, sample)
        assert pointing.generate(prompt, max_tokens=20, choice=GREEDY).tokens == sample.tokens
    other = Sampler(plain, pointing.retriever).generate(texts[1], max_tokens=20, choice=GREEDY)
    assert samples[2].tokens != other.tokens
    without, expected = (
        Sampler(each, None, pointing.tokenizer).generate(texts[1], max_tokens=20, choice=GREEDY)
        for each in (model, plain)
    )
    assert without.tokens == expected.tokens


def test_stream_is_generate(sampler: Sampler, texts: list[str]) -> None:
    whole = sampler.generate(texts[1], max_tokens=12, choice=Choice(), seed=5)
    parts = list(sampler.stream(texts[1], max_tokens=12, choice=Choice(), seed=5))
    assert [part.id for part in parts] == whole.continuation
    assert "".join(part.text for part in parts) == whole.text
    assert [part.finish for part in parts] == [None] * 11 + ["length"]
    told = [[n.chunk for n in part.neighbours] for part in parts if part.neighbours is not None]
    assert told == [[n.chunk for n in found] for found in whole.neighbours[whole.prompt_len // 8 :]]
    assert told


def test_a_batch_is_its_sequences_alone(sampler: Sampler, texts: list[str]) -> None:
    """Prompts of unlike lengths, each on its own chunk grid; some end early by a stop token and leave."""
    choice = Choice(temperature=1.5, top_p=0.95, stop_tokens=tuple(range(3, 18)), repetition_penalty=1.3)
    prompts = ["the", texts[0][:40], "licence", texts[1], "a 🜚"]
    together = sampler.generate_all(prompts, max_tokens=12, choice=choice, seed=3, log_probs=True)
    alone = [
        sampler.generate(prompt, max_tokens=12, choice=choice, seed=3, log_probs=True) for prompt in prompts
    ]
    for (sample,), expected in zip(together, alone, strict=True):
        assert (sample.tokens, sample.text, sample.finish) == (
            expected.tokens,
            expected.text,
            expected.finish,
        )
        assert sample.log_probs == pytest.approx(expected.log_probs)
        assert [[n.chunk for n in found] for found in sample.neighbours] == [
            [n.chunk for n in found] for found in expected.neighbours
        ]
    assert {sample.finish for sample in alone} >= {"length", "stop"}
    assert len({len(sample.continuation) for sample in alone}) > 2


def test_several_samples_of_a_prompt(sampler: Sampler, texts: list[str]) -> None:
    (first, second, third), (other, *_) = sampler.generate_all(
        [texts[0][:30], "the"], max_tokens=14, choice=WILD, seed=1, samples=3
    )
    assert len({tuple(sample.tokens) for sample in (first, second, third)}) == 3
    assert first.tokens == sampler.generate(texts[0][:30], max_tokens=14, choice=WILD, seed=1).tokens
    assert other.tokens == sampler.generate("the", max_tokens=14, choice=WILD, seed=1).tokens
    assert sampler.generate_all([], max_tokens=5) == []
    for sample in (first, second, third):
        assert len(sample.neighbours) == len(sample.tokens) // 8


def test_seeds_reproduce_and_differ(sampler: Sampler) -> None:
    first, again, other = (
        sampler.generate("the licence", max_tokens=20, choice=WILD, seed=seed).tokens for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


def test_log_probabilities_are_the_models(sampler: Sampler, texts: list[str]) -> None:
    sample = sampler.generate(
        texts[0][:30], max_tokens=12, choice=Choice(temperature=1.5, top_k=9), log_probs=True
    )
    logs = full_logits(sampler.model, sample).log_softmax(-1)[sample.prompt_len - 1 : -1]
    expected = logs.gather(-1, torch.tensor(sample.continuation)[:, None])[:, 0].tolist()
    assert sample.log_probs == pytest.approx(expected, abs=1e-9)
    assert sampler.generate("the", max_tokens=2).log_probs is None


def test_a_stop_text_ends_a_sample_across_tokens(sampler: Sampler) -> None:
    free = sampler.generate("the licence", max_tokens=30, choice=WILD, seed=2)
    parts_of = sampler.tokenizer.pieces(free.continuation)
    stop = next(a[-1] + b[0] for a, b in itertools.pairwise(parts_of[5:]) if (a and b and (a + b).isascii()))
    cut = free.text.index(stop)
    sample = sampler.generate(
        "the licence", max_tokens=30, choice=dataclasses.replace(WILD, stop=(stop,)), seed=2
    )
    assert (sample.text, sample.finish) == (free.text[:cut], "stop")
    assert free.tokens[: len(sample.tokens)] == sample.tokens
    assert 5 < len(sample.continuation) < 30
    parts = list(
        sampler.stream("the licence", max_tokens=30, choice=dataclasses.replace(WILD, stop=(stop,)), seed=2)
    )
    assert "".join(part.text for part in parts) == sample.text
    late, long = (dataclasses.replace(WILD, stop=stops, min_tokens=30) for stops in ((stop,), ()))
    assert (
        sampler.generate("the licence", max_tokens=30, choice=late, seed=2).text
        == sampler.generate("the licence", max_tokens=30, choice=long, seed=2).text
    )


def test_nothing_ends_a_sample_before_its_least_length(sampler: Sampler) -> None:
    enders = tuple(range(3, 300))
    free = sampler.generate(
        "the", max_tokens=10, choice=dataclasses.replace(WILD, stop_tokens=enders), seed=0
    )
    held = sampler.generate(
        "the", max_tokens=10, choice=dataclasses.replace(WILD, stop_tokens=enders, min_tokens=6), seed=0
    )
    assert len(free.continuation) < 6 <= len(held.continuation)
    assert not set(held.continuation[:6]) & {sampler.tokenizer.end_id, *enders}


def test_the_end_of_a_document_ends_a_sample(workspace: Workspace, bert: str) -> None:
    model = random_model(bert, baseline=True)
    with torch.no_grad():
        model.embedding.weight[2] = (
            50 * model.norm.weight
        )  # the end token's logit is the sum of the activations
    sampler = Sampler(model, tokenizer=workspace.datastore().tokenizer)
    found = [
        sampler.generate(prompt, max_tokens=4, choice=GREEDY)
        for prompt in ("the", "a", "licence", "use", "copy this", "any")
    ]
    ended = [sample for sample in found if sample.finish == "end"]
    assert ended
    assert all(2 not in sample.tokens for sample in ended)
    last = list(sampler.stream(ended[0].prompt, max_tokens=4, choice=GREEDY))[-1]
    assert (last.id, last.finish) == (2, "end")


def test_retrieval_off_retrieves_nothing(sampler: Sampler, texts: list[str]) -> None:
    sample = sampler.generate(texts[0], max_tokens=5, choice=GREEDY, retrieval=False)
    assert sample.neighbours == []
    assert not sample.retrieval
    check_greedy(sampler.model, sample)


def test_a_baseline_needs_no_datastore(workspace: Workspace, bert: str, texts: list[str]) -> None:
    tokenizer = workspace.datastore().tokenizer
    plain = Sampler(random_model(bert, baseline=True), tokenizer=tokenizer).generate(
        texts[0][:30], max_tokens=12, choice=GREEDY
    )
    assert plain.neighbours == []
    off = Sampler(random_model(bert), tokenizer=tokenizer).generate(
        texts[0][:30], max_tokens=12, choice=GREEDY
    )
    check_greedy(random_model(bert), off)


def test_excluded_documents_are_not_retrieved(workspace: Workspace, bert: str, texts: list[str]) -> None:
    model = random_model(bert)
    first = Sampler(model, Retriever(workspace.datastore(), 2)).generate(
        texts[0], max_tokens=1, choice=GREEDY
    )
    seen = {n.document for found in first.neighbours for n in found}
    asked = Sampler(model, Retriever(workspace.datastore(), 2)).generate(
        texts[0], max_tokens=1, choice=GREEDY, retrieval=Retrieval(exclude=tuple(seen))
    )
    assert seen
    assert not seen & {n.document for found in asked.neighbours for n in found}


@pytest.mark.parametrize(
    "settings", [Retrieval(every=2), Retrieval(num_neighbours=1), Retrieval(num_neighbours=10**6)]
)
def test_other_ways_to_retrieve_are_the_full_forward_too(
    sampler: Sampler, texts: list[str], settings: Retrieval
) -> None:
    """More neighbours than the datastore holds are all of them; chunks between two retrievals have none."""
    sample = sampler.generate(texts[0][:60], max_tokens=20, choice=GREEDY, retrieval=settings)
    held = len(sampler.retriever.datastore)  # type: ignore[union-attr]
    wanted = min(settings.num_neighbours or 2, held)
    assert [len(found) for found in sample.neighbours] == [
        wanted if (number + 1) % settings.every == 0 else 0 for number in range(len(sample.tokens) // 8)
    ]
    check_greedy(sampler.model, sample)


def test_given_passages_are_every_chunks_neighbours(
    workspace: Workspace, bert: str, texts: list[str]
) -> None:
    model, tokenizer = random_model(bert), workspace.datastore().tokenizer
    sample = Sampler(model, Passages([texts[2], "short"], tokenizer, 8)).generate(
        texts[0][:30], max_tokens=14, choice=GREEDY
    )
    assert [[n.title for n in found] for found in sample.neighbours] == [["passage 1", "passage 2"]] * (
        len(sample.tokens) // 8
    )
    check_greedy(model, sample)


def test_sampling_goes_on_where_nothing_is_found(sampler: Sampler, texts: list[str]) -> None:
    everything = tuple(held(sampler.retriever.datastore))  # type: ignore[union-attr]
    sample = sampler.generate(
        texts[0][:30], max_tokens=12, choice=GREEDY, retrieval=Retrieval(exclude=everything)
    )
    assert not any(sample.neighbours)
    assert (
        sample.tokens == sampler.generate(texts[0][:30], max_tokens=12, choice=GREEDY, retrieval=False).tokens
    )


def test_a_window_that_covers_all_changes_nothing(sampler: Sampler, texts: list[str]) -> None:
    wide = Sampler(sampler.model, sampler.retriever, window=200)
    assert (
        wide.generate(texts[0][:30], max_tokens=12, choice=GREEDY).tokens
        == sampler.generate(texts[0][:30], max_tokens=12, choice=GREEDY).tokens
    )
    assert (
        len(
            Sampler(sampler.model, sampler.retriever, window=4)
            .generate(texts[0][:30], max_tokens=12, choice=GREEDY)
            .continuation
        )
        == 12
    )


def test_bad_requests_are_refused(sampler: Sampler, workspace: Workspace, bert: str) -> None:
    with pytest.raises(DataError, match="prompt is empty"):
        sampler.generate("", max_tokens=3)
    with pytest.raises(DataError, match="character 3 is half a surrogate pair"):
        sampler.stream("ab\ud800", max_tokens=3)
    with pytest.raises(ConfigError, match="max_tokens is 3; expected at least 5"):
        sampler.generate("a", max_tokens=3, choice=Choice(min_tokens=5))
    with pytest.raises(ConfigError, match="samples is 0"):
        sampler.generate_all(["a"], max_tokens=3, samples=0)
    with pytest.raises(ConfigError, match="num_neighbours is 0"):
        Retriever(workspace.datastore(), 0)
    with pytest.raises(ConfigError, match="neither a retriever nor a tokenizer"):
        Sampler(sampler.model)
    for sampler_off, missing in (
        (Sampler(sampler.model, tokenizer=sampler.tokenizer), "a retriever"),
        (Sampler(random_model(bert, baseline=True), sampler.retriever), "a model with cross-attention"),
    ):
        with pytest.raises(ConfigError, match=f"without {missing}"):
            sampler_off.generate("a", max_tokens=3, retrieval=Retrieval())
    for change, message in (
        ({"chunk_len": 16}, "chunks have 8 tokens"),
        ({"vocab_size": 400}, "knows 320 tokens"),
    ):
        with pytest.raises(ConfigError, match=message):
            Sampler(Retro(dataclasses.replace(small_run(bert).model, **change)), sampler.retriever)


def test_a_datastore_that_changes_while_it_is_sampled(
    workspace: Workspace, bert: str, texts: list[str], tmp_path: Path
) -> None:
    """Documents that are deleted and compacted away between two chunks are not retrieved any more.

    Sampling goes on, even without the folder.
    """
    shutil.copytree(workspace.datastore_path, tmp_path / "datastore")
    datastore = Datastore.open(tmp_path / "datastore")
    stream = Sampler(random_model(bert), Retriever(datastore, 2)).stream(
        texts[0][:60], max_tokens=40, choice=Choice(temperature=0.0, min_tokens=40)
    )
    told = []
    for token in stream:
        if token.neighbours is not None:
            told.append({neighbour.document for neighbour in token.neighbours})
            writer = Datastore.open(tmp_path / "datastore") if len(told) < 4 else None
            if writer is not None:
                writer.delete(ids=sorted(told[-1]))
                writer.compact()
                writer.close()
            else:
                shutil.rmtree(tmp_path / "datastore", ignore_errors=True)
    assert len(told) >= 5
    assert all(not later & earlier for number, earlier in enumerate(told[:3]) for later in told[number + 1 :])


def test_an_empty_datastore_is_retrieval_off(
    workspace: Workspace, bert: str, texts: list[str], tmp_path: Path
) -> None:
    shutil.copytree(workspace.datastore_path, tmp_path / "datastore")
    datastore = Datastore.open(tmp_path / "datastore")
    datastore.delete(ids=sorted(held(datastore)))
    datastore.compact()
    model = random_model(bert)
    sampler = Sampler(model, Retriever(datastore, 2))
    sample = sampler.generate(texts[0][:60], max_tokens=20, choice=GREEDY)
    assert not any(sample.neighbours)
    assert (
        sample.tokens == sampler.generate(texts[0][:60], max_tokens=20, choice=GREEDY, retrieval=False).tokens
    )


def test_sources_can_be_chosen(workspace: Workspace, bert: str, texts: list[str], tmp_path: Path) -> None:
    shutil.copytree(workspace.datastore_path, tmp_path / "datastore")
    datastore = Datastore.open(tmp_path / "datastore")
    datastore.add(make_documents([text[::-1] for text in texts[:3]], "mirror"))
    sampler = Sampler(random_model(bert), Retriever(datastore, 2))
    sample = sampler.generate(
        texts[0][:60], max_tokens=10, choice=GREEDY, retrieval=Retrieval(sources=("mirror",))
    )
    assert {neighbour.source for found in sample.neighbours for neighbour in found} == {"mirror"}
    with pytest.raises(DataError, match="has the source 'nowhere'"):
        sampler.generate(
            texts[0][:60], max_tokens=10, choice=GREEDY, retrieval=Retrieval(sources=("nowhere",))
        )


class Counting:
    """A retriever of nothing that counts what it is asked."""

    def __init__(self, workspace: Workspace) -> None:
        self.tokenizer, self.chunk_len, self.num_neighbours = workspace.datastore().tokenizer, 8, 3
        self.asked: list[tuple[int, int]] = []

    def search(
        self, chunks: Sequence[np.ndarray], k: int, sources: Sequence[str] = (), exclude: Sequence[str] = ()
    ) -> list[list[Neighbour]]:
        self.asked.append((len(chunks), k))
        return [[] for _ in chunks]


def test_only_every_so_many_chunks_are_searched_all_at_once(workspace: Workspace) -> None:
    searcher, chunks = Counting(workspace), [(number, [0] * 8) for number in range(5)]
    retrieve(searcher, Retrieval(every=2), chunks)
    retrieve(searcher, Retrieval(num_neighbours=7), chunks)
    retrieve(searcher, Retrieval(every=9), chunks)
    assert searcher.asked == [(2, 3), (5, 7)]


def test_a_request_says_what_a_prompt_and_keywords_say(sampler: Sampler, texts: list[str]) -> None:
    """And what is given beside a request replaces its own fields."""
    request = Request(prompts=[texts[0][:30]], max_tokens=6, choice=WILD, seed=4)
    tokens = sampler.generate(texts[0][:30], max_tokens=6, choice=WILD, seed=4).tokens
    assert sampler.generate(request).tokens == tokens
    assert [token.id for token in sampler.stream(request)] == tokens[-6:]
    assert (
        sampler.generate(Prompt(sampler.tokenizer.encode(texts[0][:30])), **_fields(request)).tokens == tokens
    )
    several = sampler.generate_all(request, samples=2, seed=4)
    assert [len(several), len(several[0])] == [1, 2]
    assert several[0][0].tokens == tokens
    for wanted in (sampler.generate, sampler.stream):
        with pytest.raises(ConfigError, match="for 2 samples; expected one; use generate_all"):
            wanted(request, samples=2)


def _fields(request: Request) -> dict:
    return {field.name: getattr(request, field.name) for field in dataclasses.fields(request)[1:]}


def test_passages_of_a_request_take_the_datastores_place(sampler: Sampler, texts: list[str]) -> None:
    """Without a retriever too; and a model that cannot read them refuses."""
    request = Request(
        prompts=[texts[0][:30]],
        max_tokens=14,
        choice=GREEDY,
        retrieval=Retrieval(passages=(texts[2], "short")),
    )
    given = Sampler(sampler.model, Passages([texts[2], "short"], sampler.tokenizer, 8))
    expected = given.generate(request, retrieval=True)
    plain = Sampler(sampler.model, tokenizer=sampler.tokenizer)
    for each in (sampler, plain):
        sample = each.generate(request)
        assert sample.retrieval
        assert sample.tokens == expected.tokens
        assert [[n.title for n in found] for found in sample.neighbours] == [["passage 1", "passage 2"]] * (
            len(sample.tokens) // 8
        )
    check_greedy(sampler.model, expected)
