"""Decoding step by step equals the full forward, for any weights, lengths, neighbours and switches."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from retro.config import EncoderConfig
from retro.errors import ConfigError, DataError
from retro.model.decoding import RetroDecoding as Decoding
from retro.model.retro import Retro
from tests.model.models import random_inputs, small_model

ENCODER: dict[str, Any] = {"d_model": 6, "num_heads": 2, "head_dim": 5, "ffw_dim": 12}
KINDS: dict[str, dict[str, Any]] = {
    "retro": {},
    "baseline": {"cross_attention_layers": ()},
    "every layer": {"cross_attention_layers": (1, 2, 3)},
    "unconditioned": {"encoder": EncoderConfig(num_layers=2, cross_attention_layers=(), **ENCODER)},
    "deep encoder": {"encoder": EncoderConfig(num_layers=3, cross_attention_layers=(1, 3), **ENCODER)},
    "shared embeddings": {
        "share_embeddings": True,
        "encoder": EncoderConfig(num_layers=1, **{**ENCODER, "d_model": 8}),
    },
    "no positions": {"cross_attention_positions": False},
    "neighbour only": {"retrieved": "neighbour"},
    "continuation only": {"retrieved": "continuation"},
    "another padding": {"pad_id": 7},
    "chunks of one": {"chunk_len": 1},
    "pointer": {"pointer": True},
    "pointer, every layer": {"pointer": True, "cross_attention_layers": (1, 2, 3)},
    "pointer, chunks of one": {"pointer": True, "chunk_len": 1},
    "pointer, continuation only": {"pointer": True, "retrieved": "continuation", "pad_id": 7},
}
MODELS = {kind: small_model(**changes) for kind, changes in KINDS.items()}


def decode(
    model: Retro,
    tokens: Tensor,
    prompt_lens: Sequence[int],
    neighbours: Tensor | None = None,
    mask: Tensor | None = None,
    window: int = 0,
) -> list[Tensor]:
    """For every sequence its logits from the prompt's last position on, prefilled together and then fed one
    token a step."""
    m, length = model.config.chunk_len, tokens.shape[1]
    decoding, longest = Decoding(model, window), max(prompt_lens) // m
    given_now = (
        (None, None)
        if neighbours is None
        else (neighbours[:, :longest], None if mask is None else mask[:, :longest])
    )
    logits = decoding.prefill(
        [row[:n].tolist() for row, n in zip(tokens, prompt_lens, strict=True)], *given_now
    )
    collected, alive = [[row] for row in logits], list(range(len(tokens)))
    while True:
        going = [place for place, row in enumerate(alive) if decoding.tokens.lengths[place] < length]
        if not going:
            return [torch.stack(rows) for rows in collected]
        if len(going) < len(alive):
            decoding.select(going)
            alive = [alive[place] for place in going]
        positions = decoding.tokens.lengths
        found: tuple[Tensor | None, Tensor | None] = (None, None)
        if neighbours is not None and decoding.completing:
            rows = [alive[place] for place in decoding.completing]
            chunks = [positions[place] // m for place in decoding.completing]
            found = (neighbours[rows, chunks], None if mask is None else mask[rows, chunks])
        logits = decoding.step([int(tokens[row, n]) for row, n in zip(alive, positions, strict=True)], *found)
        for row, new in zip(alive, logits, strict=True):
            collected[row].append(new)


def check(model: Retro, prompt_lens: list[int], length: int, k: int, seed: int, off: bool = False) -> None:
    tokens, neighbours, mask = random_inputs(model.config, len(prompt_lens), length, k, seed)
    given_all = (None, None) if off or not model.config.uses_retrieval else (neighbours, mask)
    with torch.no_grad():
        full = model(tokens, *given_all)
    for row, (logits, prompt_len) in enumerate(
        zip(decode(model, tokens, prompt_lens, *given_all), prompt_lens, strict=True)
    ):
        if prompt_len:
            torch.testing.assert_close(logits[0], full[row, prompt_len - 1], rtol=0, atol=1e-10)
        torch.testing.assert_close(logits[1:], full[row, prompt_len:], rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_step_equals_the_full_forward(kind: str) -> None:
    """Prompts that are empty, shorter than a chunk, a chunk, one more, several chunks, and the whole, all
    in one batch."""
    check(MODELS[kind], [13, 0, 8, 1, 3, 10, 4, 5], length=13, k=2, seed=0)


def test_retrieval_off() -> None:
    check(MODELS["retro"], [0, 3, 4, 5], length=9, k=2, seed=0, off=True)


@settings(max_examples=15, deadline=None)
@given(
    kind=st.sampled_from(sorted(KINDS)),
    k=st.integers(0, 3),
    length=st.integers(1, 10),
    prompt_lens=st.lists(st.integers(0, 10), min_size=1, max_size=4),
    seed=st.integers(0, 100),
)
def test_any_batch_equals_the_full_forward(
    kind: str, k: int, length: int, prompt_lens: list[int], seed: int
) -> None:
    check(MODELS[kind], [min(n, length) for n in prompt_lens], length, k, seed)


def test_many_chunks_in_single_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache begins small and grows several times."""
    monkeypatch.setattr("retro.model.caches.SMALLEST", 2)
    model = small_model(dtype=torch.float32)
    prompt_lens = [0, 1, 3, 4, 5, 26]
    tokens, neighbours, mask = random_inputs(model.config, len(prompt_lens), 30, 2)
    with torch.no_grad():
        full = model(tokens, neighbours, mask)
    for row, logits in enumerate(decode(model, tokens, prompt_lens, neighbours, mask)):
        torch.testing.assert_close(logits[1:], full[row, prompt_lens[row] :], rtol=0, atol=1e-5)


