"""Intervals and gains in words, the same in reports, claims and on the terminal.

A gain whose interval holds zero is called no clear difference wherever it is told, with the number beside it.
"""

from retro.scoring.intervals import Interval

UNCLEAR = "no clear difference"
NARROW = 0.002
SMALL = 0.005
"""A part below this whose interval is that narrow is told with a digit more."""


def part(value: float) -> str:
    """A fraction in percent: `19.1 %`."""
    return _signed(f"{100 * value:.1f} %")


def percent(interval: Interval) -> str:
    """A fraction and its bounds in percent: `19.1 % (12.5 to 26.3)`, or `0.04 % (0.02 to 0.05)` where a digit
    more is known and needed."""
    values = (interval.estimate, interval.low, interval.high)
    is_narrow = 0 < interval.high - interval.low < NARROW and max(map(abs, values)) < SMALL
    estimate, low, high = (f"{100 * value:.{2 if is_narrow else 1}f}" for value in values)
    return f"{_signed(estimate)} % ({_signed(low)} to {_signed(high)})"


def bounds(interval: Interval, digits: int) -> str:
    """A number and its bounds, for use in a sentence."""
    numbers = (f"{value:.{digits}f}" for value in (interval.estimate, interval.low, interval.high))
    estimate, low, high = map(_signed, numbers)
    return f"{estimate} ({low} to {high})"


def is_clear(gain: Interval) -> bool:
    """Whether the interval supports a gain or a loss: it does not if it holds zero."""
    return not gain.low <= 0 <= gain.high


def saves(gain: Interval, model: str = "") -> str:
    """A relative gain as a verb: `saves 19.1 % (12.5 to 26.3) of MODEL's bits`, or `costs 3.3 % … more`."""
    if gain.estimate >= 0:
        words = f"saves {percent(gain)}" + (f" of {model}'s bits" if model else "")
    else:
        words = f"costs {percent(_turned(gain))} more" + (f" bits than {model}" if model else "")
    return words if is_clear(gain) else f"{words}, {UNCLEAR}"


def fewer(gain: Interval, rest: str = "") -> str:
    """A relative gain as an amount: `19.1 % (12.5 to 26.3) fewer bits`, or more bits.

    `rest` goes on with what it is compared with.
    """
    amount, kind = (gain, "fewer") if gain.estimate >= 0 else (_turned(gain), "more")
    words = f"{percent(amount)} {kind} bits" + (f" {rest}" if rest else "")
    return words if is_clear(gain) else f"{words}, {UNCLEAR}"


def _turned(gain: Interval) -> Interval:
    """The loss that a negative gain is: with the sign turned, the bounds change places."""
    return Interval(-gain.estimate, -gain.high, -gain.low)


def _signed(text: str) -> str:
    """With a real minus sign, since these are read as text; none before a zero."""
    return text.replace("-", "−") if text.strip("-0. %") else text.lstrip("-")
