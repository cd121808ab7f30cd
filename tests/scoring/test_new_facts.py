"""New facts on the small workspace: documents come and go, and so does what they give."""

from pathlib import Path

import numpy as np
import pytest
import torch

from retro.config import EvaluationConfig
from retro.errors import ConfigError, DataError
from retro.model.retro import Retro
from retro.retrieval.datastore import Datastore
from retro.scoring.new_facts import ELSEWHERE, measure_new_facts
from retro.stages.files import file_checksum
from retro.workspace import Workspace
from tests.workspaces import small_run

CONFIG = EvaluationConfig(window=32, stride=16)


@pytest.fixture(scope="module")
def model(bert: str) -> Retro:
    torch.manual_seed(1)
    return Retro(small_run(bert).model).eval()


def files_of(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): file_checksum(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_what_was_added_is_found_and_after_deletion_nothing_is_left(
    workspace: Workspace, model: Retro, tmp_path: Path
) -> None:
    datastore, store = workspace.datastore(), workspace.store("test")
    held, version = files_of(datastore.path / "segments"), datastore.snapshot().version
    facts = measure_new_facts(model, datastore, store, CONFIG, 2, scratch=tmp_path)
    assert facts.num_documents == len(store)
    assert facts.found > 0.5  # of equal chunks, which the stock of sentences makes, the older ones come first
    assert facts.same_neighbours
    assert facts.same_bits
    assert facts.before == facts.deleted
    assert facts.added.estimate != facts.before.estimate
    assert facts.gain.estimate == pytest.approx(1 - facts.added.estimate / facts.before.estimate)
    assert files_of(datastore.path / "segments") == held  # the user's own datastore is as it was
    assert datastore.snapshot().version == version
    assert not datastore.ledger.rows("SELECT 1 FROM documents WHERE source = ?", (ELSEWHERE,))
    assert not list(tmp_path.iterdir())


def test_a_heading_moves_the_chunks(workspace: Workspace, model: Retro) -> None:
    arguments = (model, workspace.datastore(), workspace.store("test"), CONFIG, 2)
    with_heading, without = (
        measure_new_facts(*arguments, heading="Reprint\n\n"),
        measure_new_facts(*arguments),
    )
    assert with_heading.found < without.found
    assert with_heading.before == without.before


def test_traces_that_stay_are_told(
    workspace: Workspace, model: Retro, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Datastore, "delete", lambda *_args, **_kwargs: 0)
    facts = measure_new_facts(model, workspace.datastore(), workspace.store("test"), CONFIG, 2)
    assert not facts.same_neighbours
    assert not facts.same_bits
    assert facts.deleted == facts.added


def test_only_the_second_parts_of_the_named_documents_count(workspace: Workspace, model: Retro) -> None:
    from retro.scoring.bits_per_byte import chunk_bytes, score

    neighbours = workspace.neighbours("test")
    facts = measure_new_facts(
        model, workspace.datastore(), workspace.store("test"), CONFIG, 1, documents=[1, 3]
    )
    bits, size = 0.0, 0
    for number in (1, 3):
        begin, end = neighbours.table.first[number], neighbours.table.first[number + 1]
        chunks = np.arange(begin + -(-(end - begin) // 2), end)
        bits += score(model, neighbours.store, CONFIG, neighbours, 1).by_chunk(neighbours.table)[chunks].sum()
        size += chunk_bytes(neighbours.table, neighbours.datastore.tokenizer)[chunks].sum()
    assert facts.num_documents == 2
    assert facts.before.estimate == pytest.approx(bits / size, rel=1e-5)


def test_documents_that_the_datastore_holds_are_refused(workspace: Workspace, model: Retro) -> None:
    with pytest.raises(DataError, match="expected held-out ones"):
        measure_new_facts(model, workspace.datastore(), workspace.store("train"), CONFIG)
    with pytest.raises(ConfigError, match="k is 9"):
        measure_new_facts(model, workspace.datastore(), workspace.store("test"), CONFIG, 9)
