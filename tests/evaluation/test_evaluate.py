import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from retro.evaluation.evaluate import OFF, evaluate, on
from retro.model.retro import Retro
from retro.workspace import Workspace
from tests.workspaces import small_run


def test_sources_add_up_to_the_whole(workspace: Workspace, bert: str, tmp_path: Path) -> None:
    neighbours, run = workspace.neighbours("test"), small_run(bert)
    for number, document in enumerate(neighbours.store.documents):
        document["source"] = "even" if number % 2 == 0 else "odd"
    torch.manual_seed(0)
    vocab_size = neighbours.store.artifact.counts["vocab_size"]
    model = Retro(dataclasses.replace(run.model, vocab_size=vocab_size)).eval()
    evaluation = evaluate(model, "a model", neighbours, tmp_path / "evaluation", run.evaluation)
    num_bytes = {"even": neighbours.store.num_bytes[::2].sum(), "odd": neighbours.store.num_bytes[1::2].sum()}
    for mode in (OFF, on(2)):
        by_source = evaluation.by_source(mode)
        assert by_source.keys() == num_bytes.keys()
        whole = sum(by_source[source].estimate * size for source, size in num_bytes.items()) / neighbours.store.num_bytes.sum()
        assert whole == pytest.approx(evaluation.bits_per_byte(mode))
        assert by_source["odd"].estimate == pytest.approx(evaluation.document_bits(mode)[1::2].sum() / num_bytes["odd"])
    assert np.isfinite(evaluation.document_bits(OFF)).all()
