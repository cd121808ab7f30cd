import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from retro.comparators import token_states
from retro.comparators.knn_lm import (
    BASELINE,
    CACHE,
    KNN,
    Lookup,
    TokenMemory,
    evaluate_knn,
    index_states,
    look_up,
    neighbour_log_probs,
    recall,
    size_of_datastore,
)
from retro.comparators.token_states import TokenStates, expect_apart, mix, predicted, tune, write_states
from retro.config import EvaluationConfig, KnnConfig
from retro.corpus.table import DocumentTable
from retro.errors import ConfigError, DataError
from retro.model.retro import Retro, embed
from retro.scoring.bits_per_byte import score
from retro.stages.progress import Progress
from retro.workspace import Workspace
from tests.workspaces import small_run

WINDOWS = EvaluationConfig(window=32, stride=16, batch_size=3)


@pytest.fixture(scope="module")
def model(workspace: Workspace, bert: str) -> Retro:
    torch.manual_seed(1)
    vocab_size = workspace.store("test").artifact.counts["vocab_size"]
    return Retro(dataclasses.replace(small_run(bert).model.baseline(), vocab_size=vocab_size)).eval()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("knn")


@pytest.fixture(scope="module")
def memory(workspace: Workspace, model: Retro, folder: Path) -> TokenMemory:
    states = write_states(
        model, "a model", workspace.store("train"), folder / "memory", WINDOWS, scored=False
    )
    return index_states(states, folder / "index", KnnConfig())


@pytest.fixture(scope="module")
def states(workspace: Workspace, model: Retro, folder: Path) -> TokenStates:
    return write_states(model, "a model", workspace.store("test"), folder / "test", WINDOWS)


@pytest.fixture(scope="module")
def lookup(states: TokenStates, memory: TokenMemory, folder: Path) -> Lookup:
    return look_up(states, memory, folder / "nearest", 5)


@torch.no_grad()
def keys_by_hand(model: Retro, tokens: np.ndarray) -> torch.Tensor:
    ids = torch.from_numpy(tokens.astype(np.int64))[None]
    x = embed(model.embedding, ids)
    for layer in model.layers:
        x = layer.self_attention(x, torch.ones_like(ids, dtype=torch.bool))
        key = layer.feed_forward.norm(x)
        x = layer.feed_forward(x)
    return key[0]


def test_keys_are_the_inputs_of_the_last_feed_forward_layer(
    workspace: Workspace, model: Retro, tmp_path: Path
) -> None:
    store = workspace.store("test")
    states = write_states(
        model, "a model", store, tmp_path / "states", EvaluationConfig(window=1024, stride=512)
    )
    assert states.keys.dtype == np.float16
    for document in range(len(store)):
        tokens, first = store.document(document), states.firsts[document]
        rows = slice(first, first + len(tokens) - 1)
        np.testing.assert_array_equal(states.values[rows], tokens[1:])
        np.testing.assert_allclose(states.keys[rows], keys_by_hand(model, tokens[:-1]), atol=2e-3)
    assert len(states.keys) == len(store.tokens) - len(store)
    np.testing.assert_array_equal(np.asarray(store.tokens)[predicted(store)], states.values)


def test_a_weight_of_nothing_is_the_baseline_exactly(
    states: TokenStates, lookup: Lookup, model: Retro
) -> None:
    alone = states.scores(mix(states.bits, lookup.log_probs(0.1), 0.0))
    np.testing.assert_array_equal(alone.bits, states.scores(states.bits).bits)
    np.testing.assert_allclose(alone.bits, score(model, states.store, WINDOWS).bits, atol=1e-5)


def test_the_mixture_by_hand(states: TokenStates, lookup: Lookup, memory: TokenMemory) -> None:
    alpha, weight = 0.3, 0.25
    found = mix(states.bits, lookup.log_probs(alpha), weight)
    keys, values = memory.states.keys.astype(np.float64), memory.states.values
    for row in range(0, len(states.keys), 37):
        distances = ((keys - states.keys[row].astype(np.float64)) ** 2).sum(axis=1)
        nearest = np.argsort(distances, kind="stable")[:5]
        votes = {int(token): 0.0 for token in values[nearest]}
        for place in nearest:
            votes[int(values[place])] += math.exp(-alpha * distances[place])
        p_knn = votes.get(int(states.values[row]), 0.0) / sum(votes.values())
        assert found[row] == pytest.approx(
            -math.log2(weight * p_knn + (1 - weight) * 2 ** -states.bits[row]), rel=1e-4
        )


def test_probabilities_sum_to_one(states: TokenStates, lookup: Lookup, model: Retro) -> None:
    vocab_size, rows = model.config.vocab_size, slice(20, 30)
    with torch.no_grad():
        first = int(states.firsts[0])
        inputs = torch.from_numpy(states.store.tokens[: first + 31].astype(np.int64))[None]
        lm_bits = -torch.log_softmax(model(inputs)[0, rows].double(), dim=-1).numpy() / math.log(2)
    total = np.zeros(10)
    for token in range(vocab_size):
        other = neighbour_log_probs(lookup.distances[rows], lookup.tokens[rows], np.full(10, token), 0.3)
        total += 2.0 ** -mix(lm_bits[:, token], other, 0.4)
    np.testing.assert_allclose(total, 1.0, rtol=1e-6)


