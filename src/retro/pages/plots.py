"""The pictures of a report, as SVG text."""

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


@dataclass(frozen=True)
class Line:
    """A curve with its name and colour key."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    colour: str
    style: str = "-"
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    """Bounds of an interval at every point, or none."""


@dataclass(frozen=True)
class Bar:
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
    figure, axes = _figure()
    for line in lines:
        marker = "o" if len(line.x) <= 12 else ""
        axes.plot(
            line.x,
            line.y,
            line.style,
            marker=marker,
            markersize=4,
            color=COLOURS[line.colour],
            label=line.label,
        )
        if line.low:
            axes.fill_between(
                line.x, line.low, line.high, color=COLOURS[line.colour], alpha=0.15, linewidth=0
            )
    if log_x:
        axes.set_xscale("log")
    if xticks is not None:
        axes.set_xticks(xticks, [f"{tick:g}" for tick in xticks], minor=False)
        axes.minorticks_off()
    axes.legend(frameon=False)
    return _svg(figure, axes, xlabel, ylabel)


def bar_plot(bars: Sequence[Bar], ylabel: str, form: str = "{:.3f}") -> str:
    """Bars with their intervals; the axis starts at zero, so that lengths may be compared."""
    figure, axes = _figure()
    for number, bar in enumerate(bars):
        errors = [[bar.value - bar.low], [bar.high - bar.value]]
        axes.bar(
            number, bar.value, yerr=errors, color=COLOURS[bar.colour], width=0.6, capsize=4, ecolor="#333"
        )
        axes.text(number, bar.high, form.format(bar.value), ha="center", va="bottom", fontsize=9)
    axes.set_xticks(range(len(bars)), [bar.label for bar in bars])
    axes.margins(y=0.12)
    return _svg(figure, axes, "", ylabel)


def sideways_bars(bars: Sequence[Bar], xlabel: str) -> str:
    """Bars for many things with long names, the first at the top."""
    figure, axes = _figure(height=0.8 + 0.32 * len(bars))
    for number, bar in enumerate(bars):
        errors = [[bar.value - bar.low], [bar.high - bar.value]]
        axes.barh(
            number, bar.value, xerr=errors, color=COLOURS[bar.colour], height=0.6, capsize=3, ecolor="#333"
        )
    axes.set_yticks(range(len(bars)), [bar.label for bar in bars])
    axes.invert_yaxis()
    axes.axvline(0, color="#333", linewidth=0.8)
    axes.grid(axis="x", color="#e6e6e6")
    return _svg(figure, axes, xlabel, "")


def grouped_bars(groups: Sequence[str], series: Sequence[Line], xlabel: str, ylabel: str) -> str:
    """For each group one bar of every series, whose `y` holds the heights."""
    figure, axes = _figure()
    width = 0.8 / len(series)
    for number, entry in enumerate(series):
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
    figure = Figure(figsize=(5.6, height), layout="constrained")
    return figure, figure.add_subplot()


def _svg(figure: object, axes: "Axes", xlabel: str, ylabel: str) -> str:
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e6e6e6")
    axes.set_axisbelow(True)
    output = io.StringIO()
    figure.savefig(output, format="svg", metadata={"Date": None})  # type: ignore[attr-defined]
    svg = output.getvalue()
    return svg[svg.index("<svg") :]
