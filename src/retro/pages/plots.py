"""The plots of a report, as SVG text to embed in a page."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retro.errors import MissingExtraError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {
    "baseline": "#7a7f87",
    "off": "#d08c2e",
    "on": "#2a6f97",
    "train": "#9fc2d6",
    "fit": "#7b5ea7",
    "other": "#5c946e",
}
"""The colour of each thing, the same in all plots."""
GRID = "#e6e6e6"
DARK = "#333"


@dataclass(frozen=True)
class Line:
    """A curve, with its name and colour key."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    colour: str
    style: str = "-"
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    """Bounds of an interval at every point, if there are any."""


@dataclass(frozen=True)
class Bar:
    """A value with the bounds of its interval, its name and its colour key."""

    label: str
    value: float
    low: float
    high: float
    colour: str


def line_plot(
    lines: Sequence[Line],
    xlabel: str,
    ylabel: str,
    xticks: Sequence[float] | None = None,
    log_x: bool = False,
) -> str:
    """Curves, with their intervals, if any, as bands."""
    figure, axes = _figure()
    for line in lines:
        colour = COLOURS[line.colour]
        # A few points were measured one by one and get markers; many form a curve.
        marker = "o" if len(line.x) <= 12 else ""
        axes.plot(line.x, line.y, line.style, marker=marker, markersize=4, color=colour, label=line.label)
        if line.low:
            axes.fill_between(line.x, line.low, line.high, color=colour, alpha=0.15, linewidth=0)
    if log_x:
        axes.set_xscale("log")
    if xticks is not None:
        # A logarithmic axis would label powers of ten, and add its own ticks between ours.
        axes.set_xticks(xticks, [f"{tick:g}" for tick in xticks], minor=False)
        axes.minorticks_off()
    axes.legend(frameon=False)
    return _svg(figure, axes, xlabel, ylabel)


def bar_plot(bars: Sequence[Bar], ylabel: str, form: str = "{:.3f}") -> str:
    """Bars with their intervals; the axis starts at zero, so that lengths can be compared."""
    figure, axes = _figure()
    for number, bar in enumerate(bars):
        errors = [[bar.value - bar.low], [bar.high - bar.value]]
        colour = COLOURS[bar.colour]
        axes.bar(number, bar.value, yerr=errors, color=colour, width=0.6, capsize=4, ecolor=DARK)
        axes.text(number, bar.high, form.format(bar.value), ha="center", va="bottom", fontsize=9)
    axes.set_xticks(range(len(bars)), [bar.label for bar in bars])
    # Room for the numbers above the bars.
    axes.margins(y=0.12)
    return _svg(figure, axes, "", ylabel)


def sideways_bars(bars: Sequence[Bar], xlabel: str) -> str:
    """Bars for many things with long names, the first at the top."""
    figure, axes = _figure(height=0.8 + 0.32 * len(bars))
    for number, bar in enumerate(bars):
        errors = [[bar.value - bar.low], [bar.high - bar.value]]
        colour = COLOURS[bar.colour]
        axes.barh(number, bar.value, xerr=errors, color=colour, height=0.6, capsize=3, ecolor=DARK)
    axes.set_yticks(range(len(bars)), [bar.label for bar in bars])
    # matplotlib counts upwards; a list is read downwards.
    axes.invert_yaxis()
    axes.axvline(0, color=DARK, linewidth=0.8)
    axes.grid(axis="x", color=GRID)
    return _svg(figure, axes, xlabel, "")


def grouped_bars(groups: Sequence[str], series: Sequence[Line], xlabel: str, ylabel: str) -> str:
    """For each group, one bar of every series; `y` holds the heights."""
    figure, axes = _figure()
    width = 0.8 / len(series)
    for number, entry in enumerate(series):
        # The bars of a group stand side by side, centred on the group, 0.8 wide in all.
        places = [group + (number - (len(series) - 1) / 2) * width for group in range(len(groups))]
        axes.bar(places, entry.y, width=width, color=COLOURS[entry.colour], label=entry.label)
    axes.set_xticks(range(len(groups)), groups)
    axes.legend(frameon=False, ncols=len(series), loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return _svg(figure, axes, xlabel, ylabel)


def _figure(height: float = 3.4) -> "tuple[object, Axes]":
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("matplotlib", "eval") from None
    # Without pyplot, which would keep every figure in memory.
    figure = Figure(figsize=(5.6, height), layout="constrained")
    return figure, figure.add_subplot()


def _svg(figure: object, axes: "Axes", xlabel: str, ylabel: str) -> str:
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=GRID)
    axes.set_axisbelow(True)
    output = io.StringIO()
    # Without a date, the same numbers give the same page.
    figure.savefig(output, format="svg", metadata={"Date": None})  # type: ignore[attr-defined]
    svg = output.getvalue()
    # The XML declaration and the document type do not belong inside a page.
    return svg[svg.index("<svg") :]
