"""Rows of the table: ours, a rival and the machine's limit, as medians over rounds with their extremes."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from timing import interleaved_seconds


@dataclass(frozen=True)
class Spread:
    """A median over rounds, and the lowest and the highest of them."""

    median: float
    low: float
    high: float

    @staticmethod
    def of(values: Sequence[float]) -> "Spread":
        return Spread(statistics.median(values), min(values), max(values))


@dataclass(frozen=True, kw_only=True)
class Row:
    """One thing that a user waits for, at one size."""

    what: str
    size: str
    unit: str
    """A rate, of which more is better, or seconds or MB, of which less is."""
    ours: Spread
    rival: str = ""
    """What a user could take in its place; empty if there is nothing."""
    theirs: Spread | None = None
    times: Spread | None = None
    """How many times as good ours is as the rival, round by round."""
    limit: str = ""
    """What of the machine bounds it."""
    share: Spread | None = None
    """How near ours is to the limit, round by round: 1 is at the limit."""

    def record(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def read(record: dict[str, Any]) -> "Row":
        spreads = {
            name: Spread(**record[name]) if record[name] else None
            for name in ("ours", "theirs", "times", "share")
        }
        return Row(**{**record, **spreads})


class Rounds:
    """The seconds of several candidates in the same rounds, and the rows that can be read off them."""

    def __init__(self, candidates: Mapping[str, Callable[[], object]], rounds: int, warmup: int = 1) -> None:
        self.seconds = interleaved_seconds(candidates, rounds, warmup)

    def rate(self, name: str, amount: float) -> Spread:
        """So many tokens, chunks or queries a second."""
        return Spread.of([amount / seconds for seconds in self.seconds[name]])

    def times(self, ours: str, rival: str, more: float = 1.0) -> Spread:
        """How many times as fast as the rival; `more` is how many times its work ours has done."""
        pairs = zip(self.seconds[ours], self.seconds[rival], strict=True)
        return Spread.of([more * theirs / own for own, theirs in pairs])

    def row(
        self,
        name: str,
        amount: float,
        *,
        what: str,
        size: str,
        unit: str,
        rival: str = "",
        rival_name: str = "",
        rival_amount: float | None = None,
        limit: str = "",
        limit_name: str = "",
        work: float = 1.0,
    ) -> Row:
        """The row of a candidate that does so much of something in a call.

        `rival` and `limit` are candidates too, `rival_name` and `limit_name` what the table calls them.
        `work` is how many times the limit's call holds what a call of ours has to do at least.
        """
        theirs = amount if rival_amount is None else rival_amount
        return Row(
            what=what,
            size=size,
            unit=unit,
            ours=self.rate(name, amount),
            rival=(rival_name or rival) if rival else "",
            theirs=self.rate(rival, theirs) if rival else None,
            times=self.times(name, rival, amount / theirs) if rival else None,
            limit=(limit_name or limit) if limit else "",
            share=self.times(name, limit, work) if limit else None,
        )

    def seconds_row(
        self, name: str, *, what: str, size: str, unit: str = "s", rival: str = "", limit: str = ""
    ) -> Row:
        """The row of a candidate whose seconds a user waits; `rival` and `limit` are candidates too."""
        return Row(
            what=what,
            size=size,
            unit=unit,
            ours=Spread.of(self.seconds[name]),
            rival=rival,
            theirs=Spread.of(self.seconds[rival]) if rival else None,
            times=self.times(name, rival) if rival else None,
            limit=limit,
            share=self.times(name, limit) if limit else None,
        )


def headings() -> list[str]:
    return ["", "size", "ours", "", "rival", "its", "ours over it", "limit", "of the limit"]


def cells(row: Row) -> list[str]:
    """A row as texts, in the order of the headings."""
    return [
        row.what,
        row.size,
        _spread(row.ours, number),
        row.unit,
        row.rival,
        number(row.theirs.median) if row.theirs else "",
        _spread(row.times, "{:.2f}".format),
        row.limit,
        _spread(row.share, "{:.2f}".format),
    ]


def _spread(spread: Spread | None, shown: Callable[[float], str]) -> str:
    if spread is None:
        return ""
    median = shown(spread.median)
    # What was counted rather than timed is the same in every round.
    is_one = spread.low == spread.high
    return median if is_one else f"{median} ({shown(spread.low)} – {shown(spread.high)})"


def number(value: float) -> str:
    """Three digits, or all before the point."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def markdown(rows: Sequence[Row]) -> str:
    lines = [headings(), ["---"] * len(headings()), *map(cells, rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
