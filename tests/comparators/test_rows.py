"""Rows beside each other, on a small workspace and against numbers by hand."""

from pathlib import Path

import numpy as np
import pytest
import torch

from retro.comparators.rows import Rows, score_windows, scorer_of
from retro.comparators.systems import RowName, read_row, system_of
from retro.errors import ConfigError
from retro.model.retro import Retro
from retro.retrieval.chunks import ChunkTable
from retro.scoring.bits_per_byte import score_batch
from retro.scoring.leakage import chunk_overlaps, read_overlaps
from retro.scoring.windows import beginnings
from retro.stages.parts import JSON, Parts
from retro.workspace import Workspace
from tests.scoring.stores import store_of
from tests.workspaces import small_run

WINDOW = 32


@pytest.fixture(scope="module")
def model(bert: str, workspace: Workspace) -> Retro:
    torch.manual_seed(0)
    store = workspace.store("test")
    config = small_run(bert).model
    return Retro(config.__class__(**{**vars(config), "pad_id": store.pad_id, "end_id": store.end_id})).eval()


def test_beginnings_are_drawn_by_chance_and_hold_two_chunks(workspace: Workspace) -> None:
    table = workspace.neighbours("test").table
    drawn = beginnings(table, 3, WINDOW)
    assert len(drawn) == 3
    assert all(window.start == table.store.starts[window.document] for window in drawn)
    assert all(2 * table.chunk_len <= window.num_tokens <= WINDOW for window in drawn)
    # More of them hold those that fewer hold: a longer comparison goes on with a shorter one.
    assert {window.start for window in drawn} <= {window.start for window in beginnings(table, 4, WINDOW)}
    assert beginnings(table, 3, WINDOW, each=True) == drawn  # there is one source


def test_a_document_that_reads_nothing_is_not_drawn(tmp_path: Path) -> None:
    store = store_of(["x" * 8, "y" * 17, "z" * 15, "w" * 16], tmp_path / "tokens")
    # With its end a text of 16 has 17 tokens, the last of which is not read.
    assert [window.document for window in beginnings(ChunkTable(store, 8), 9, WINDOW)] == [1, 3]