def test_fewer_keys_than_neighbours(lookup: Lookup) -> None:
    distances = np.array([[0.5, 1.5, np.inf]], dtype=np.float32)
    found = neighbour_log_probs(distances, np.array([[7, 8, 7]]), np.array([7]), 1.0)
    assert found[0] == pytest.approx(math.log2(1 / (1 + math.exp(-1.0))))


def test_an_approximate_index_comes_with_its_recall(
    memory: TokenMemory, states: TokenStates, tmp_path: Path
) -> None:
    quick = index_states(memory.states, tmp_path / "index", KnnConfig(exact_below=10))
    assert quick.index.kind == f"IVF{2 ** round(math.log2(len(memory.states.keys) ** 0.5))},SQfp16"
    assert quick.artifact.counts["recall_at_10"] >= 0.98
    exact, found = memory.search(states.keys[:50], 5)[0], quick.search(states.keys[:50], 5)[0]
    assert np.isclose(exact, found, rtol=1e-3).mean() > 0.9
    assert recall(memory, states.keys[:50], exact) == 1.0
    assert recall(memory, states.keys[:50], exact + np.array([0, 0, 0, 9, 9])) == 0.6


def test_the_grid_finds_what_is_best(states: TokenStates) -> None:
    def certain(sharpness: float) -> np.ndarray:
        return np.where(sharpness == 2.0, 0.0, -20.0) * np.ones(len(states.bits))

    best = tune(states, certain, [1.0, 2.0, 4.0])
    assert (best.sharpness, best.weight, best.at_edge) == (2.0, 0.98, True)
    useless = tune(states, lambda _: np.full(len(states.bits), -np.inf), [1.0, 2.0])
    assert (useless.weight, useless.at_edge) == (0.0, False)
    assert useless.bits_per_byte == states.scores(states.bits).bits_per_byte


def stop_after(calls: int) -> Progress:
    def told(_done: int, _total: int) -> None:
        nonlocal calls
        calls -= 1
        if calls == 0:
            raise KeyboardInterrupt

    return told


def test_what_was_computed_before_an_interruption_is_kept(
    states: TokenStates, model: Retro, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_states, "KEEP_EVERY", 2)
    with pytest.raises(KeyboardInterrupt):
        write_states(model, "a model", states.store, tmp_path / "states", WINDOWS, progress=stop_after(5))
    seen: list[int] = []
    again = write_states(
        model,
        "a model",
        states.store,
        tmp_path / "states",
        WINDOWS,
        progress=lambda done, _: seen.append(done),
    )
    assert seen[0] == 15  # four of the five batches were saved
    for name in ("keys", "values", "bits"):
        np.testing.assert_array_equal(getattr(again, name), getattr(states, name))
    assert not again.artifact.file("done.json").exists()


def test_tuning_and_reporting_never_share_documents(
    workspace: Workspace, memory: TokenMemory, model: Retro, tmp_path: Path
) -> None:
    train, valid, test = (workspace.store(split) for split in ("train", "valid", "test"))
    expect_apart(valid, test, "")
    with pytest.raises(
        DataError, match=f"share {len(test)} documents; expected none, as what is tuned on the reported"
    ):
        evaluate_knn(model, "a model", train, test, test, tmp_path, KnnConfig(), WINDOWS)
    valid.documents = DocumentTable.of([test.documents[0], *valid.documents[1:]])
    with pytest.raises(DataError, match="share 1 document"):
        evaluate_knn(model, "a model", train, valid, test, tmp_path, KnnConfig(), WINDOWS)
    assert not any(tmp_path.iterdir())
    with pytest.raises(DataError, match="would find itself"):
        look_up(memory.states, memory, tmp_path / "nearest", 5)


def test_an_index_of_words_is_refused() -> None:
    with pytest.raises(ConfigError, match="bm25"):
        KnnConfig(index="bm25")


def test_the_three_modes_of_a_baseline(
    workspace: Workspace, model: Retro, folder: Path, memory: TokenMemory
) -> None:
    stores = workspace.store("train"), workspace.store("valid"), workspace.store("test")
    config = KnnConfig(num_neighbours=5, cache_len=64)
    result = evaluate_knn(model, "a model", *stores, folder, config, WINDOWS)
    assert result.scores(BASELINE).bits_per_byte == pytest.approx(
        score(model, stores[2], WINDOWS).bits_per_byte, rel=1e-6
    )
    for mode in (KNN, CACHE):
        assert result.scores(mode).bits_per_byte == pytest.approx(result.bits_per_byte[mode].estimate)
        assert result.tuned[mode].tuned_on == stores[1].fingerprint
        assert (
            result.bits_per_byte[mode].low
            < result.bits_per_byte[mode].estimate
            < result.bits_per_byte[mode].high
        )
        saved = 1 - result.scores(mode).bits.sum() / result.scores(BASELINE).bits.sum()
        assert result.gains[mode].estimate == pytest.approx(saved)
        assert saved > 0.1  # the texts repeat each other, and the model is untrained
    assert result.recall == 1.0
    table = workspace.neighbours("test").table
    assert result.scores(KNN).by_chunk(table).sum() == pytest.approx(result.scores(KNN).bits.sum())
    assert result.size.keys == result.size.tokens - len(stores[0])
    assert 1 < result.size.keys / size_of_datastore(workspace.datastore()).keys <= 8  # chunks of 8 tokens
    assert result.size.key_bytes == result.size.keys * 2 * model.config.d_model
    assert result.size.num_bytes >= result.size.key_bytes + 2 * result.size.keys
    again = evaluate_knn(model, "a model", *stores, folder, config, WINDOWS)
    assert again.artifact.manifest == result.artifact.manifest
