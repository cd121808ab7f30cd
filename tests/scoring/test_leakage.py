"""bpb(α), the distribution of overlaps, and intervals over documents, against numbers by hand."""

import numpy as np
import pytest

from retro.scoring.intervals import Interval, bootstrap, bootstrap_ratio, relative_gain
from retro.scoring.leakage import FilteredScore, chunk_overlaps, filtered_bits_per_byte, overlap_histogram
from retro.workspace import Workspace

BITS, BYTES, OVERLAPS = np.array([10.0, 6.0, 1.0]), np.array([5, 4, 1]), np.array([0.125, 0.51, 1.0])


def test_filtered_scores_by_hand() -> None:
    scores = {
        entry.alpha: entry for entry in filtered_bits_per_byte(BITS, BYTES, OVERLAPS, np.array([0, 0, 1]))
    }
    assert list(scores) == [step / 64 for step in range(8, 65)]
    for alpha, bits_per_byte, share in (
        (0.125, 2.0, 0.5),
        (0.5, 2.0, 0.5),
        (33 / 64, 16 / 9, 0.9),
        (1.0, 1.7, 1.0),
    ):
        assert (scores[alpha].bits_per_byte.estimate, scores[alpha].share_of_bytes) == pytest.approx(
            (bits_per_byte, share)
        )
    assert scores[0.125].bits_per_byte == Interval(2.0, 2.0, 2.0)  # one document alone has such a chunk
    assert (scores[1.0].bits_per_byte.low, scores[1.0].bits_per_byte.high) == pytest.approx(
        (1.0, 16 / 9)
    )  # one document twice
    assert [alpha for alpha, entry in scores.items() if entry.is_eighth] == [
        eighth / 8 for eighth in range(1, 9)
    ]
    written = {**vars(scores[1.0]), "bits_per_byte": vars(scores[1.0].bits_per_byte)}
    assert FilteredScore.read(written) == scores[1.0]


def test_histogram_by_hand() -> None:
    bins = overlap_histogram(
        np.array([0.0, *OVERLAPS]), np.array([0, *BYTES])
    )  # a chunk without text is none
    assert [(entry.low, entry.high) for entry in bins] == [(step / 8, (step + 1) / 8) for step in range(8)]
    assert [entry.share_of_bytes for entry in bins] == [0.5, 0, 0, 0, 0.4, 0, 0, 0.1]
    assert [entry.share_of_chunks for entry in bins] == pytest.approx([1 / 3, 0, 0, 0, 1 / 3, 0, 0, 1 / 3])


def test_overlap_is_whole_for_a_chunk_that_stands_in_a_neighbour(workspace: Workspace) -> None:
    overlaps = chunk_overlaps(workspace.neighbours("test"), 3)
    assert ((overlaps >= 0) & (overlaps <= 1)).all()
    assert overlaps.max() > 0.5


def test_intervals_hold_the_estimate() -> None:
    rng = np.random.default_rng(0)
    worse = rng.uniform(1, 2, size=200)
    gain = relative_gain(worse * rng.uniform(0.85, 0.95, size=200), worse)
    assert gain.low < gain.estimate < gain.high
    assert gain.estimate == pytest.approx(0.1, abs=0.01)
    assert gain.high - gain.low < 0.02
    assert bootstrap_ratio(worse, worse).high == pytest.approx(1.0)


def test_draws_without_a_denominator_say_nothing() -> None:
    assert bootstrap_ratio(np.array([0.0, 3.0]), np.array([0, 2])) == Interval(1.5, 1.5, 1.5)
    (undefined,) = bootstrap(np.zeros((3, 2)), lambda sums: sums[:, :1] / sums[:, 1:])
    assert np.isnan([undefined.estimate, undefined.low, undefined.high]).all()


def test_an_interval_is_as_wide_as_theory_has_it() -> None:
    values = np.random.default_rng(1).normal(size=400)
    interval = bootstrap_ratio(values, np.ones(400))
    assert interval.high - interval.low == pytest.approx(2 * 1.96 * values.std() / 20, rel=0.1)
