"""Rows of runs beside each other: the numbers of each alone, resumed after a stop, and what they cost."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from retro.comparators.knn_lm import size_of_datastore
from retro.comparators.rows import scorer_of
from retro.errors import ConfigError, DataError
from retro.generation.sampler import Sampler
from retro.jobs.comparing import Entry, Extent, compare_rows
from retro.scoring.windows import beginnings
from retro.workspace import OpenRun, Workspace, open_run

EXTENT = Extent(num_documents=3, window=64, seconds=0.0)
ROWS = ("off", "on-2", "plus-1", "prompt-1", "prompt-1-every-8", "lora", "knn", "spalm", "cache")


@pytest.fixture
def opened(fitted_work: Workspace, tmp_path: Path) -> OpenRun:
    """A run whose results go elsewhere, so that every test begins anew."""
    return open_run(fitted_work.path, "fitted", out=tmp_path)


def entries(opened: OpenRun, rows: tuple[str, ...] = ROWS) -> list[Entry]:
    return [Entry(row, opened, row) for row in rows]


def test_every_row_of_a_fitted_base(opened: OpenRun) -> None:
    found = compare_rows(entries(opened), extent=EXTENT)
    neighbours = opened.neighbours("test")
    windows = beginnings(neighbours.table, 3, 64)
    assert found.rows.names == list(ROWS)
    for row in ("off", "on-2", "prompt-1"):
        scorer = scorer_of(row, opened.model, neighbours)
        np.testing.assert_array_equal(
            found.rows.bits(row), np.concatenate([scorer(window) for window in windows])
        )
    datastore = size_of_datastore(opened.datastore()).num_bytes
    additions = sum(value.nbytes for value in opened.model.state_dict().values())
    costs = {row: cost.num_bytes for row, cost in found.costs.items()}
    assert costs["off"] == 0
    assert costs["prompt-1"] == costs["prompt-1-every-8"] == datastore
    assert costs["on-2"] == costs["plus-1"] == datastore + additions
    # Rank 8 on both sides of every linear map of three layers, and the number of windows.
    maps = 2 * (32 + 32) + 2 * (32 + 16) + 3 * (32 + 64)
    assert costs["lora"] == 3 * 8 * maps * 4 + 8
    assert costs["spalm"] > costs["knn"] > costs["cache"] > 0
    assert found.costs["on-2"].seconds == 0 < found.costs["lora"].seconds
    assert found.costs["knn"].note.startswith("a memory of 64 tokens")


def test_every_row_draws_tokens_and_does_so_once(opened: OpenRun, monkeypatch: pytest.MonkeyPatch) -> None:
    extent = dataclasses.replace(EXTENT, num_documents=2, sampled=1)
    rows = (*ROWS, "bm25-1")
    found = compare_rows(entries(opened, rows), extent=extent)
    assert all(found.sampling[row] > 0 for row in rows)
    monkeypatch.setattr(Sampler, "generate", None)  # nothing is drawn again
    assert compare_rows(entries(opened, ROWS), extent=extent).sampling == {
        row: found.sampling[row] for row in ROWS
    }


def test_more_rows_and_documents_go_on_with_what_is_there(
    opened: OpenRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = compare_rows(entries(opened, ("off", "knn")), extent=EXTENT)
    told: list[str] = []

    def interrupted(done: int, total: int, step: str = "", note: str = "") -> None:
        told.append(step)
        if step == "Scoring" and done == 2:
            raise KeyboardInterrupt

    more = Extent(num_documents=4, window=64, seconds=0.0)
    with pytest.raises(KeyboardInterrupt):
        compare_rows(entries(opened, ("off", "knn", "on-1")), extent=more, progress=interrupted)
    assert told[:3] == ["Preparing off", "Preparing knn", "Preparing on-1"]
    again = compare_rows(entries(opened, ("off", "on-1", "knn")), extent=more)
    assert again.costs["knn"] == few.costs["knn"]
    assert len(again.rows.found) == 4
    for start, rows in few.rows.found.items():
        assert again.rows.found[start]["knn"] == rows["knn"]  # its seconds, too: it was not scored again
    assert list(compare_rows(entries(opened, ("off",)), extent=EXTENT).rows.found) == list(few.rows.found)


def test_what_cannot_be_compared_is_refused_before_anything_is_prepared(opened: OpenRun) -> None:
    for rows, extent, said in (
        (("off", "on-3"), EXTENT, "num_neighbours is 3"),
        (("off", "nothing"), EXTENT, "there is no row 'nothing'"),
        (("off",), Extent(3, 16, 0.0), "expected two chunks of 16"),
        (("off",), Extent(3, 4096, 0.0), "expected at most 128"),
    ):
        with pytest.raises(ConfigError, match=said):
            compare_rows(entries(opened, rows), extent=extent)
    # A document that was read before is not scored.
    for row, split, said in (("knn", "train", "is no test"), ("cache", "valid", "is no result")):
        with pytest.raises(DataError, match=said):
            compare_rows(entries(opened, ("off", row)), split, EXTENT)
    assert not list(opened.out.rglob("*.npz"))  # type: ignore[union-attr]