@pytest.mark.parametrize("pointer", [False, True])
def test_products_in_bfloat16_are_taken_in_every_step(pointer: bool) -> None:
    """Caches stay in the model's own precision; the logits are near those of the same products at once."""
    model = small_model(dtype=torch.float32, pointer=pointer)
    tokens, neighbours, mask = random_inputs(model.config, 2, 13, 2)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        full = model(tokens, neighbours, mask)
        stepwise = decode(model, tokens, [5, 8], neighbours, mask)
    for row, first in ((0, 5), (1, 8)):
        torch.testing.assert_close(
            stepwise[row].float(), full[row, first - 1 :].float(), rtol=0.05, atol=0.05
        )


def test_a_retrofitted_baseline() -> None:
    """New retrieval weights around the frozen weights of a baseline."""
    baseline, model = small_model(seed=1, cross_attention_layers=()), small_model(seed=2)
    model.load_state_dict(baseline.state_dict(), strict=False)
    tokens, neighbours, mask = random_inputs(model.config, 1, 13, 2)
    with torch.no_grad():
        full, plain = model(tokens, neighbours, mask), baseline(tokens)
    torch.testing.assert_close(
        decode(model, tokens, [5], neighbours, mask)[0], full[0, 4:], rtol=0, atol=1e-10
    )
    torch.testing.assert_close(decode(model, tokens, [5])[0], plain[0, 4:], rtol=0, atol=1e-10)


@pytest.mark.parametrize("pointer", [False, True])
def test_padding_within_a_sequence_is_not_attended(pointer: bool) -> None:
    model = small_model(pointer=pointer)
    tokens, neighbours, mask = random_inputs(model.config, 2, 12, 2)
    tokens[0, [1, 6]] = tokens[1, 9] = model.config.pad_id
    with torch.no_grad():
        full = model(tokens, neighbours, mask)
    real = tokens != model.config.pad_id
    for row, logits in enumerate(decode(model, tokens, [3, 5], neighbours, mask)):
        start = (3, 5)[row]
        torch.testing.assert_close(
            logits[1:][real[row, start:]], full[row, start:][real[row, start:]], rtol=0, atol=1e-10
        )


