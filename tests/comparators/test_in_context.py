from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from retro.comparators.in_context import InContext
from retro.config import ModelConfig
from retro.errors import ConfigError
from retro.model.protocol import Decoding, LanguageModel
from retro.model.retro import Retro

M = 8
PAD = 0


@pytest.fixture
def model() -> Retro:
    torch.manual_seed(0)
    config = ModelConfig(
        vocab_size=50, d_model=16, num_layers=2, num_heads=2, head_dim=8, ffw_dim=32, chunk_len=M
    )
    return Retro(config).double().eval()


def inputs(length: int = 27) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(1, 50, (2, length), generator=generator)
    neighbours = torch.randint(1, 50, (2, length // M, 2, 2 * M), generator=generator)
    neighbours[0, 1, 0, M + 3 :] = PAD
    mask = torch.ones(2, length // M, 2, dtype=torch.bool)
    mask[1, 0, 1] = False
    return tokens, neighbours, mask


@torch.no_grad()
def test_it_is_the_model_with_neighbours_written_before_the_text(model: Retro) -> None:
    tokens, neighbours, mask = inputs()
    found = InContext(model)(tokens, neighbours, mask)
    for row in range(2):
        for place in range(tokens.shape[1]):
            chunk = (place + 1) // M - 1
            before: list[int] = []
            if chunk >= 0:
                # The nearest one last, next to the text.
                for rank in (1, 0):
                    if mask[row, chunk, rank]:
                        before += [t for t in neighbours[row, chunk, rank].tolist() if t != PAD]
            prompt = torch.tensor([before + tokens[row, : place + 1].tolist()])
            torch.testing.assert_close(found[row, place], model(prompt)[0, -1], rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_scores_are_those_of_the_logits(model: Retro) -> None:
    tokens, neighbours, mask = inputs()
    targets = tokens.roll(-1, 1)
    targets[1, 5:12] = PAD
    in_context = InContext(model)
    logits = in_context(tokens, neighbours, mask)
    scored = in_context.score(tokens, targets, neighbours, mask, greedy=True)
    wanted = targets != PAD
    expected = logits.log_softmax(-1).gather(-1, targets[..., None])[..., 0] * wanted
    torch.testing.assert_close(scored.log_probs.double(), expected, rtol=1e-5, atol=1e-5)
    assert scored.greedy is not None
    assert torch.equal(scored.greedy[wanted], (logits.argmax(-1) == targets)[wanted])


@torch.no_grad()
def test_without_neighbours_it_is_the_model(model: Retro) -> None:
    tokens, _, _ = inputs()
    assert torch.equal(InContext(model)(tokens), model(tokens))


def test_it_is_a_language_model(model: Retro) -> None:
    in_context = InContext(model)
    assert isinstance(in_context, LanguageModel)
    assert isinstance(in_context.begin(), Decoding)
    assert in_context.facts.retrieves


@torch.no_grad()
def test_it_may_search_more_often(model: Retro) -> None:
    """Every three tokens, by the last chunk's worth of them."""
    tokens, neighbours, _ = inputs()
    asked: list[list[int]] = []

    def find(chunks: Sequence[np.ndarray], k: int) -> tuple[np.ndarray, np.ndarray]:
        asked.extend(chunk.tolist() for chunk in chunks)
        values = np.stack([np.stack([(chunk * 3 + rank) % 49 + 1 for rank in range(k)]) for chunk in chunks])
        return values, np.ones(values.shape[:2], dtype=bool)

    found = InContext(model, every=3, find=find)(tokens, neighbours)
    for place in range(tokens.shape[1]):
        before: list[int] = []
        if place >= M - 1:
            end = M + (place + 1 - M) // 3 * 3
            chunk = tokens[0, end - M : end].tolist()
            assert chunk in asked
            before = [(token * 3 + rank) % 49 + 1 for rank in (1, 0) for token in chunk]
        prompt = torch.tensor([before + tokens[0, : place + 1].tolist()])
        torch.testing.assert_close(found[0, place], model(prompt)[0, -1], rtol=1e-9, atol=1e-9)


def test_to_search_more_often_takes_a_datastore(model: Retro) -> None:
    with pytest.raises(ConfigError, match="no datastore to search"):
        InContext(model, every=16)


@torch.no_grad()
def test_neighbours_that_leave_no_room_are_refused(model: Retro, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, neighbours, _ = inputs()
    # Two neighbours of two chunks, and a chunk of text to predict from: 40 tokens.
    for longest, fits in ((40, True), (39, False)):
        facts = replace(model.facts, max_context=longest)
        monkeypatch.setattr(Retro, "facts", facts)
        if fits:
            InContext(model)(tokens, neighbours)
        else:
            with pytest.raises(ConfigError, match="leave no room"):
                InContext(model)(tokens, neighbours)
