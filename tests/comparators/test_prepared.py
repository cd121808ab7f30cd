"""Rows that prepare something, against what other code computes from the same windows."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from retro.comparators import prepared
from retro.comparators.cache import SHARPNESSES as THETAS
from retro.comparators.in_context import InContext
from retro.comparators.knn_lm import SHARPNESSES as ALPHAS
from retro.comparators.lora import Lora
from retro.comparators.prepared import Ground, Texts
from retro.comparators.prepared_rows import AllRows
from retro.comparators.rows import scorer_of
from retro.comparators.token_states import WEIGHTS, mix
from retro.errors import ConfigError
from retro.fitting.base import open_base
from retro.retrieval.lexical import search_by_words
from retro.retrieval.retriever import Retriever
from retro.scoring.bits_per_byte import score_batch
from retro.scoring.windows import Window, batch_inputs, batch_targets, beginnings, windows_of
from retro.stages.parts import ARRAYS, Parts
from retro.workspace import OpenRun, Workspace

WINDOW = 64
STEPS = 3


@pytest.fixture(scope="module")
def opened(fitted_work: Workspace) -> OpenRun:
    return fitted_work.run("fitted")


@pytest.fixture
def make_rows(opened: OpenRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], AllRows]:
    """Rows whose clock goes by how often it is asked: time for `STEPS` windows."""
    ticks = itertools.count()
    monkeypatch.setattr(prepared.time, "process_time", lambda: float(next(ticks)))

    def make() -> AllRows:
        texts = Texts(opened.neighbours("train").table, opened.neighbours("valid").table)
        kept = Parts(tmp_path / "kept", ARRAYS)
        return AllRows(Ground(opened.model, opened.neighbours("test"), texts, WINDOW, STEPS - 1, kept))

    return make


@pytest.fixture
def rows(make_rows: Callable[[], AllRows]) -> AllRows:
    return make_rows()


def training_windows(opened: OpenRun) -> list[Window]:
    store = opened.neighbours("train").table.store
    windows = [w for w in windows_of(store, WINDOW, WINDOW) if w.num_tokens == WINDOW]
    order = np.random.default_rng(0).permutation(len(windows))
    return [windows[number] for number in order[:STEPS]]


@torch.no_grad()
def states(opened: OpenRun, table: Any, window: Window) -> tuple[Tensor, Tensor, np.ndarray]:
    model: Any = opened.model
    (tokens,) = batch_inputs(table, [window])
    targets = batch_targets(table.store, [window])
    keys, log_probs = model.keys(tokens, targets)
    wanted = targets[0] != model.pad_id
    return keys[0][wanted].float(), targets[0][wanted], -log_probs[0][wanted].double().numpy() / np.log(2)


def by_hand(opened: OpenRun, kind: str, window: Window) -> np.ndarray:
    """kNN-LM and the cache with logarithms throughout, chosen on validation beginnings."""
    memory = [states(opened, opened.neighbours("train").table, one) for one in training_windows(opened)]
    stored, after = torch.cat([part[0] for part in memory]), torch.cat([part[1] for part in memory])

    def other(keys: Tensor, values: Tensor, bits: np.ndarray) -> np.ndarray:
        columns = []
        if kind == "knn":
            nearest, rows = torch.cdist(keys, stored).square().topk(64, largest=False)
            hits = after[rows] == values[:, None]
            for alpha in ALPHAS:
                logits = -alpha * (nearest - nearest[:, :1]).double()
                columns.append(logits.masked_fill(~hits, -torch.inf).logsumexp(-1) - logits.logsumexp(-1))
        else:
            likeness = (keys @ keys.T).masked_fill(torch.ones(len(keys), len(keys)).triu() > 0, -torch.inf)
            hits = values[:, None] == values
            for theta in torch.tensor(THETAS):
                logits = theta * likeness
                columns.append(logits.masked_fill(~hits, -torch.inf).logsumexp(-1) - logits.logsumexp(-1))
        found = (torch.stack(columns, 1).double() / np.log(2)).numpy()
        return np.where(np.isnan(found), -bits[:, None], found)

    valid = opened.neighbours("valid").table
    parts = [states(opened, valid, one) for one in beginnings(valid, 8, WINDOW)]
    bits = np.concatenate([part[2] for part in parts])
    columns = np.concatenate([other(*part) for part in parts]).T
    best = min(
        itertools.product(range(len(columns)), WEIGHTS),
        key=lambda pair: mix(bits, columns[pair[0]], pair[1]).sum(),
    )
    own = states(opened, opened.neighbours("test").table, window)
    return mix(own[2], other(*own)[:, best[0]], best[1])


@pytest.mark.parametrize("kind", ["knn", "cache"])
def test_a_memory_votes_as_it_does_by_hand(rows: AllRows, opened: OpenRun, kind: str) -> None:
    window = beginnings(rows.ground.neighbours.table, 3, WINDOW)[1]
    found = rows.of(kind).score(window)
    np.testing.assert_allclose(found, by_hand(opened, kind, window), rtol=1e-6)
    off = rows.of("off").score(window)
    # The weight is chosen on other documents, and is not 0 there, as these texts repeat each other.
    assert not np.allclose(found, off, rtol=1e-4)
    assert rows.of(kind).note


def test_lora_is_that_of_peft(rows: AllRows, opened: OpenRun) -> None:
    """From the same start, both are the same after as many steps."""
    peft = pytest.importorskip("peft")
    lora = Lora(opened.model)
    base: Any = open_base(opened.run.base_id)[0]
    config = peft.LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
    adapted = peft.get_peft_model(base, config)
    layers = [module for module in adapted.modules() if isinstance(module, peft.tuners.lora.Linear)]
    assert len(layers) == len(lora.maps)
    # Both run through the same layers, ours in the order in which they are called.
    names = {id(module): name for name, module in opened.model.base.named_modules()}  # type: ignore[union-attr]
    ours = {names[id(one.module)]: down for one, down in zip(lora.maps, lora.down, strict=True)}
    for name, module in adapted.get_base_model().named_modules():
        if isinstance(module, peft.tuners.lora.Linear):
            module.lora_A["default"].weight.data.copy_(ours[name])
    optimizer = torch.optim.AdamW([p for p in adapted.parameters() if p.requires_grad], lr=1e-3)
    table = opened.neighbours("train").table
    for window in training_windows(opened):
        tokens = batch_inputs(table, [window])[0]
        optimizer.zero_grad()
        adapted(tokens, labels=tokens).loss.backward()
        optimizer.step()
    window = beginnings(rows.ground.neighbours.table, 3, WINDOW)[0]
    (tokens,) = batch_inputs(rows.ground.neighbours.table, [window])
    targets = batch_targets(rows.ground.neighbours.table.store, [window])[0]
    with torch.no_grad():
        log_probs = adapted(tokens).logits[0].log_softmax(-1)
    expected = -log_probs.gather(-1, targets[:, None])[:, 0].numpy() / np.log(2)
    found = rows.of("lora").score(window)
    np.testing.assert_allclose(found, expected, rtol=2e-4)
    off = rows.of("off").score(window)
    assert np.abs(found - off).max() > 1e-2
    assert "3 windows" in rows.of("lora").note
    # Outside its row nothing of it is left.
    np.testing.assert_array_equal(rows.of("off").score(window), off)


def test_a_prompt_that_searches_often_asks_the_datastore(rows: AllRows, opened: OpenRun) -> None:
    window = beginnings(rows.ground.neighbours.table, 3, WINDOW)[0]
    often = InContext(opened.model, 8, Retriever(opened.datastore()).values)
    expected = score_batch(often, rows.ground.neighbours.table, [window], rows.ground.neighbours, 1)
    np.testing.assert_array_equal(rows.of("prompt-1-every-8").score(window), expected)
    assert not np.array_equal(rows.of("prompt-1").score(window), expected)


def test_a_prompt_of_words_has_other_neighbours(rows: AllRows, opened: OpenRun) -> None:
    pytest.importorskip("bm25s")
    window = beginnings(rows.ground.neighbours.table, 3, WINDOW)[0]
    found = search_by_words(rows.ground.neighbours)
    others = rows.ground.neighbours.replaced(found.chunks, found.distances)
    expected = scorer_of("prompt-2", opened.model, others)(window)
    np.testing.assert_array_equal(rows.of("bm25-2").score(window), expected)
    assert not np.array_equal(rows.of("prompt-2").score(window), expected)
    assert rows.of("bm25-2").num_bytes == found.index_bytes
    with pytest.raises(ConfigError, match="num_neighbours is 3"):
        rows.of("bm25-3")


def test_what_was_prepared_is_kept_with_what_it_cost(make_rows: Callable[[], AllRows]) -> None:
    first = make_rows()
    window = beginnings(first.ground.neighbours.table, 3, WINDOW)[0]
    found = {}
    for row in ("lora", "spalm", "knn", "cache"):
        found[row] = first.of(row).score(window)
    again = make_rows()
    again.ground.seconds = 99.0  # it would learn and remember more, if it began anew
    for row, bits in found.items():
        np.testing.assert_array_equal(again.of(row).score(window), bits)
        assert again.of(row).seconds == first.of(row).seconds > 0
        assert again.of(row).num_bytes == first.of(row).num_bytes
    width = first.ground.model.key_width  # type: ignore[attr-defined]
    # Keys in float32 and tokens of eight bytes, a column and a weight.
    assert first.of("knn").num_bytes == STEPS * WINDOW * (4 * width + 8) + 16
    # To choose or to learn takes a tick: the memory below is counted once, for itself.
    assert first.of("spalm").seconds == first.of("knn").seconds + 1
    assert first.of("spalm").num_bytes > first.of("knn").num_bytes
    assert first.of("off").num_bytes == first.of("on-1").seconds == 0


def test_with_all_the_time_a_memory_holds_every_window_once(rows: AllRows) -> None:
    rows.ground.seconds = 1e6
    rows.of("knn").prepare()
    windows = windows_of(rows.ground.texts.training.store, WINDOW, WINDOW)
    whole = sum(window.num_tokens == WINDOW for window in windows)
    assert f"a memory of {whole * WINDOW:,} tokens" in rows.of("knn").note


def test_without_other_text_nothing_is_prepared(rows: AllRows) -> None:
    with pytest.raises(ConfigError, match="is prepared from other text"):
        scorer_of("lora", rows.ground.model, rows.ground.neighbours)
