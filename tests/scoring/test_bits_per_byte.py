import dataclasses
import math

import numpy as np
import pytest
import torch

from retro.config import EvaluationConfig
from retro.corpus.tokenizers.sentencepiece import END_ID
from retro.errors import ConfigError
from retro.model.retro import Retro
from retro.scoring.bits_per_byte import chunk_bytes, score
from retro.workspace import Workspace
from tests.workspaces import small_run

CONFIG = EvaluationConfig(window=32, stride=16, num_neighbours=(2,))


@pytest.fixture
def model(bert: str) -> Retro:
    torch.manual_seed(1)
    return Retro(small_run(bert).model).eval()


def test_uniform_probabilities_give_the_known_number(workspace: Workspace, model: Retro) -> None:
    with torch.no_grad():
        model.embedding.weight.zero_()
    store = workspace.store("test")
    num_tokens = int((np.asarray(store.tokens) != END_ID).sum())
    expected = num_tokens * math.log2(model.config.vocab_size) / store.num_bytes.sum()
    for k in (0, 2):
        assert score(model, store, CONFIG, workspace.neighbours("test"), k).bits_per_byte == pytest.approx(
            expected, rel=1e-6
        )


@pytest.mark.parametrize("k", [0, 2])
def test_a_long_window_equals_scoring_each_document_at_once(
    workspace: Workspace, model: Retro, k: int
) -> None:
    store, neighbours = workspace.store("test"), workspace.neighbours("test")
    found = score(model, store, EvaluationConfig(window=1024, stride=512, batch_size=3), neighbours, k)
    for document in range(len(store)):
        tokens = torch.from_numpy(store.document(document).astype(np.int64))[None]
        inputs = [tokens[:, :-1]]
        if k:
            chunks = np.arange(
                neighbours.table.first[document],
                neighbours.table.first[document] + (tokens.shape[1] - 1) // 8,
            )
            inputs += [torch.from_numpy(array)[None] for array in neighbours.values(chunks, k)]
        with torch.no_grad():
            losses = torch.nn.functional.cross_entropy(
                model(*inputs)[0, :-1], tokens[0, 1:-1], reduction="none"
            ) / math.log(2)
        bits = found.bits[store.starts[document] : store.ends[document]]
        np.testing.assert_allclose(bits[1:-1], losses.numpy(), atol=1e-4)
        assert bits[0] == pytest.approx(math.log2(320))
        assert bits[-1] == 0.0


def test_batch_size_does_not_matter(workspace: Workspace, model: Retro) -> None:
    results = [
        score(
            model,
            workspace.store("test"),
            EvaluationConfig(window=32, stride=16, batch_size=size),
            workspace.neighbours("test"),
            2,
        ).bits
        for size in (1, 7)
    ]
    np.testing.assert_allclose(results[0], results[1], atol=1e-4)


def test_chunks_and_documents_add_up(workspace: Workspace, model: Retro) -> None:
    scores = score(model, workspace.store("test"), CONFIG)
    table = workspace.neighbours("test").table
    assert scores.by_chunk(table).sum() == pytest.approx(scores.bits.sum())
    assert scores.by_document().sum() == pytest.approx(scores.bits.sum())
    assert (
        chunk_bytes(table, workspace.datastore().tokenizer).sum() == workspace.store("test").num_bytes.sum()
    )


def test_a_stride_off_the_chunk_grid_is_refused(workspace: Workspace, model: Retro) -> None:
    with pytest.raises(ConfigError, match="move the chunk grid"):
        score(model, workspace.store("test"), EvaluationConfig(window=32, stride=12))


def test_lower_precision_is_near_and_named_only_where_it_is_used(
    workspace: Workspace, model: Retro, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Emulated where the hardware has none: slow, and the same numbers.
    monkeypatch.setattr("retro.machine.has_bfloat16", lambda device: True)
    lower = dataclasses.replace(CONFIG, precision="bfloat16")
    store, neighbours = workspace.store("test"), workspace.neighbours("test")
    exact, near = (score(model, store, config, neighbours, 2).bits for config in (CONFIG, lower))
    assert not np.array_equal(exact, near)
    np.testing.assert_allclose(near, exact, rtol=0.02, atol=0.05)
    assert "precision" not in CONFIG.settings()
    assert lower.settings() == {**CONFIG.settings(), "precision": "bfloat16"}
    with pytest.raises(ConfigError, match="precision is 'half'"):
        EvaluationConfig(precision="half")
