"""Passages in a prompt and passages that are fused: what they are by definition."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import BloomConfig, BloomForCausalLM, MistralConfig, MistralForCausalLM

from retro.comparators.passages import Frame, Fused, Prepended, WithPassages
from retro.config import ModelConfig
from retro.config.fit import FitConfig
from retro.errors import ConfigError, DataError
from retro.fitting.fitted import FittedModel
from retro.model.protocol import LanguageModel
from retro.model.retro import Retro
from tests.fitting.test_fitted import VOCAB, gpt2, llama

PASSAGES = [[5, 9, 11, 3, 8], [21, 22, 23], [30, 31, 32, 33, 34, 35, 36]]
QUESTION = [40, 41, 42, 43]
ANSWER = [17, 50, 2]
LEN = 16
"""Of a passage: chunks have half of it."""


def fitted(base: Any = None, **options: Any) -> FittedModel:
    return FittedModel(llama() if base is None else base, FitConfig(chunk_len=8, **options)).eval()


def neighbours_of(passages: Sequence[Sequence[int]], pad_id: int) -> tuple[Tensor, Tensor]:
    """Those of a prompt of one chunk; the last neighbour is masked, and would be read otherwise."""
    values = torch.full((1, 1, len(passages) + 1, LEN), pad_id)
    for number, passage in enumerate([*passages, [1, 1]]):
        values[0, 0, number, : len(passage)] = torch.tensor(passage)
    mask = torch.ones(1, 1, len(passages) + 1, dtype=torch.bool)
    mask[..., -1] = False
    return values, mask


def logits_of(model: WithPassages, passages: Sequence[Sequence[int]]) -> Tensor:
    """After the question, and after each token of the answer."""
    pad_id = model.facts.pad_id
    prompt = [pad_id] * (LEN // 2 - len(QUESTION)) + QUESTION
    decoding = model.begin()
    found = [decoding.prefill([prompt], *neighbours_of(passages, pad_id))]
    found += [decoding.step([token]) for token in ANSWER]
    assert decoding.completing == []
    return torch.cat(found)


def test_prepended_is_the_model_on_the_passages_and_the_question() -> None:
    torch.manual_seed(0)
    config = ModelConfig(
        vocab_size=60, d_model=16, num_layers=2, num_heads=2, head_dim=8, ffw_dim=32, chunk_len=4
    )
    for model in (Retro(config).double().eval(), fitted()):
        text = [*PASSAGES[2], *PASSAGES[1], *PASSAGES[0], *QUESTION, *ANSWER]
        with torch.no_grad():
            expected = model(torch.tensor([text]))[0, -len(ANSWER) - 1 :]
        torch.testing.assert_close(logits_of(Prepended(model, LEN), PASSAGES), expected)


def test_passages_stand_between_examples_and_the_question_each_with_its_ending() -> None:
    model, frame = fitted(), Frame(lead_len=2, ending=(59,))
    text = [*QUESTION[:2], *PASSAGES[1], 59, *PASSAGES[0], 59, *QUESTION[2:], *ANSWER]
    with torch.no_grad():
        expected = model(torch.tensor([text]))[0, -len(ANSWER) - 1 :]
    torch.testing.assert_close(logits_of(Prepended(model, LEN, frame), PASSAGES[:2]), expected)
    one = [logits_of(way(model, LEN, frame), PASSAGES[:1]) for way in (Prepended, Fused)]
    torch.testing.assert_close(*one)
    with pytest.raises(DataError, match="fewer than two tokens"):
        Prepended(model, LEN, Frame(lead_len=3)).begin().prefill([QUESTION])


@pytest.mark.parametrize("base", [llama, gpt2])
def test_one_passage_that_is_fused_is_one_that_is_prepended(base: Any) -> None:
    model = fitted(base())
    for passages in ([], PASSAGES[:1]):
        torch.testing.assert_close(
            logits_of(Fused(model, LEN), passages), logits_of(Prepended(model, LEN), passages)
        )


def test_fused_passages_see_the_question_alone_and_are_seen_by_all_that_follows() -> None:
    """One text with every passage and its question in it, and a mask that keeps them apart."""
    model = fitted()
    texts = [[*passage, *QUESTION[:-1]] for passage in PASSAGES]
    after = [QUESTION[-1], *ANSWER]
    longest = max(map(len, texts))
    tokens, positions, owners = [], [], []
    for number, text in enumerate(texts):
        tokens += text
        positions += range(longest - len(text), longest)
        owners += [number] * len(text)
    tokens += after
    positions += range(longest, longest + len(after))
    owners += [-1] * len(after)
    owner = torch.tensor(owners)
    sees = (owner[:, None] == owner) | (owner[:, None] == -1)
    mask = torch.zeros(len(tokens), len(tokens), dtype=torch.float64)
    mask = mask.masked_fill(~sees.tril(), torch.finfo(torch.float64).min)
    base: Any = model.base
    with torch.no_grad():
        expected = base(
            input_ids=torch.tensor([tokens]),
            position_ids=torch.tensor([positions]),
            attention_mask=mask[None, None],
            use_cache=False,
        ).logits[0, -len(after) :]
    torch.testing.assert_close(logits_of(Fused(model, LEN), PASSAGES), expected)


def test_the_order_of_fused_passages_makes_no_difference() -> None:
    fused = Fused(fitted(), LEN)
    torch.testing.assert_close(logits_of(fused, PASSAGES), logits_of(fused, PASSAGES[::-1]))
    prepended = Prepended(fitted(), LEN)
    assert not torch.allclose(logits_of(prepended, PASSAGES), logits_of(prepended, PASSAGES[::-1]))


@pytest.mark.parametrize("way", [Prepended, Fused])
def test_sequences_of_a_batch_go_on_as_if_alone(way: type[WithPassages]) -> None:
    model = way(fitted(), LEN)
    pad_id, half = model.facts.pad_id, LEN // 2
    prompts = [[pad_id] * (half - 4) + QUESTION, [pad_id] * (half - 3) + [7, 8, 9]]
    values, mask = neighbours_of(PASSAGES, pad_id)
    both = torch.cat([values, values.flip(2)]), torch.cat([mask, torch.zeros_like(mask)])
    together, alone = model.begin(), [model.begin(), model.begin()]
    logits = together.prefill(prompts, *both)
    for row in range(2):
        one = alone[row].prefill([prompts[row]], both[0][row : row + 1], both[1][row : row + 1])
        torch.testing.assert_close(logits[row : row + 1], one)
    together.select([1, 1, 0])
    logits = together.step([11, 12, 13])
    assert together.batch == 3
    torch.testing.assert_close(logits[2:], alone[0].step([13]))
    torch.testing.assert_close(logits[:1], alone[1].step([11]))
    late = model.begin()
    late.prefill([prompts[0]], *(part[:1] for part in both))
    together.join(late)
    logits = together.step([5, 5, 5, 13])
    torch.testing.assert_close(logits[:1], alone[1].step([5]))
    other = model.begin()
    other.prefill([prompts[0]], *(part[:1] for part in both))
    torch.testing.assert_close(logits[3:], other.step([13]))


def test_what_cannot_be_done_is_refused() -> None:
    config = ModelConfig(
        vocab_size=60, d_model=16, num_layers=2, num_heads=2, head_dim=8, ffw_dim=32, chunk_len=4
    )
    own: LanguageModel = Retro(config)
    with pytest.raises(ConfigError, match=r"the model has none.*retro fit WORK --base NAME"):
        Fused(own)
    bloom = BloomForCausalLM(BloomConfig(vocab_size=VOCAB, hidden_size=32, n_layer=2, n_head=4)).eval()
    with pytest.raises(ConfigError, match="counts positions by itself"):
        Fused(fitted(bloom, reading="none"))
    window = MistralConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        sliding_window=4,
    )
    with pytest.raises(ConfigError, match="keeps a window"):
        logits_of(Fused(fitted(MistralForCausalLM(window).eval()), LEN), PASSAGES)
    model = Prepended(fitted(), LEN)
    with pytest.raises(ConfigError, match="scores no text"):
        model(torch.tensor([QUESTION]))
    with pytest.raises(ConfigError, match="scores no text"):
        model.score(torch.tensor([QUESTION]), torch.tensor([QUESTION]))
    with pytest.raises(ConfigError, match="window is 4"):
        Fused(fitted(), LEN).begin(4)
    with pytest.raises(DataError, match="fewer than two tokens"):
        model.begin().prefill([[3]])
    with pytest.raises(ConfigError, match="passage_len is 1"):
        Prepended(fitted(), 1)
    long = [[1] * LEN] * 20
    with pytest.raises(ConfigError, match=r"at most 256.*read fewer passages"):
        logits_of(model, long)
