"""The verdict says what the interval says, and gives the reasons that show."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from retro.scoring.comparison import Bucket, Comparison
from retro.scoring.intervals import Interval
from retro.scoring.verdict import Evidence, verdict

EVIDENCE = Evidence(num_tokens=1_000_000, losses=[5.0, 4.0, 3.9, 3.9], retrieving=0.9)


def comparison(
    low: float, high: float, shared: float = 0.5, saved: Sequence[float] = (1.0,) * 100
) -> Comparison:
    nothing = Interval(0.0, 0.0, 0.0)
    buckets = [
        Bucket(0.0, 0.125, 1 - shared, 2.0, 2.0, 2.0, 0.0),
        Bucket(0.25, 0.5, shared, 2.0, 2.0, 1.0, 1.0),
    ]
    gain = Interval((low + high) / 2, low, high)
    return Comparison("on-2", gain, gain, gain, nothing, nothing, nothing, buckets, list(saved))


def test_a_clear_gain_needs_no_reason() -> None:
    found = verdict(comparison(0.1, 0.2), EVIDENCE)
    assert found.startswith("Retrieval helps: with neighbours RETRO needs 15.0 % fewer bits")
    assert "10.0 % to 20.0 %, 100 test documents" in found


def test_without_a_reason_it_says_so() -> None:
    found = verdict(comparison(-0.2, -0.1), EVIDENCE)
    assert found.startswith("Retrieval does not help here: with neighbours RETRO needs 15.0 % more bits")
    assert "None of the usual reasons" in found


def test_where_documents_disagree_it_says_how_much() -> None:
    found = verdict(comparison(-0.1, 0.2, saved=[90.0, -60.0, *[1.0] * 16, *[-1.0] * 21]), EVIDENCE)
    assert found.startswith(
        "Retrieval makes no clear difference: with neighbours RETRO needs 5.0 % fewer bits"
    )
    assert "17 of 39 need fewer bits with neighbours" in found
    assert "half of all that is saved or lost is in 2 documents" in found
    assert "None of the usual reasons" not in found


def test_few_documents_are_reason_enough() -> None:
    assert "only 6 test documents" in verdict(comparison(-0.1, 0.2, saved=[1.0] * 6), EVIDENCE)


@pytest.mark.parametrize(
    ("shared", "evidence", "reason"),
    [
        (0.02, EVIDENCE, "Too little text is shared between documents: 2.0 %"),
        (0.5, replace(EVIDENCE, losses=[6.0, 5.5, 5.0, 4.5]), "still fell by 10.0 %"),
        (0.5, replace(EVIDENCE, retrieving=0.2), "The documents are short: only 20.0 %"),
    ],
)
def test_each_reason_is_given_where_it_shows(shared: float, evidence: Evidence, reason: str) -> None:
    found = verdict(comparison(-0.1, 0.2, shared), evidence)
    assert reason in found
    assert "None of the usual" not in found
    assert reason not in verdict(comparison(0.1, 0.2, shared), evidence)
