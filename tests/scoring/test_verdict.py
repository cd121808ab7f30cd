"""The verdict says what the interval says, and gives the reasons that show."""

from dataclasses import replace

import pytest

from retro.scoring.comparison import Bucket, Comparison
from retro.scoring.intervals import Interval
from retro.scoring.verdict import Evidence, verdict

EVIDENCE = Evidence(num_documents=100, num_tokens=1_000_000, losses=[5.0, 4.0, 3.9, 3.9], retrieving=0.9)


def comparison(low: float, high: float, shared: float = 0.5) -> Comparison:
    nothing = Interval(0.0, 0.0, 0.0)
    buckets = [
        Bucket(0.0, 0.125, 1 - shared, 2.0, 2.0, 2.0, 0.0),
        Bucket(0.25, 0.5, shared, 2.0, 2.0, 1.0, 1.0),
    ]
    gain = Interval((low + high) / 2, low, high)
    return Comparison("on-2", gain, gain, gain, nothing, nothing, nothing, buckets)


def test_a_clear_gain_needs_no_reason() -> None:
    found = verdict(comparison(0.1, 0.2), EVIDENCE)
    assert found.startswith("Retrieval helps: with neighbours RETRO needs 15.0 % fewer bits")
    assert "10.0 % to 20.0 %, 100 test documents" in found


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (-0.2, -0.1, "Retrieval does not help here: with neighbours RETRO needs 15.0 % more bits"),
        (-0.1, 0.2, "Retrieval makes no clear difference: with neighbours RETRO needs 5.0 % fewer bits"),
    ],
)
def test_without_a_reason_it_says_so(low: float, high: float, words: str) -> None:
    found = verdict(comparison(low, high), EVIDENCE)
    assert found.startswith(words)
    assert "None of the usual reasons" in found


@pytest.mark.parametrize(
    ("shared", "evidence", "reason"),
    [
        (0.02, EVIDENCE, "Too little text is shared between documents: 2.0 %"),
        (0.5, replace(EVIDENCE, num_documents=6), "only 6 test documents"),
        (0.5, replace(EVIDENCE, losses=[6.0, 5.5, 5.0, 4.5]), "still fell by 10.0 %"),
        (0.5, replace(EVIDENCE, retrieving=0.2), "The documents are short: only 20.0 %"),
    ],
)
def test_each_reason_is_given_where_it_shows(shared: float, evidence: Evidence, reason: str) -> None:
    found = verdict(comparison(-0.1, 0.2, shared), evidence)
    assert reason in found
    assert "None of the usual" not in found
    assert reason not in verdict(comparison(0.1, 0.2, shared), evidence)
