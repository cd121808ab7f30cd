"""What the stages leave behind, with one file of it changed: opened and used as the next stage would."""

import copy
import dataclasses
import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retro.card import write_card
from retro.config import RunConfig
from retro.config.as_json import from_dict, to_dict
from retro.corpus.encode import EncodedStore
from retro.corpus.text import TextStore
from retro.corpus.tokens import TokenStore
from retro.jobs.scoring import document_gains, open_evaluation
from retro.retrieval.chunks import ChunkTable
from retro.retrieval.datastore import Datastore
from retro.retrieval.datastore.info import describe
from retro.retrieval.datastore.ledger import FILE as LEDGER
from retro.retrieval.datastore.verify import verify
from retro.retrieval.pinned import open_pinned
from retro.stages.stage import PLAN, Stage, open_artifact, run_stage
from retro.training.metrics import METRICS, curve, read_metrics
from retro.workspace import Workspace
from tests.fuzz.mutations import VALUES, changed_file, changed_json, changed_value
from tests.fuzz.spoiling import files_below, fuzz_files
from tests.fuzz.watch import expect_sound, inputs
from tests.workspaces import small_run


def use_tokens(work: Workspace) -> None:
    store = TokenStore.open(work.tokens_path / "test")
    table = ChunkTable(store, 8)
    assert all(table.tokens(chunk).ndim == 1 for chunk in range(min(3, len(table))))
    work.by_source()


def use_neighbours(work: Workspace) -> None:
    found = work.neighbours("test")
    found.describe(np.arange(2), 2)
    found.values(np.arange(3), 2)


def use_evaluation(work: Workspace) -> None:
    found = open_evaluation(work.run("retro"))
    document_gains(found, 1)
    for mode in found.evaluation.modes:
        found.evaluation.metrics(mode)
        found.evaluation.filtered(mode)
        found.evaluation.by_source(mode)


def use_pinned(work: Workspace) -> None:
    path = work.evaluation_path("retro", "test") / "neighbours"
    found = open_pinned(path, work.store("test"), work.datastore())
    if found is not None:
        assert found.num_deleted(2) >= 0


def use_run(work: Workspace) -> None:
    opened = work.run("retro")
    opened.model, opened.tokenizer, opened.num_neighbours, opened.run.fingerprint  # noqa: B018
    opened.notes()
    write_card(opened.path)


def use_metrics(work: Workspace) -> None:
    curve(read_metrics(work.run_path("retro") / METRICS), "loss")


def use_datastore(path: Path) -> None:
    datastore = Datastore.open(path)
    try:
        datastore.search(["the licence permits"], 3)
        describe(datastore)
        verify(datastore, sample=2)
    finally:
        datastore.close()


TARGETS: dict[str, tuple[float, str, Callable[[Workspace], object]]] = {
    "text": (0.01, "text", lambda work: list(TextStore.open(work.text_path).documents())),
    "tokenizer": (
        0.02,
        "tokenizer",
        lambda work: work.tokenizer().decode(work.tokenizer().encode("a licence é")),
    ),
    "encoded": (
        0.01,
        "encoded",
        lambda work: list(EncodedStore(open_artifact(work.encoded_path, "encoded", "x")).documents("train")),
    ),
    "tokens": (0.04, "tokens/test", use_tokens),
    "neighbours": (0.04, "neighbours/test", use_neighbours),
    "run": (0.04, "runs/retro", use_run),
    "metrics": (0.02, "runs/retro/metrics.jsonl", use_metrics),
    "evaluation": (0.03, "evaluations/retro/test", use_evaluation),
    "pinned neighbours": (0.02, "evaluations/retro/test/neighbours", use_pinned),
    "datastore": (0.04, "datastore", lambda work: use_datastore(work.datastore_path)),
}
"""The share of all inputs, the folder or file below the workspace, and what is done with it."""


@pytest.mark.parametrize("name", TARGETS)
def test_workspaces(name: str, spoiled: Workspace) -> None:
    share, place, use = TARGETS[name]
    path = spoiled.path / place
    folder = path if path.is_dir() else path.parent
    fuzz_files(f"artifact {name}", share, folder, lambda: used(use, spoiled.path), files_below(path))


def used(use: Callable[[Workspace], object], path: Path) -> None:
    """Use a workspace and close its ledger: SQLite remembers a file that is still open under its name."""
    work = Workspace(path)
    try:
        use(work)
    finally:
        if work._datastore is not None:
            work._datastore.close()


LEDGER_CELLS = {
    "facts": ["name", "value"],
    "versions": ["version", "action", "documents", "lineage"],
    "segments": ["name", "files", "report", "added"],
    "documents": ["number", "segment", "id", "content_hash", "num_tokens", "first_chunk", "added", "deleted"],
}


@inputs(0.04)
@given(data=st.data())
def test_ledgers(data: st.DataObject, finished: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A ledger that SQLite reads, but with a cell of another kind or value."""
    folder = Path(shutil.copytree(finished / "datastore", tmp_path_factory.mktemp("ledger") / "datastore"))
    table = data.draw(st.sampled_from(sorted(LEDGER_CELLS)))
    column = data.draw(st.sampled_from(LEDGER_CELLS[table]))
    connection = sqlite3.connect(folder / LEDGER)
    before = data.draw(st.sampled_from(connection.execute(f"SELECT {column} FROM {table}").fetchall()))[0]
    if column in ("value", "files", "report"):
        after: Any = data.draw(changed_json(json.loads(before))).encode(errors="replace").decode()
    else:
        after = data.draw(VALUES.filter(fits_sqlite))
    with suppress(sqlite3.Error):  # some are refused by SQLite itself
        connection.execute(f"UPDATE {table} SET {column} = ? WHERE {column} IS ?", (after, before))
        connection.commit()
    connection.close()
    expect_sound("artifact ledger", lambda: use_datastore(folder))
    shutil.rmtree(folder)


def fits_sqlite(value: Any) -> bool:
    if isinstance(value, str):
        return value.isprintable()
    return isinstance(value, float | None) or (isinstance(value, int) and abs(value) < 2**63)


@inputs(0.05)
@given(data=st.data())
def test_configs(data: st.DataObject) -> None:
    """The JSON of a run's config, and of each part of it."""
    values = to_dict(small_run("an embedder"))
    part = data.draw(
        st.sampled_from(["", *(name for name, value in values.items() if isinstance(value, dict))])
    )
    cls: Any = RunConfig
    if part:
        cls = type(getattr(small_run("an embedder"), part))
        values = values[part]
    changed = data.draw(changed_value(copy.deepcopy(values)))
    expect_sound("config", lambda: dataclasses.asdict(from_dict(cls, changed)))


@inputs(0.02)
@given(data=st.data())
def test_plans(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A stage that was begun, with another plan than it had; what it had done is still there."""
    folder = tmp_path_factory.mktemp("plan")
    partial = folder / "stage.partial"

    def begin(stage: Stage) -> None:
        stage.file("part").write_text("done")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_stage(folder / "stage", "kind", {"a": {"b": 1}}, {"c": "d"}, begin, "retro x")
    plan = partial / PLAN
    plan.write_bytes(data.draw(changed_file(PLAN, plan.read_bytes())))

    def go_on() -> None:
        run_stage(folder / "stage", "kind", {"a": {"b": 1}}, {"c": "d"}, lambda _: None, "retro x")

    expect_sound("plan", go_on)
    assert (folder / "stage" / "part").exists() or (partial / "part").exists()