@pytest.mark.parametrize("pointer", [False, True])
def test_fewer_neighbours_later_and_more_again(pointer: bool) -> None:
    """The number of neighbours may change from chunk to chunk; none at all is RETRO[OFF] for that chunk."""
    model = small_model(pointer=pointer)
    tokens, neighbours, _ = random_inputs(model.config, 1, 17, 3)
    counts = [3, 1, 0, 2]
    mask = torch.arange(3)[None, None] < torch.tensor(counts)[None, :, None]
    with torch.no_grad():
        full = model(tokens, neighbours, mask)
    decoding = Decoding(model)
    decoding.prefill([[]])
    for position, token in enumerate(tokens[0].tolist()):
        chunk = position // 4
        found = neighbours[:, chunk, : counts[chunk]] if decoding.completing and counts[chunk] else None
        torch.testing.assert_close(decoding.step([token], found), full[:, position], rtol=0, atol=1e-10)


@pytest.mark.parametrize("pointer", [False, True])
def test_one_prompt_goes_on_in_several_ways(pointer: bool) -> None:
    model = small_model(pointer=pointer)
    tokens, neighbours, mask = random_inputs(model.config, 2, 12, 2)
    tokens[1, :6] = tokens[0, :6]
    neighbours[1, 0], mask[1, 0] = neighbours[0, 0], mask[0, 0]
    with torch.no_grad():
        full = model(tokens, neighbours, mask)
    decoding = Decoding(model)
    decoding.prefill([tokens[0, :6].tolist()], neighbours[:1, :1], mask[:1, :1])
    decoding.select([0, 0])
    for position in range(6, 12):
        found = (
            (neighbours[:, position // 4], mask[:, position // 4]) if decoding.completing else (None, None)
        )
        torch.testing.assert_close(
            decoding.step(tokens[:, position].tolist(), *found), full[:, position], rtol=0, atol=1e-10
        )


def test_a_window_that_covers_all_is_exact_and_a_small_one_sees_its_last_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("retro.model.caches.SMALLEST", 2)
    model = small_model(num_layers=1, cross_attention_layers=())
    tokens, _, _ = random_inputs(model.config, 1, 40, 1)
    with torch.no_grad():
        full = model(tokens)
        last = model(tokens[:, -5:])  # one layer: nothing older comes in through the activations
    torch.testing.assert_close(decode(model, tokens, [3], window=40)[0][1:], full[0, 3:], rtol=0, atol=1e-10)
    short = decode(model, tokens, [3], window=5)[0]
    torch.testing.assert_close(short[-1], last[0, -1], rtol=0, atol=1e-10)
    torch.testing.assert_close(short[1:3], full[0, 3:5], rtol=0, atol=1e-10)


def test_a_windowed_cache_stays_small_and_keeps_the_chunk_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache moves its slots to the front now and then; chunks that lie across such a move are still
    read whole."""
    model = small_model()
    inputs = random_inputs(model.config, 1, 30, 2)
    unmoved = decode(model, inputs[0], [1], *inputs[1:], window=6)[0]
    monkeypatch.setattr("retro.model.caches.SMALLEST", 2)
    torch.testing.assert_close(
        decode(model, inputs[0], [1], *inputs[1:], window=6)[0], unmoved, rtol=0, atol=1e-10
    )
    decoding = Decoding(model, window=6)
    decoding.prefill([[1]])
    for _ in range(20):
        decoding.step([2])
    assert decoding.tokens.capacity <= 2 * 7
    assert decoding.tokens.lengths == [21]


def test_wrong_feeds_are_refused() -> None:
    model = small_model()
    decoding = Decoding(model)
    decoding.prefill([[1, 2, 3], [1]])
    with pytest.raises(DataError, match="1 tokens were fed to 2 sequences"):
        decoding.step([1])
    with pytest.raises(DataError, match="expected 1 chunks with 8"):
        decoding.step([1, 1], torch.ones(2, 1, 8, dtype=torch.long))
    with pytest.raises(ConfigError, match="window is -1"):
        Decoding(model, -1)
    plain = Decoding(MODELS["baseline"])
    plain.prefill([[1, 2, 3]])
    with pytest.raises(ConfigError, match="without cross-attention"):
        plain.step([1], torch.ones(1, 1, 8, dtype=torch.long))
