"""Sequences that join a running decoding, and leave it, go on as they would alone."""

from typing import Any

import pytest
import torch
from torch import Tensor

from retro.errors import ConfigError
from retro.fitting.fitted import FittedModel
from retro.model.protocol import LanguageModel
from tests.fitting.test_fitted import fitted_with
from tests.model.models import small_model

CLOSE = {torch.float64: 1e-10, torch.float32: 2e-4}
OWN: dict[str, dict[str, Any]] = {
    "retro": {},
    "pointer": {"pointer": True},
    "baseline": {"cross_attention_layers": ()},
    "chunks of one": {"chunk_len": 1},
    "another padding": {"pad_id": 7},
}
READINGS = ("attention", "none", "cross-attention")
STEPS = 14


class Alone:
    """A sequence with its tokens, its neighbours, and the logits that it gets when nobody is beside it."""

    def __init__(self, model: LanguageModel, prompt_len: int, k: int, seed: int, window: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        facts = model.facts
        most = min(facts.vocab_size, 30)
        length = prompt_len + STEPS
        self.tokens = torch.randint(1, most, (length,), generator=generator).tolist()
        shape = (length // facts.chunk_len, k, facts.retrieved_len)
        self.neighbours = torch.randint(1, most, shape, generator=generator) if k else None
        self.prompt_len = prompt_len
        self.fed = prompt_len
        decoding = model.begin(window)
        complete = prompt_len // facts.chunk_len
        self.logits = [decoding.prefill([self.tokens[:prompt_len]], *self.given(0, complete))[0]]
        for place in range(prompt_len, length - 1):
            chunk = place // facts.chunk_len
            found = self.given(chunk, chunk + 1) if decoding.completing else (None,)
            step = found[0] if found[0] is None else found[0][0]
            self.logits.append(decoding.step([self.tokens[place]], step)[0])

    def given(self, first: int, stop: int) -> tuple[Tensor | None]:
        if self.neighbours is None or first == stop:
            return (None,)
        return (self.neighbours[None, first:stop],)


def run_together(model: LanguageModel, sequences: list[Alone], joins: list[int], window: int = 0) -> None:
    """Let sequences join at given turns, each prefilled by itself, and leave when they are done."""
    facts = model.facts
    decoding = model.begin(window)
    inside: list[Alone] = []
    logits: Tensor | None = None
    waiting = sorted(zip(joins, sequences, strict=True), key=lambda pair: pair[0])
    for turn in range(max(joins) + STEPS + 1):
        while waiting and waiting[0][0] <= turn:
            sequence = waiting.pop(0)[1]
            other = model.begin(window)
            complete = sequence.prompt_len // facts.chunk_len
            first = other.prefill([sequence.tokens[: sequence.prompt_len]], *sequence.given(0, complete))
            decoding.join(other)
            inside.append(sequence)
            logits = first if logits is None else torch.cat([logits, first])
        assert decoding.batch == len(inside)
        if not inside:
            continue
        assert logits is not None
        for row, sequence in enumerate(inside):
            expected = sequence.logits[sequence.fed - sequence.prompt_len]
            close = CLOSE[expected.dtype]
            torch.testing.assert_close(logits[row], expected, rtol=close, atol=close)
        going_on = [row for row, sequence in enumerate(inside) if sequence.fed + 1 < len(sequence.tokens)]
        if len(going_on) < len(inside):
            decoding.select(going_on)
            inside = [inside[row] for row in going_on]
        if not inside:
            logits = None
            continue
        most = max(0 if s.neighbours is None else s.neighbours.shape[1] for s in inside)
        values, masks = [], []
        for row in decoding.completing:
            found = inside[row].neighbours
            empty = torch.full((most, facts.retrieved_len), facts.pad_id)
            mask = torch.zeros(most, dtype=torch.bool)
            if found is not None:
                chunk = inside[row].fed // facts.chunk_len
                empty[: found.shape[1]] = found[chunk]
                mask[: found.shape[1]] = True
            values.append(empty)
            masks.append(mask)
        retrieved = (torch.stack(values), torch.stack(masks)) if values and most else (None, None)
        logits = decoding.step([sequence.tokens[sequence.fed] for sequence in inside], *retrieved)
        for sequence in inside:
            sequence.fed += 1


def sequences_for(model: LanguageModel, window: int = 0) -> list[Alone]:
    """Long and short prompts, with other numbers of neighbours, and without."""
    ks = (2, 0, 1, 3) if model.facts.retrieves else (0, 0, 0, 0)
    lengths = (9, 3, 17, 5)
    return [
        Alone(model, length, k, seed, window)
        for seed, (length, k) in enumerate(zip(lengths, ks, strict=True))
    ]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("kind", OWN)
@pytest.mark.parametrize("joins", [[0, 3, 4, 9], [5, 0, 0, 20], [0, 0, 0, 0]])
def test_sequences_of_our_own_models_join_and_leave(kind: str, joins: list[int], dtype: torch.dtype) -> None:
    model = small_model(dtype=dtype, **OWN[kind])
    run_together(model, sequences_for(model), joins)


def test_a_window_stays_what_it_is() -> None:
    model = small_model()
    run_together(model, sequences_for(model, window=6), [0, 3, 4, 9], window=6)


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("joins", [[0, 3, 4, 9], [5, 0, 0, 20]])
@torch.no_grad()
def test_sequences_of_a_fitted_base_join_and_leave(reading: str, joins: list[int]) -> None:
    model = fitted_with(reading)
    try:
        run_together(model, sequences_for(model), joins)
    finally:
        model.detach()


@torch.no_grad()
def test_a_fitted_base_in_single_precision() -> None:
    model: FittedModel = fitted_with("attention").float()
    try:
        run_together(model, sequences_for(model), [0, 3, 4, 9])
    finally:
        model.detach()


@torch.no_grad()
def test_a_base_with_a_sliding_window_joins_and_leaves() -> None:
    from transformers import MistralConfig, MistralForCausalLM

    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=61,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        sliding_window=7,
        initializer_range=0.3,
    )
    model = fitted_with("none", base=MistralForCausalLM(config).eval().double())
    try:
        run_together(model, sequences_for(model), [0, 3, 4, 9])
    finally:
        model.detach()


@torch.no_grad()
def test_slots_that_nobody_uses_are_given_back() -> None:
    """A batch that is never empty must not grow for ever."""
    model = fitted_with("attention")
    try:
        decoding = model.begin()
        decoding.prefill([[3] * 40, [4] * 5])
        decoding.select([1])
        assert decoding.mask.shape[1] == 5
        assert decoding.cache.get_seq_length() == 5
        own = small_model().begin()
        for _ in range(50):
            other = own.model.begin()
            other.prefill([[3] * 40])
            own.join(other)
            own.select([own.batch - 1])
        assert own.tokens.capacity <= 4 * 40
    finally:
        model.detach()


def test_only_the_same_model_and_window_join() -> None:
    model, other = small_model(), small_model()
    with pytest.raises(ConfigError, match="another model"):
        model.begin().join(other.begin())
    with pytest.raises(ConfigError, match="window of 4"):
        model.begin().join(model.begin(4))
