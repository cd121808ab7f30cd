"""One way to say a gain, for reports, claims and README."""

import pytest

from retro.scoring.intervals import Interval
from retro.scoring.wording import bounds, fewer, is_clear, percent, saves

GAIN = Interval(0.191, 0.125, 0.263)
LOSS = Interval(-0.033, -0.047, -0.019)
UNCLEAR = Interval(-0.007, -0.017, 0.006)
LUCKY = Interval(0.25, -0.025, 0.525)


@pytest.mark.parametrize(
    ("gain", "verb", "amount"),
    [
        (GAIN, "saves 19.1 % (12.5 to 26.3)", "19.1 % (12.5 to 26.3) fewer bits"),
        (LOSS, "costs 3.3 % (1.9 to 4.7) more", "3.3 % (1.9 to 4.7) more bits"),
        (
            UNCLEAR,
            "costs 0.7 % (−0.6 to 1.7) more, no clear difference",
            "0.7 % (−0.6 to 1.7) more bits, no clear difference",
        ),
        (
            LUCKY,
            "saves 25.0 % (−2.5 to 52.5), no clear difference",
            "25.0 % (−2.5 to 52.5) fewer bits, no clear difference",
        ),
    ],
)
def test_a_gain_is_said_by_its_sign_and_its_interval(gain: Interval, verb: str, amount: str) -> None:
    assert saves(gain) == verb
    assert fewer(gain) == amount
    assert is_clear(gain) is ("no clear difference" not in verb)


def test_what_is_compared_with_comes_before_the_doubt() -> None:
    assert saves(GAIN, "the baseline") == "saves 19.1 % (12.5 to 26.3) of the baseline's bits"
    assert saves(LOSS, "the baseline") == "costs 3.3 % (1.9 to 4.7) more bits than the baseline"
    assert (
        fewer(UNCLEAR, "than with k = 2")
        == "0.7 % (−0.6 to 1.7) more bits than with k = 2, no clear difference"
    )


def test_zero_has_no_sign_and_others_a_real_minus() -> None:
    assert percent(Interval(-0.0001, -0.02, 0.0)) == "0.0 % (−2.0 to 0.0)"
    assert percent(Interval(0.0004, 0.0002, 0.0005)) == "0.04 % (0.02 to 0.05)"
    assert percent(Interval(-0.0008, -0.001, -0.0005)) == "−0.08 % (−0.10 to −0.05)"
    assert percent(Interval(0.0, 0.0, 0.0)) == "0.0 % (0.0 to 0.0)"
    assert bounds(Interval(-0.5, -1.25, -0.001), 2) == "−0.50 (−1.25 to 0.00)"
