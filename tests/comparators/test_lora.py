"""LoRA on any model: on the linear maps that it reads with, nothing at first, and gone outside its block."""

from typing import Any

import numpy as np
import pytest
import torch

from retro.comparators.lora import RANK, SCALE, Lora, linear_maps
from retro.model.retro import Retro
from retro.scoring.windows import beginnings
from retro.workspace import Workspace
from tests.comparators.test_rows import WINDOW
from tests.comparators.test_rows import model as model  # a fixture
from tests.fitting.test_fitted import fitted_with, gpt2, text
from tests.model.models import small_model


@pytest.mark.parametrize(
    ("make", "count"),
    [
        # A Llama: four of attention and three of feed-forward.
        (lambda: fitted_with("attention"), 3 * 7),
        # A GPT-2, whose linear maps are of a kind of their own: query, key and value are one.
        (lambda: fitted_with("attention", base=gpt2()), 3 * 4),
        # A RETRO without neighbours: five of attention, positions included, and two; nothing of its encoder.
        (small_model, 3 * 7),
    ],
)
def test_it_adds_to_what_is_run_through_and_not_to_the_output(make: Any, count: int) -> None:
    model = make()
    assert len(linear_maps(model)) == count
    lora = Lora(model)
    tokens = text(2, 20) % 31
    with torch.no_grad():
        before = model(tokens)
        with lora.attached():
            # Our own model takes maps that nothing listens to as one product: the same but for rounding.
            rounding = 1e-12 if isinstance(model, Retro) else 0.0
            torch.testing.assert_close(model(tokens), before, rtol=rounding, atol=rounding)
            for up in lora.up:
                up.normal_()
            after = model(tokens)
        assert torch.equal(model(tokens), before)
    assert not torch.allclose(after, before)
    one = lora.maps[0]
    assert lora.down[0].shape == (RANK, one.inputs)
    assert lora.up[0].shape == (one.outputs, RANK)


def test_additions_are_those_of_changed_weights() -> None:
    """Also where the model takes several of its maps as one product."""
    model = small_model()
    lora = Lora(model)
    tokens = text(2, 20) % 31
    with torch.no_grad():
        for up in lora.up:
            up.normal_()
        with lora.attached():
            added = model(tokens)
        for one, down, up in zip(lora.maps, lora.down, lora.up, strict=True):
            weight: Any = one.module.weight
            weight += SCALE * up @ down
        torch.testing.assert_close(model(tokens), added)


def test_it_learns(workspace: Workspace, model: Retro) -> None:
    table = workspace.neighbours("test").table
    window = beginnings(table, 1, WINDOW)[0]
    tokens = torch.from_numpy(table.store.tokens[window.start : window.stop].astype(np.int64))[None]

    def loss() -> float:
        with torch.no_grad():
            return -float(model.score(tokens[:, :-1], tokens[:, 1:]).log_probs.mean())

    weights = {name: value.clone() for name, value in model.state_dict().items()}
    lora, before = Lora(model), loss()
    assert lora.tune(table, [window] * 20) == 20
    with lora.attached():
        assert loss() < 0.95 * before
    assert loss() == before
    for name, value in model.state_dict().items():
        assert torch.equal(value, weights[name])
    again = Lora(model, seed=1)
    again.restore(lora.arrays())
    with again.attached():
        assert loss() < 0.95 * before
