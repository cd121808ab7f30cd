"""Every row of the paper's ablation table is a run of its own."""

import pytest
import torch

from retro import recipes
from retro.errors import ConfigError
from retro.model.retro import Retro
from retro.reproduce.variants import ABLATIONS, ablation


def test_every_row_of_the_ablation_table() -> None:
    run = recipes.get("ablation-172m")
    rows = {name: ablation(run, name) for name in ABLATIONS}
    assert rows["retro"].model == run.model
    assert rows["no-query-conditioning"].model.retrieval.encoder.cross_attention_layers == ()
    assert not rows["no-cross-attention-positions"].model.retrieval.cross_attention_positions
    assert rows["shared-embeddings"].model.retrieval.share_embeddings
    assert rows["deep-encoder"].model.retrieval.encoder.num_layers == 6
    assert [rows[name].model.retrieval.retrieved for name in ("neighbours-only", "continuations-only")] == [
        "neighbour",
        "continuation",
    ]
    assert not rows["no-retrieval"].model.uses_retrieval
    assert [rows[name].training.num_neighbours for name in ("one-neighbour", "retro", "four-neighbours")] == [
        1,
        2,
        4,
    ]
    places = {name: row.model.cross_attention_layers for name, row in rows.items()}
    assert [places[f"{name}-layer"] for name in ("first", "middle", "last")] == [(1,), (6,), (12,)]
    assert places["all-layers"] == tuple(range(1, 13))
    assert places["every-third-from-1"] == (1, 4, 7, 10)
    assert len({str(row.model) + str(row.training) for row in rows.values()}) == len(rows)
    with pytest.raises(ConfigError, match="there is no ablation 'deeper'; expected one of retro, "):
        ablation(run, "deeper")


def test_ablations_fit_small_models_too() -> None:
    for name in ABLATIONS:
        with torch.device("meta"):
            Retro(ablation(recipes.get("massive-text-mini"), name).model)
