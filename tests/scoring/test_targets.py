import dataclasses
import math

import numpy as np
import pytest
import torch

from retro.config import EvaluationConfig
from retro.errors import ConfigError
from retro.generation.request import Choice
from retro.generation.sampler import Sampler
from retro.model.retro import Retro
from retro.retrieval.retriever import Retriever
from retro.scoring.bits_per_byte import score
from retro.scoring.targets import Prompted, TargetScores, encode_pair, score_targets
from retro.workspace import Workspace
from tests.workspaces import small_run

CONFIG = EvaluationConfig(window=32, stride=16, batch_size=3)


@pytest.fixture
def model(workspace: Workspace, bert: str) -> Retro:
    torch.manual_seed(1)
    vocab_size = workspace.store("test").artifact.counts["vocab_size"]
    return Retro(dataclasses.replace(small_run(bert).model, vocab_size=vocab_size)).eval()


@pytest.fixture
def retriever(workspace: Workspace) -> Retriever:
    return Retriever(workspace.datastore())


def documents(workspace: Workspace, start: int = 1) -> list[Prompted]:
    """The documents of the test split without their end tokens; all but the first tokens are targets."""
    store = workspace.store("test")
    return [
        Prompted(store.document(n)[:-1].astype(np.int64), start, int(store.num_bytes[n]))
        for n in range(len(store))
    ]


@pytest.mark.parametrize(
    ("prompt", "target"),
    [("The licence", " permits"), ("", "The"), ("The lic", "ence"), ("Gr", "üße"), ("The ", "software")],
)
def test_the_target_begins_with_the_token_that_holds_its_first_byte(
    workspace: Workspace, prompt: str, target: str
) -> None:
    tokenizer = workspace.datastore().tokenizer
    item = encode_pair(tokenizer, prompt, target)
    before = tokenizer.num_bytes(item.tokens[: item.start])
    assert (
        before
        <= len(prompt.encode())
        < before + tokenizer.num_bytes(item.tokens[item.start : item.start + 1])
    )
    assert tokenizer.decode(item.tokens) == prompt + target
    assert item.num_bytes == len(target.encode())


@pytest.mark.parametrize("k", [0, 2])
@pytest.mark.parametrize("window", [32, 1024])
def test_whole_documents_as_targets_are_scored_as_documents_are(
    workspace: Workspace, model: Retro, retriever: Retriever, k: int, window: int
) -> None:
    config = EvaluationConfig(window=window, stride=window // 2, batch_size=3)
    found = score_targets(model, documents(workspace), config, (k,), retriever)[k]
    whole = score(model, workspace.store("test"), config, workspace.neighbours("test"), k)
    np.testing.assert_allclose(
        found.bits, whole.by_document() - math.log2(model.config.vocab_size), rtol=1e-5
    )


def test_a_target_without_a_prompt_pays_for_its_first_token(workspace: Workspace, model: Retro) -> None:
    alone, prompted = (score_targets(model, documents(workspace, start), CONFIG)[0] for start in (0, 1))
    np.testing.assert_allclose(alone.bits, prompted.bits + math.log2(model.config.vocab_size))
    assert not alone.greedy.any()


def test_uniform_probabilities_give_the_known_number(
    workspace: Workspace, model: Retro, retriever: Retriever
) -> None:
    with torch.no_grad():
        model.embedding.weight.zero_()
    items = [
        encode_pair(retriever.tokenizer, "The licence permits anyone", target)
        for target in (" to use", " software", "ß")
    ]
    for found in score_targets(model, items, CONFIG, (0, 2), retriever).values():
        np.testing.assert_allclose(
            found.bits, found.num_tokens * math.log2(model.config.vocab_size), rtol=1e-6
        )


@pytest.mark.parametrize("k", [0, 2])
def test_what_the_sampler_writes_greedily_is_greedy_and_nothing_else_is(
    model: Retro, retriever: Retriever, k: int
) -> None:
    sampler = Sampler(model, Retriever(retriever.datastore, 2))
    prompts = ["The licence permits anyone to use this software without any", "Warranty of"]
    items = []
    for (sample,) in sampler.generate_all(
        prompts, max_tokens=5, choice=Choice(temperature=0.0), retrieval=k > 0
    ):
        items.append(Prompted(np.array(sample.tokens), sample.prompt_len, 1))
        items.append(Prompted(np.array([*sample.tokens[:-1], sample.tokens[-1] - 1]), sample.prompt_len, 1))
        items.append(Prompted(items[-2].tokens.copy(), sample.prompt_len, 1))
        items[-1].tokens[sample.prompt_len] -= 1
    assert score_targets(model, items, CONFIG, (k,), retriever)[k].greedy.tolist() == [True, False, False] * 2


def test_only_complete_chunks_retrieve(model: Retro, retriever: Retriever) -> None:
    m = model.config.chunk_len
    tokens = np.array(
        retriever.tokenizer.encode(
            "The licence permits anyone to use this software without any warranty of merit."
        )
        * 2
    )
    assert len(tokens) > m + 1
    items = [Prompted(tokens[:length], length - 1, 1) for length in (m, m + 1)]
    found = score_targets(model, items, CONFIG, (0, 2), retriever)
    assert found[0].bits[0] == found[2].bits[0]
    assert found[0].bits[1] != pytest.approx(found[2].bits[1], abs=1e-6)


def test_batches_and_other_k_do_not_matter(workspace: Workspace, model: Retro, retriever: Retriever) -> None:
    items = documents(workspace, 5)[:3]
    together = score_targets(model, items, CONFIG, (0, 1, 3), retriever)
    assert not np.shares_memory(together[0].greedy, together[1].greedy)
    for k in (0, 1, 3):
        alone = score_targets(
            model, items, EvaluationConfig(window=32, stride=16, batch_size=1), (k,), retriever
        )[k]
        np.testing.assert_allclose(together[k].bits, alone.bits, rtol=1e-5)
        assert (together[k].greedy == alone.greedy).all()


def test_metrics_by_hand() -> None:
    scores = TargetScores(np.array([6.0, 2.0]), np.array([True, False]), np.array([3, 1]), np.array([6, 10]))
    assert scores.bits_per_byte.estimate == 0.5
    assert scores.perplexity(scores.num_tokens).estimate == 4.0
    assert scores.perplexity(np.ones(2)).estimate == 16.0


def test_neighbours_without_a_datastore_and_windows_off_the_grid_are_refused(model: Retro, bert: str) -> None:
    item = Prompted(np.arange(10, 20), 1, 1)
    with pytest.raises(ConfigError, match="2 neighbours were asked for without a datastore"):
        score_targets(model, [item], CONFIG, (0, 2))
    with pytest.raises(ConfigError, match="without a model with cross-attention"):
        score_targets(Retro(model.config.baseline()), [item], CONFIG, (2,))
    with pytest.raises(ConfigError, match="move the chunk grid"):
        score_targets(model, [item], EvaluationConfig(window=32, stride=12))


def test_nothing_to_score_gives_nothing(model: Retro) -> None:
    assert score_targets(model, [], CONFIG)[0].bits.shape == (0,)
