"""The paper's sizes, counted without allocating."""

from dataclasses import replace

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


def test_what_the_log_found_better_is_a_recipe_beside_the_paper_s() -> None:
    paper, without = recipes.get("tiny"), recipes.get("tiny-leave-out")
    assert (paper.training.leave_out, without.training.leave_out) == (0.0, 0.2)
    assert replace(without, name="tiny", training=paper.training) == paper
    assert replace(without.training, leave_out=0.0) == paper.training


def test_words_find_neighbours_where_that_is_better() -> None:
    paper, words = recipes.get("tiny"), recipes.get("tiny-bm25")
    assert (words.datastore.index, words.datastore.embedder) == ("bm25", "static")
    assert (words.model, words.training, words.corpus) == (paper.model, paper.training, paper.corpus)


APPENDIX = {
    # d_model, d_ffw, heads, head size, layers, P, batch, rate, least rate, steps
    "paper-172m": (896, 3584, 16, 64, 12, (6, 9, 12), 256, 2e-4, 2e-5, 800_000),
    "paper-425m": (1536, 6144, 12, 128, 12, (6, 9, 12), 256, 2e-4, 2e-5, 800_000),
    "paper-1.5b": (2048, 8192, 16, 128, 24, (6, 9, 12, 15, 18, 21, 24), 256, 2e-4, 2e-5, 800_000),
    "paper-7.5b": (4096, 16384, 32, 128, 32, tuple(range(6, 31, 3)), 1024, 1e-4, 1e-5, 200_000),
    "retrofit-172m": (896, 3584, 16, 64, 12, (6, 9, 12), 256, 2e-4, 2e-5, 23_437),
    "retrofit-7.5b": (4096, 16384, 32, 128, 32, tuple(range(6, 31, 3)), 256, 1e-4, 1e-5, 23_437),
    "questions-7.5b": (4096, 16384, 32, 128, 32, tuple(range(6, 31, 3)), 128, 1e-6, 1e-7, 25_000),
    "ablation-172m": (896, 3584, 16, 64, 12, (6, 9, 12), 256, 2e-4, 2e-5, 299_453),
    "wikitext103": (1024, 4096, 16, 64, 18, (6, 9, 12, 15, 18), 128, 2.5e-4, 2e-5, 100_000),
}


@pytest.mark.parametrize(("name", "numbers"), APPENDIX.items())
def test_the_hyperparameters_are_the_appendix_s(name: str, numbers: tuple[object, ...]) -> None:
    run = recipes.get(name)
    model, training = run.model, run.training
    found = (
        model.d_model,
        model.ffw_dim,
        model.num_heads,
        model.head_dim,
        model.num_layers,
        model.cross_attention_layers,
    )
    assert (*found, training.batch_size) == numbers[:7]
    assert (training.learning_rate, training.min_learning_rate, training.num_steps) == pytest.approx(
        numbers[7:]
    )
    assert model.retrieval.encoder.cross_attention_layers == (1,)
    assert training.warmup_start == 1e-7
    wikitext = name == "wikitext103"
    assert (training.warmup_steps, training.weight_decay, model.dropout) == (
        (4000, 0.0, 0.25) if wikitext else (750, 0.1, 0.0)
    )


def test_questions_show_the_paper_s_twenty_passages() -> None:
    assert recipes.get("questions-7.5b").training.num_neighbours == 20
