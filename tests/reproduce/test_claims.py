"""Verdicts follow from intervals alone."""

import pytest

from retro.reproduce.claims import CLAIMS, TESTED_BY, Claim, Verdict, above, over_seeds, together, within
from retro.reproduce.runner import EXPERIMENTS
from retro.scoring.intervals import Interval

YES, NO, UNSURE = Verdict.REPRODUCED, Verdict.NOT_REPRODUCED, Verdict.TOO_SMALL


@pytest.mark.parametrize(
    ("low", "high", "verdict"), [(0.1, 0.3, YES), (-0.3, -0.1, NO), (-0.1, 0.3, UNSURE), (0.0, 0.3, UNSURE)]
)
def test_above_needs_the_whole_interval(low: float, high: float, verdict: Verdict) -> None:
    assert above(Interval((low + high) / 2, low, high)) is verdict


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (-0.01, 0.005, YES),
        (0.02, 0.05, NO),
        (-0.05, -0.02, NO),
        (-0.02, 0.005, UNSURE),
        (0.005, 0.02, UNSURE),
        (-0.02, 0.02, UNSURE),
    ],
)
def test_within_a_margin(low: float, high: float, verdict: Verdict) -> None:
    assert within(Interval((low + high) / 2, low, high), 0.01) is verdict


def test_every_claim_has_an_experiment() -> None:
    assert list(TESTED_BY) == list(CLAIMS)
    assert set(TESTED_BY.values()) <= set(EXPERIMENTS)


def test_a_claim_of_parts_is_as_good_as_its_worst() -> None:
    assert together(YES, YES) is YES
    assert together(YES, UNSURE) is UNSURE
    assert together(UNSURE, NO, YES) is NO


def test_seeds_that_disagree_decide_nothing() -> None:
    def claim(verdict: Verdict, estimate: float) -> Claim:
        return Claim("on-below-off", verdict, "found", Interval(estimate, estimate - 0.01, estimate + 0.01))

    alone = claim(YES, 0.1)
    assert over_seeds([alone]) == alone
    assert alone.spread == ""
    agreed = over_seeds([alone, claim(YES, 0.2)])
    assert (agreed.verdict, agreed.seeds, agreed.spread) == (YES, (0.1, 0.2), "seeds: 10.0, 20.0 %")
    assert over_seeds([alone, claim(NO, -0.1)]).verdict is UNSURE
    assert over_seeds([alone, claim(UNSURE, 0.0)]).verdict is UNSURE
