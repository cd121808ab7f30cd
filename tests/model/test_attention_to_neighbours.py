"""What a model says it attends to is what it attends to."""

import pytest
import torch

from retro.model.protocol import AttentiveModel
from tests.fitting.test_fitted import fitted_with, neighbours_of, text
from tests.model.models import random_inputs, small_model


def test_cross_attention_is_shared_out_among_the_neighbours_that_are_there() -> None:
    model = small_model()
    assert isinstance(model, AttentiveModel)
    tokens, neighbours, mask = random_inputs(model.config, 3, 14, 3)
    with torch.no_grad():
        mass = model.neighbour_attention(tokens, neighbours, mask)
    m = model.config.chunk_len
    for row in range(3):
        for place in range(14):
            chunk = (place + 1) // m - 1
            found = mass[row, place]
            if chunk < 0 or chunk >= mask.shape[1] or not mask[row, chunk].any():
                assert found.abs().max() == 0
                continue
            torch.testing.assert_close(found.sum(), torch.ones((), dtype=found.dtype))
            assert (found[~mask[row, chunk]] == 0).all()
            assert (found[mask[row, chunk]] > 0).all()


@pytest.mark.parametrize("reading", ["attention", "cross-attention"])
def test_a_fitted_base_tells_it_too(reading: str) -> None:
    model = fitted_with(reading)
    try:
        tokens = text(2, 29)
        neighbours, mask = neighbours_of(tokens)
        mass = model.neighbour_attention(tokens, neighbours, mask)
        assert mass.shape == (2, 29, 2)
        assert mass[:, :7].abs().max() == 0
        assert mass[0, 7, 1] == 0  # masked
        assert (mass[1, 7:] > 0).all()
        assert mass.sum(-1).max() <= 1 + 1e-9
        if reading == "attention":
            # A bias that favours neighbours lets them have more.
            assert model.bias is not None
            model.bias.data += 2
            more = model.neighbour_attention(tokens, neighbours, mask)
            assert (more.sum(-1)[1, 7:] > mass.sum(-1)[1, 7:]).all()
    finally:
        model.detach()
