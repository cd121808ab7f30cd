"""RETRO++ against prompts that are written out one by one."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from retro.comparators.in_context import InContext
from retro.comparators.retro_plus_plus import RetroPlusPlus
from retro.errors import ConfigError
from retro.model.protocol import LanguageModel, ModelFacts
from retro.model.retro import Retro
from tests.fitting.test_fitted import fitted_with, neighbours_of, text
from tests.model.models import random_inputs, small_model


class Short:
    """A model that reads no more than so many tokens."""

    def __init__(self, model: Any, longest: int) -> None:
        self.model = model
        self.longest = longest

    @property
    def facts(self) -> ModelFacts:
        return replace(self.model.facts, max_context=self.longest)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def __call__(self, tokens: Tensor, *retrieved: Tensor) -> Tensor:
        assert tokens.shape[1] <= self.longest
        return self.model(tokens, *retrieved)


def by_hand(model: LanguageModel, tokens: Tensor, neighbours: Tensor, mask: Tensor, place: int) -> Tensor:
    """The logits after `place`, from the whole prompt with its chunks' neighbours beside it."""
    m, pad = model.facts.chunk_len, model.facts.pad_id
    chunk = (place + 1) // m - 1
    before: list[int] = []
    if chunk >= 0 and mask[chunk].any():
        nearest = neighbours[chunk, int(mask[chunk].int().argmax())]
        before = [token for token in nearest.tolist() if token != pad]
        before = before[len(before) % m :]
    stop = min((chunk + 2) * m - 1, len(tokens))
    kept = 0
    while model.facts.max_context and len(before) + stop - kept > model.facts.max_context:
        kept += m
    prompt = torch.tensor([before + tokens[kept : place + 1].tolist()])
    nothing = len(before) // m
    own = slice(kept // m, kept // m + prompt.shape[1] // m - nothing)
    read = torch.cat([torch.full_like(neighbours[:1], pad).expand(nothing, -1, -1), neighbours[own]])
    exists = torch.cat([torch.zeros_like(mask[:1]).expand(nothing, -1), mask[own]])
    return model(prompt, read[None], exists[None])[0, -1]


def own_model() -> Retro:
    return small_model().double()


@pytest.mark.parametrize("make", [own_model, lambda: fitted_with("attention")])
@pytest.mark.parametrize("longest", [0, 26])
@torch.no_grad()
def test_it_is_the_model_with_the_nearest_before_the_text_and_all_beside_it(make: Any, longest: int) -> None:
    model = make()
    m = model.facts.chunk_len
    if longest:
        model = Short(model, longest * m // 8)
    length = 4 * m + 3
    if isinstance(getattr(model, "model", model), Retro):
        tokens, neighbours, mask = random_inputs(model.config, 2, length, 2)
    else:
        tokens = text(2, length)
        neighbours, mask = neighbours_of(tokens)
    mask[0, 1, 0] = False
    neighbours[1, 2, 0, m + 3 :] = model.facts.pad_id
    found = RetroPlusPlus(model)(tokens, neighbours, mask)
    for row in range(2):
        for place in range(length):
            expected = by_hand(model, tokens[row], neighbours[row], mask[row], place)
            torch.testing.assert_close(found[row, place], expected, rtol=1e-6, atol=1e-6)
    if not longest:
        assert not torch.allclose(found, model(tokens, neighbours, mask))
        assert not torch.allclose(found, InContext(model)(tokens, neighbours, mask))


@torch.no_grad()
def test_scores_are_those_of_the_logits() -> None:
    model = own_model()
    tokens, neighbours, mask = random_inputs(model.config, 2, 19, 2)
    targets = tokens.roll(-1, 1)
    plus = RetroPlusPlus(model)
    expected = plus(tokens, neighbours, mask).log_softmax(-1).gather(-1, targets[..., None])[..., 0]
    scored = plus.score(tokens, targets, neighbours, mask)
    torch.testing.assert_close(scored.log_probs.double(), expected, rtol=1e-5, atol=1e-5)


def test_a_model_that_reads_none_is_refused() -> None:
    config = small_model().config.baseline()
    with pytest.raises(ConfigError, match="reads no neighbours"):
        RetroPlusPlus(Retro(config))
