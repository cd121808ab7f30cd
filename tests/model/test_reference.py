"""The fast model equals the literal one."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from retro.config import EncoderConfig
from retro.model.reference import reference_logits
from tests.model.models import random_inputs, small_model

VARIANTS = {
    "paper": {},
    "shared embeddings": {"share_embeddings": True, "d_model": 6},
    "no query conditioning": {
        "encoder": EncoderConfig(
            d_model=6, num_layers=1, num_heads=2, head_dim=5, ffw_dim=12, cross_attention_layers=()
        )
    },
    "conditioned twice": {
        "encoder": EncoderConfig(
            d_model=6, num_layers=2, num_heads=1, head_dim=4, ffw_dim=8, cross_attention_layers=(1, 2)
        )
    },
    "no cross-attention positions": {"cross_attention_positions": False},
    "every layer": {"cross_attention_layers": (1, 2, 3)},
    "baseline": {"cross_attention_layers": ()},
    "copying start": {"copying_start": True},
    "quiet start": {"quiet_start": True},
    "neighbours only": {"retrieved": "neighbour"},
    "continuations only": {"retrieved": "continuation"},
    "deeper encoder": {
        "encoder": EncoderConfig(d_model=6, num_layers=6, num_heads=2, head_dim=5, ffw_dim=12)
    },
    "first layer": {"cross_attention_layers": (1,)},
    "last layer": {"cross_attention_layers": (3,)},
    "pointer": {"pointer": True},
    "pointer in the first layer": {"pointer": True, "pointer_layer": 1},
    "pointer behind two layers": {"pointer": True, "cross_attention_layers": (3,)},
    "pointer into neighbours only": {"pointer": True, "retrieved": "neighbour"},
    "pointer into continuations only": {"pointer": True, "retrieved": "continuation"},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_equals_reference_in_float64(variant: str) -> None:
    model = small_model(**VARIANTS[variant])
    tokens, neighbours, mask = random_inputs(model.config, batch=2, seq_len=11, k=2)
    inputs = (tokens, neighbours, mask) if model.config.uses_retrieval else (tokens,)
    torch.testing.assert_close(model(*inputs), reference_logits(model, *inputs), rtol=0, atol=1e-10)


@given(
    seq_len=st.integers(1, 13),
    k=st.integers(0, 3),
    batch=st.integers(1, 2),
    chunk_len=st.sampled_from([2, 3, 4]),
    seed=st.integers(0, 99),
)
@settings(max_examples=15, deadline=None)
def test_equals_reference_over_shapes(seq_len: int, k: int, batch: int, chunk_len: int, seed: int) -> None:
    model = small_model(seed, chunk_len=chunk_len)
    inputs = random_inputs(model.config, batch, seq_len, k, seed)
    torch.testing.assert_close(model(*inputs), reference_logits(model, *inputs), rtol=0, atol=1e-10)
    single = model.float()
    torch.testing.assert_close(single(*inputs), reference_logits(single, *inputs), rtol=0, atol=1e-5)


@pytest.mark.parametrize("pointer", [False, True])
def test_equals_reference_with_padding_among_the_tokens(pointer: bool) -> None:
    """Packed sequences have padding in the middle; questions have it on the left."""
    model = small_model(pointer=pointer)
    tokens, neighbours, mask = random_inputs(model.config, batch=2, seq_len=12, k=2)
    tokens[0, 6:8] = model.config.pad_id
    tokens[1, 0] = model.config.pad_id
    real = tokens != model.config.pad_id
    fast, slow = model(tokens, neighbours, mask), reference_logits(model, tokens, neighbours, mask)
    torch.testing.assert_close(fast[real], slow[real], rtol=0, atol=1e-10)


@pytest.mark.parametrize("variant", ["paper", "pointer", "pointer behind two layers"])
def test_gradients_equal_the_reference(variant: str) -> None:
    model = small_model(**VARIANTS[variant])
    inputs = random_inputs(model.config, batch=1, seq_len=9, k=2)
    weights = torch.randn(1, 9, model.config.vocab_size, dtype=torch.float64)
    fast = torch.autograd.grad((model(*inputs) * weights).sum(), list(model.parameters()))
    slow = torch.autograd.grad(
        (reference_logits(model, *inputs) * weights).sum(), list(model.parameters()), allow_unused=True
    )
    for (name, _), a, b in zip(model.named_parameters(), fast, slow, strict=True):
        torch.testing.assert_close(a, torch.zeros_like(a) if b is None else b, rtol=0, atol=1e-9, msg=name)
