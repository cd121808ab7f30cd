"""The paper's sizes, counted without allocating."""

import pytest
import torch

from retro import recipes
from retro.model.retro import Retro

TABLE_2 = {
    "baseline-132m": 132e6,
    "baseline-368m": 368e6,
    "baseline-1.3b": 1309e6,
    "baseline-7b": 6982e6,
    "paper-172m": 172e6,
    "paper-425m": 425e6,
    "paper-1.5b": 1451e6,
    "paper-7.5b": 7532e6,
}


@pytest.mark.parametrize(("name", "parameters"), TABLE_2.items())
def test_parameters_match_table_2(name: str, parameters: float) -> None:
    with torch.device("meta"):
        model = Retro(recipes.get(name).model)
    assert model.num_parameters() == pytest.approx(parameters, rel=0.005)


def test_first_size_with_embeddings_is_the_appendix_s_247m() -> None:
    with torch.device("meta"):
        model = Retro(recipes.get("baseline-132m").model)
    assert model.num_parameters(embeddings=True) == pytest.approx(247e6, rel=0.005)


def test_a_baseline_is_the_same_decoder() -> None:
    run = recipes.get("tiny")
    baseline = recipes.baseline_of(run)
    assert baseline.training == run.training
    with torch.device("meta"):
        names = set(Retro(baseline.model).state_dict())
        assert names < set(Retro(run.model).state_dict())
