"""A comparison of two evaluations with numbers that are known beforehand."""

import json
from pathlib import Path

import numpy as np
import pytest

from retro.artifacts import Artifact
from retro.errors import ArtifactError
from retro.evaluation.comparison import compare
from retro.evaluation.evaluate import Evaluation
from retro.evaluation.report import summary


def evaluation(folder: Path, tokens: str, **bits: list[float]) -> Evaluation:
    """Four chunks of 10 bytes in two documents; the overlaps are 0, 0.125, 0.5 and 1."""
    folder.mkdir()
    arrays = {"overlaps": np.array([0.0, 0.125, 0.5, 1.0]), "num_bytes": np.full(4, 10), "document_bytes": np.full(2, 20)}
    modes = {}
    for name, values in bits.items():
        mode = name.replace("_", "-")
        arrays[f"chunks/{mode}"] = np.array(values)
        arrays[f"documents/{mode}"] = np.array(values).reshape(2, 2).sum(1)
        modes[mode] = {"estimate": sum(values) / 40, "low": 0.0, "high": 9.0}
    np.savez(folder / "scores.npz", allow_pickle=False, **arrays)
    (folder / "results.json").write_text(json.dumps({"modes": modes, "filtered": {}}))
    return Evaluation(Artifact(folder, {"inputs": {"tokens": tokens}}))


def test_gains_and_where_they_come_from(tmp_path: Path) -> None:
    baseline = evaluation(tmp_path / "baseline", "t", off=[20.0, 20.0, 20.0, 20.0])
    retro = evaluation(tmp_path / "retro", "t", off=[22.0, 22.0, 22.0, 22.0], on_2=[21.0, 20.0, 15.0, 4.0])
    comparison = compare(baseline, retro, "on-2")
    assert comparison.gain_over_baseline.estimate == pytest.approx(20 / 80)
    assert comparison.gain_over_off.estimate == pytest.approx(28 / 88)
    assert comparison.gain_on_new_chunks.estimate == pytest.approx(-1 / 40)
    assert [bucket.label for bucket in comparison.buckets] == ["≤ 12.5%", "25%–50%", "75%–100%"]
    assert [bucket.on for bucket in comparison.buckets] == pytest.approx([2.05, 1.5, 0.4])
    assert [bucket.share_of_gain for bucket in comparison.buckets] == pytest.approx([-1 / 20, 5 / 20, 16 / 20])
    assert sum(bucket.share_of_bytes for bucket in comparison.buckets) == pytest.approx(1.0)
    assert "saves 25.0 %" in summary(comparison)
    assert "105.0 % of the saving comes from the 50.0 % of the text" in summary(comparison)


def test_other_documents_cannot_be_compared(tmp_path: Path) -> None:
    one, other = evaluation(tmp_path / "a", "t", off=[1.0] * 4), evaluation(tmp_path / "b", "u", off=[1.0] * 4, on_2=[1.0] * 4)
    with pytest.raises(ArtifactError, match="different tokens"):
        compare(one, other, "on-2")
