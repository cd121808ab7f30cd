"""Token by token is what the whole sequence is, whenever a prompt is read again."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from retro.comparators.in_context import InContext
from retro.comparators.prompt_decoding import PromptDecoding
from retro.comparators.retro_plus_plus import RetroPlusPlus
from retro.errors import ConfigError
from retro.model.protocol import LanguageModel
from tests.fitting.test_fitted import fitted_with, neighbours_of, text
from tests.model.models import random_inputs, small_model


def find(chunks: Sequence[np.ndarray], k: int) -> tuple[np.ndarray, np.ndarray]:
    """Neighbours that follow from the chunk they are found by."""
    values = np.stack([np.stack([(chunk * 3 + rank) % 17 + 1 for rank in range(k)]) for chunk in chunks])
    return np.concatenate([values, values[..., ::-1]], axis=-1), np.ones(values.shape[:2], dtype=bool)


def ways() -> dict[str, LanguageModel]:
    plain = small_model().double()
    return {
        "prompt": InContext(plain),
        "prompt, every third token": InContext(plain, every=3, find=find),
        "plus": RetroPlusPlus(plain),
    }


@pytest.mark.parametrize("way", list(ways()))
@pytest.mark.parametrize("prompt_len", [3, 8, 13])
@torch.no_grad()
def test_token_by_token_is_the_whole(way: str, prompt_len: int) -> None:
    model = ways()[way]
    tokens, neighbours, mask = random_inputs(model.model.config, 2, 29, 2)  # type: ignore[attr-defined]
    expected = model(tokens, neighbours, mask)
    m = model.facts.chunk_len
    # The second sequence begins later, so that the two are read again at different times.
    lengths = [prompt_len + 5, prompt_len]
    longest = max(lengths) // m
    decoding = model.begin()
    found = decoding.prefill(
        [tokens[row, :length].tolist() for row, length in enumerate(lengths)],
        neighbours[:, :longest],
        mask[:, :longest],
    )
    while max(lengths) < tokens.shape[1]:
        for row, length in enumerate(lengths):
            torch.testing.assert_close(found[row], expected[row, length - 1], rtol=1e-9, atol=1e-9)
        completing = decoding.completing
        assert completing == [row for row, length in enumerate(lengths) if (length + 1) % m == 0]
        chunks = [lengths[row] // m for row in completing]
        read = (neighbours[completing, chunks], mask[completing, chunks]) if completing else (None, None)
        found = decoding.step([int(tokens[row, length]) for row, length in enumerate(lengths)], *read)
        lengths = [length + 1 for length in lengths]


@torch.no_grad()
def test_sequences_leave_are_doubled_and_join() -> None:
    model = ways()["prompt"]
    tokens, neighbours, mask = random_inputs(model.model.config, 3, 20, 2)  # type: ignore[attr-defined]
    expected = model(tokens, neighbours, mask)
    m = model.facts.chunk_len
    first, other = model.begin(), model.begin()

    def begun(decoding: PromptDecoding, rows: list[int]) -> None:
        decoding.prefill(tokens[rows, :m].tolist(), neighbours[rows, :1], mask[rows, :1])

    assert isinstance(first, PromptDecoding)
    assert isinstance(other, PromptDecoding)
    begun(first, [0, 1])
    begun(other, [2])
    first.select([1, 0, 1])
    first.join(other)
    rows = [1, 0, 1, 2]
    found = first.step(tokens[rows, m].tolist())
    torch.testing.assert_close(found, expected[rows, m], rtol=1e-9, atol=1e-9)
    with pytest.raises(ConfigError, match="another model"):
        first.join(ways()["prompt"].begin())


@torch.no_grad()
def test_without_neighbours_nothing_is_read_again() -> None:
    model = ways()["prompt"]
    tokens: Tensor = random_inputs(model.model.config, 1, 20, 2)[0]  # type: ignore[attr-defined]
    decoding, plain = model.begin(), model.model.begin()  # type: ignore[attr-defined]
    prompt = [tokens[0, :6].tolist()]
    assert torch.equal(decoding.prefill(prompt), plain.prefill(prompt))
    for token in tokens[0, 6:].tolist():
        assert torch.equal(decoding.step([token]), plain.step([token]))


@torch.no_grad()
def test_a_fitted_base_is_read_again_likewise() -> None:
    model = InContext(fitted_with("attention"))
    tokens = text(2, 29)
    neighbours, mask = neighbours_of(tokens)
    expected = model(tokens, neighbours, mask)
    m = model.facts.chunk_len
    decoding = model.begin()
    found = decoding.prefill(tokens[:, :m].tolist(), neighbours[:, :1], mask[:, :1])
    for length in range(m, 29):
        torch.testing.assert_close(found, expected[:, length - 1], rtol=1e-4, atol=1e-5)
        chunk = length // m
        read = (neighbours[:, chunk], mask[:, chunk]) if decoding.completing else (None, None)
        found = decoding.step(tokens[:, length].tolist(), *read)
