"""A comparison of two evaluations with numbers that are known beforehand."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from retro.errors import ArtifactError
from retro.pages.report import summary
from retro.scoring.comparison import compare
from retro.scoring.evaluate import Evaluation
from retro.scoring.intervals import Interval
from retro.stages.stage import Artifact

OVERLAPS = (0.0, 0.125, 0.5, 1.0)


def evaluation(
    folder: Path, tokens: str, overlaps: Sequence[float] = OVERLAPS, **bits: list[float]
) -> Evaluation:
    """Four chunks of 10 bytes in two documents."""
    folder.mkdir()
    arrays = {
        "overlaps": np.array(overlaps),
        "num_bytes": np.full(4, 10),
        "documents": np.array([0, 0, 1, 1]),
    }
    for name, values in bits.items():
        mode = name.replace("_", "-")
        arrays[f"chunks/{mode}"] = np.array(values)
        arrays[f"documents/{mode}"] = np.array(values).reshape(2, 2).sum(1)
    np.savez(folder / "scores.npz", allow_pickle=False, **arrays)
    (folder / "results.json").write_text(json.dumps({}))
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
    assert [bucket.share_of_gain for bucket in comparison.buckets] == pytest.approx(
        [-1 / 20, 5 / 20, 16 / 20]
    )
    assert sum(bucket.share_of_bytes for bucket in comparison.buckets) == pytest.approx(1.0)
    assert "saves 25.0 %" in summary(comparison)
    assert "105.0 % of the saving comes from the 50.0 % of the text" in summary(comparison)


def test_slopes_with_leakage(tmp_path: Path) -> None:
    """bpb(12.5 %) − bpb(100 %) is 2.0 − 2.0 for the baseline, 2.05 − 1.5 for RETRO[ON]."""
    baseline = evaluation(tmp_path / "baseline", "t", off=[20.0, 20.0, 20.0, 20.0])
    retro = evaluation(tmp_path / "retro", "t", off=[22.0, 22.0, 22.0, 22.0], on_2=[21.0, 20.0, 15.0, 4.0])
    comparison = compare(baseline, retro, "on-2")
    assert comparison.slope_of_baseline == Interval(0.0, 0.0, 0.0)
    assert comparison.slope.estimate == comparison.steeper.estimate == pytest.approx(0.55)
    # New chunks stand in the first document alone: drawn twice it has no slope; drawn with the other, the
    # one above.
    assert (comparison.steeper.low, comparison.steeper.high) == pytest.approx((0.0, 0.55))


def test_new_chunks_are_resampled_by_document(tmp_path: Path) -> None:
    """New chunks of one document go together: only its gain of 10 % and the other's of none can be drawn."""
    baseline = evaluation(tmp_path / "baseline", "t", (0.0, 0.0, 0.1, 1.0), off=[20.0, 20.0, 20.0, 20.0])
    retro = evaluation(
        tmp_path / "retro", "t", (0.0, 0.0, 0.1, 1.0), off=[20.0] * 4, on_2=[12.0, 24.0, 20.0, 4.0]
    )
    gain = compare(baseline, retro, "on-2").gain_on_new_chunks
    assert (gain.estimate, gain.low, gain.high) == pytest.approx((4 / 60, 0.0, 0.1))


def test_without_new_chunks_nothing_is_claimed(tmp_path: Path) -> None:
    baseline = evaluation(tmp_path / "baseline", "t", (0.5,) * 4, off=[20.0] * 4)
    retro = evaluation(tmp_path / "retro", "t", (0.5,) * 4, off=[20.0] * 4, on_2=[10.0] * 4)
    comparison = compare(baseline, retro, "on-2")
    assert np.isnan(
        [comparison.gain_on_new_chunks.estimate, comparison.slope.estimate, comparison.steeper.low]
    ).all()
    assert "nothing can be told" in summary(comparison)


def test_other_documents_cannot_be_compared(tmp_path: Path) -> None:
    one, other = (
        evaluation(tmp_path / "a", "t", off=[1.0] * 4),
        evaluation(tmp_path / "b", "u", off=[1.0] * 4, on_2=[1.0] * 4),
    )
    with pytest.raises(ArtifactError, match="different tokens"):
        compare(one, other, "on-2")