def test_rows_are_scored_once_and_kept(workspace: Workspace, model: Retro, tmp_path: Path) -> None:
    neighbours = workspace.neighbours("test")
    windows = beginnings(neighbours.table, 3, WINDOW)
    kept = Parts(tmp_path, JSON)
    scorers = {row: scorer_of(row, model, neighbours) for row in ("off", "on-2", "prompt-1")}

    def interrupted(window: object) -> np.ndarray:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        score_windows(windows, {**scorers, "on-2": interrupted}, kept)
    first = kept.file(str(windows[0].start)).read_text()
    asked: list[int] = []
    off = scorers["off"]
    scorers["off"] = lambda window: asked.append(window.start) or off(window)
    score_windows(windows, scorers, kept)
    # What was kept before the interruption was not scored again.
    assert asked == [window.start for window in windows[1:]]
    assert kept.file(str(windows[0].start)).read_text().startswith(first[: len(first) // 2])

    lengths = workspace.tokenizer().token_lengths
    rows = Rows.read(neighbours, lengths, kept)
    assert rows.names == ["off", "on-2", "prompt-1"]
    assert list(rows.documents.values()) == [window.document for window in windows]
    assert rows.same("off", "off")
    assert not rows.same("off", "on-2")
    on = np.concatenate([score_batch(model, neighbours.table, [window], neighbours, 2) for window in windows])
    np.testing.assert_array_equal(rows.bits("on-2"), on)
    found = rows.result("on-2")
    assert found.gain.estimate == pytest.approx(1 - on.sum() / rows.bits("off").sum())
    num_bytes = sum(
        lengths[neighbours.table.store.tokens[window.score_from : window.score_to]].sum()
        for window in windows
    )
    assert found.bits_per_byte.estimate == pytest.approx(on.sum() / num_bytes)
    assert found.gain.low <= found.gain.estimate <= found.gain.high
    assert found.num_documents == 3
    assert found.tokens_per_second > 0


def test_only_the_chunks_that_count_are_counted(workspace: Workspace) -> None:
    neighbours = workspace.neighbours("test")
    table, lengths = neighbours.table, workspace.tokenizer().token_lengths
    start = int(table.store.starts[0])
    bits = [1.0] * (2 * table.chunk_len)
    better = [0.5] * table.chunk_len + [1.0] * table.chunk_len
    found = {start: {"off": {"bits": bits, "seconds": 1.0}, "on-1": {"bits": better, "seconds": 4.0}}}
    rows = Rows(neighbours, lengths, found)
    second = np.arange(len(table)) == 1
    assert rows.result("on-1").gain.estimate == pytest.approx(0.25)
    assert rows.result("on-1").speed == 0.25
    # Places are one behind the window's tokens: the last token of the first half is in the second chunk.
    assert rows.result("on-1", counted=second).gain.estimate == pytest.approx(0.5 / table.chunk_len)
    assert rows.result("on-1", counted=second).num_chunks == 1
    nothing = rows.result("on-1", counted=np.zeros(len(table), dtype=bool))
    assert nothing.num_chunks == 0
    assert np.isnan(nothing.gain.estimate)


def test_a_chunk_that_its_reader_is_given_is_no_new_text(workspace: Workspace) -> None:
    neighbours = workspace.neighbours("test")
    table = neighbours.table
    own = chunk_overlaps(neighbours)
    read = read_overlaps(neighbours, np.zeros(len(own)), batch=3)
    assert (read[table.first[:-1]] == 0).all()
    values, mask = neighbours.values(np.arange(len(table)), neighbours.max_neighbours)
    for chunk in set(range(len(table))) - set(table.first.tolist()):
        text = table.gather(np.array([chunk]), table.chunk_len)[0][: table.lengths[chunk]].tolist()
        longest = 0
        for value in values[chunk - 1][mask[chunk - 1]].tolist():
            for first in range(len(text)):
                for last in range(first + longest + 1, len(text) + 1):
                    run = text[first:last]
                    if any(value[at : at + len(run)] == run for at in range(len(value))):
                        longest = len(run)
        assert read[chunk] == pytest.approx(longest / len(text))
    assert (read_overlaps(neighbours, own) >= own).all()


def test_tokens_that_are_helped_and_hurt(workspace: Workspace) -> None:
    starts = workspace.neighbours("test").table.store.starts
    off = {"bits": [1.0, 2.0, 3.0, 4.0], "seconds": 1.0}
    on = {"bits": [0.8, 2.05, 3.5, 0.0], "seconds": 1.0}
    found = {int(starts[0]): {"off": off, "on-1": on}, int(starts[1]): {"off": off}}
    rows = Rows(workspace.neighbours("test"), workspace.tokenizer().token_lengths, found)
    assert rows.changed("on-1") == (0.5, 0.25)
    assert rows.changed("on-1", by=0.01) == (0.5, 0.5)
    assert rows.changed("off") == (0.0, 0.0)
    assert all(np.isnan(rows.changed("lora")))


@pytest.mark.parametrize(
    "row", ["off-1", "on-0", "plus", "lora-2", "prompt-1-every-0", "bm25-1-every-2", "ON-1"]
)
def test_a_name_has_numbers_where_its_pattern_has_letters(row: str) -> None:
    with pytest.raises(
        ConfigError, match=r"there is no row .* one of off, on-K, plus-K, prompt-K, prompt-K-e"
    ):
        read_row(row)


def test_a_name_is_read() -> None:
    assert read_row("prompt-2-every-16") == RowName("prompt", 2, 16)
    assert read_row("bm25-10") == RowName("bm25", 10)
    assert read_row("lora") == RowName("lora")
    assert system_of("plus-2").stands_for == "RETRO++"


@pytest.mark.parametrize("row", ["", "on", "on-x", "off-2", "prompt", "often-2", "on-2-3"])
def test_a_row_that_is_none_is_refused(workspace: Workspace, model: Retro, row: str) -> None:
    with pytest.raises(ConfigError, match="there is no row"):
        scorer_of(row, model, workspace.neighbours("test"))


def test_more_neighbours_than_are_saved_are_refused(workspace: Workspace, model: Retro) -> None:
    with pytest.raises(ConfigError, match="num_neighbours is 5"):
        scorer_of("on-5", model, workspace.neighbours("test"))
