"""Text that is almost the test text: put back, taken out, and nothing left of either."""

from pathlib import Path

import numpy as np
import pytest
import torch

from retro.config import EvaluationConfig
from retro.corpus.documents import Document
from retro.model.retro import Retro
from retro.retrieval.chunks import ChunkTable
from retro.retrieval.datastore.copying import copied
from retro.scoring.bits_per_byte import score_batch
from retro.scoring.contamination import Contaminated, measure_contamination
from retro.scoring.windows import beginnings
from retro.workspace import Workspace
from tests.workspaces import small_run

CONFIG = EvaluationConfig(window=32, stride=16)
LIMITS = (0.4, 0.8)


@pytest.fixture(scope="module")
def model(bert: str) -> Retro:
    torch.manual_seed(1)
    return Retro(small_run(bert).model).eval()


def texts_of(workspace: Workspace) -> list[str]:
    """The texts of the documents that are scored."""
    store = workspace.store("test")
    windows = beginnings(ChunkTable(store, workspace.datastore().chunk_len), len(store), CONFIG.window)
    return [workspace.tokenizer().decode(store.document(window.document).tolist()) for window in windows]


def measured(workspace: Workspace, model: Retro, left_out: list[Document], scratch: Path) -> Contaminated:
    return measure_contamination(
        model, workspace.datastore(), workspace.store("test"), CONFIG, left_out, LIMITS, 5, scratch=scratch
    )


def test_what_was_left_out_is_there_for_one_state(workspace: Workspace, model: Retro, tmp_path: Path) -> None:
    version = workspace.datastore().snapshot().version
    again = Document("again", f"{texts_of(workspace)[0]} And so on.", "elsewhere", "", "")
    other = Document("other", "Nothing that anybody wrote before.", "elsewhere", "", "")
    found = measured(workspace, model, [other, again], tmp_path)
    back, as_it_is, *rest = found.states
    assert (back.limit, back.came, back.concerned) == (None, 1, 1)
    assert (as_it_is.limit, as_it_is.came, as_it_is.went) == (None, 0, 0)
    assert [state.limit for state in rest] == [0.8, 0.4]
    assert back.bits[0] != as_it_is.bits[0]
    # The state between is that of the workspace, whatever was there before.
    store, neighbours = workspace.store("test"), workspace.neighbours("test")
    windows = beginnings(neighbours.table, len(store), CONFIG.window)
    usual = [score_batch(model, neighbours.table, [window], neighbours, 2).sum() for window in windows]
    np.testing.assert_allclose(as_it_is.bits, usual, rtol=1e-6)
    assert workspace.datastore().snapshot().version == version
    assert not list(tmp_path.iterdir())


def test_what_is_alike_goes_with_the_limit_that_it_reaches(
    workspace: Workspace, model: Retro, tmp_path: Path
) -> None:
    texts = texts_of(workspace)
    half = texts[1][: len(texts[1]) // 2]
    near = [
        Document("whole", f"{texts[0]} And so on.", "elsewhere", "", ""),
        Document("copy", f"{texts[0]} And so on.", "another", "", ""),
        Document("half", half, "elsewhere", "", ""),
    ]
    with copied(workspace.datastore(), tmp_path) as datastore:
        before = measure_contamination(
            model, datastore, workspace.store("test"), CONFIG, [], LIMITS, 5, scratch=tmp_path
        )
        datastore.add(near)
        found = measure_contamination(
            model, datastore, workspace.store("test"), CONFIG, [], LIMITS, 5, scratch=tmp_path
        )
    assert found.most_similar > 0.8
    as_it_is, strict, stricter = found.states
    # Copies go together, by their text.
    assert (strict.limit, strict.went - before.states[1].went) == (0.8, 2)
    assert (stricter.limit, stricter.went - before.states[2].went) == (0.4, 1)
    assert as_it_is.bits[0] != before.states[0].bits[0]
    np.testing.assert_allclose(strict.bits[0], before.states[1].bits[0], rtol=1e-6)
    np.testing.assert_allclose(stricter.bits, before.states[2].bits, rtol=1e-6)
    np.testing.assert_array_equal(found.off, before.off)
