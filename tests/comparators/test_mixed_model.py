"""Mixtures that can be sampled: the same numbers as the rows that score, token by token as in one pass."""

import numpy as np
import pytest
import torch
from torch import Tensor

from retro.comparators.cache import SHARPNESSES as THETAS
from retro.comparators.knn_lm import SHARPNESSES as ALPHAS
from retro.comparators.mixed_model import FromMemory, FromPast, MixedModel
from retro.comparators.mixtures import Memory, Mixture, ReadWindow, cached
from retro.errors import ConfigError
from retro.model.protocol import Decoding, KeyedModel, LanguageModel
from tests.fitting.test_fitted import fitted_with, text
from tests.model.models import random_inputs, small_model


def keyed(kind: str) -> KeyedModel:
    return small_model(cross_attention_layers=()) if kind == "own" else fitted_with("attention")


def tokens_for(model: KeyedModel, length: int, seed: int = 0) -> Tensor:
    return text(1, length, seed) % (model.facts.vocab_size - 1) + 1


def read(model: KeyedModel, tokens: Tensor) -> ReadWindow:
    keys, log_probs = model.keys(tokens[:, :-1], tokens[:, 1:])
    assert log_probs is not None
    return ReadWindow(keys[0].float(), tokens[0, 1:], -log_probs[0].double().numpy() / np.log(2))


def memory_of(model: KeyedModel) -> Memory:
    # Texts that share much, so that votes for the right token do occur.
    return Memory.of([read(model, tokens_for(model, 40, seed)) for seed in (0, 3)])


@pytest.mark.parametrize("kind", ["own", "fitted"])
@torch.no_grad()
def test_bits_are_those_of_the_rows(kind: str) -> None:
    model = keyed(kind)
    tokens = torch.cat([tokens_for(model, 12), tokens_for(model, 12)], dim=1)
    window = read(model, tokens)
    memory = memory_of(model)
    column = 20
    for votes, other, sharpness in (
        (FromMemory(memory, ALPHAS[column]), memory.log_probs, column),
        (FromPast(THETAS[4]), cached, 4),
    ):
        mixed = MixedModel(model, votes, lambda keys: torch.full((len(keys),), 0.3))
        assert isinstance(mixed, LanguageModel)
        scored = mixed.score(tokens[:, :-1], tokens[:, 1:], greedy=True)
        expected = Mixture(sharpness, 0.3).bits(window, other)
        found = -scored.log_probs[0].double().numpy() / np.log(2)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
        total = mixed(tokens).exp().sum(-1)
        torch.testing.assert_close(total, torch.ones_like(total), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["own", "fitted"])
@torch.no_grad()
def test_token_by_token_is_the_whole(kind: str) -> None:
    model = keyed(kind)
    gate = torch.linspace(-1, 1, model.key_width)
    weigh = lambda keys: torch.sigmoid(keys.float() @ gate)  # noqa: E731
    for votes in (FromMemory(memory_of(model), 0.01), FromPast(0.05)):
        mixed = MixedModel(model, votes, weigh)
        tokens = torch.cat([tokens_for(model, 20), tokens_for(model, 20, 5)])
        expected = mixed(tokens)
        decoding = mixed.begin()
        assert isinstance(decoding, Decoding)
        # Prompts of two lengths.
        found = decoding.prefill([tokens[0, :7].tolist(), tokens[1, :10].tolist()])
        for step in range(9):
            for row, first in enumerate((7, 10)):
                place = first + step - 1
                torch.testing.assert_close(
                    found[row].double(), expected[row, place].double(), rtol=1e-4, atol=1e-4
                )
            found = decoding.step([int(tokens[0, 7 + step]), int(tokens[1, 10 + step])])
        decoding.select([1, 1])
        assert decoding.batch == 2


@torch.no_grad()
def test_what_it_cannot_do_is_refused() -> None:
    model = keyed("own")
    mixed = MixedModel(model, FromPast(0.1), lambda keys: torch.zeros(len(keys)))
    tokens, neighbours, _ = random_inputs(small_model().config, 1, 16, 1)
    with pytest.raises(ConfigError, match="reads no neighbours"):
        mixed(tokens, neighbours)
    # A weight of zero is the model itself.
    torch.testing.assert_close(mixed(tokens), model(tokens).log_softmax(-1))
    with pytest.raises(ConfigError, match="another model"):
        mixed.begin().join(model.begin())
