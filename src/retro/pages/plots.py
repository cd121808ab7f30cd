"""The plots of a report, as SVG text to embed in a page."""

import importlib.util
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from retro.errors import MissingExtraError
from retro.pages.colours import INK, MODELS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {name: shade.light for name, shade in MODELS.items()}
"""The colour of each thing, the same in all plots."""
TEXT = INK["text"].light
GRID = INK["line"].light
VARIABLES = {INK[name].light: name for name in ("text", "line")} | {
    shade.light: name for name, shade in MODELS.items()
}
"""The page's variable for each colour that a plot is drawn with."""
# Of any type, since matplotlib's names are a type of their own that only it can write down.
SETTINGS: dict[Any, Any] = {
    "font.size": 9,
    "text.color": TEXT,
    "axes.labelcolor": TEXT,
    "axes.edgecolor": TEXT,
    "xtick.color": TEXT,
    "ytick.color": TEXT,
    # What is drawn without a colour of its own, such as the ends of intervals.
    "axes.prop_cycle": f"cycler('color', ['{TEXT}'])",
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    # Letters as text, which can be read aloud and searched for, rather than as outlines.
    "svg.fonttype": "none",
}


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


@dataclass(frozen=True)
class Point:
    """A thing at its place, with the bounds of its height, its name and its colour key."""

    label: str
    x: float
    y: float
    low: float
    high: float
    colour: str


def require_extra() -> None:
    """Refuse to begin what would end without its plots."""
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingExtraError("matplotlib", "eval")


def line_plot(
    lines: Sequence[Line],
    xlabel: str,
    ylabel: str,
    xticks: Sequence[float] | None = None,
    log_x: bool = False,
) -> str:
    """Curves, with their intervals, if any, as bands."""
    with _figure() as (figure, axes):
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
        _legend(axes)
        told = [f"{line.label}: {_series(line)}" for line in lines]
        return _svg(figure, axes, xlabel, ylabel, told)


def point_plot(points: Sequence[Point], xlabel: str, ylabel: str) -> str:
    """Named points with intervals, over a logarithmic axis."""
    with _figure(height=4.2) as (figure, axes):
        for point in points:
            errors = [[point.y - point.low], [point.high - point.y]]
            colour = COLOURS[point.colour]
            axes.errorbar(point.x, point.y, yerr=errors, fmt="o", markersize=5, color=colour, linewidth=0.8)
        axes.set_xscale("log")
        # Room for the name of the last one.
        axes.margins(x=0.18)
        figure.draw_without_rendering()  # only then are the points' places known
        _write_names(axes, points, figure.dpi)
        told = [f"{point.label}: {point.y:.4g} at {point.x:.4g}" for point in points]
        return _svg(figure, axes, xlabel, ylabel, told)


NAME_PLACES = ((5, 4), (5, -11), (-5, 4), (-5, -11), (5, 15), (5, -22), (-5, 15), (-5, -22))
"""Where a name may stand beside its point, in the order of trying: to the right or left, above or below."""


def _write_names(axes: "Axes", points: Sequence[Point], dpi: float) -> None:
    """Each where it covers no earlier one, if there is such a place."""
    size = 8.0
    taken: list[tuple[float, float, float, float]] = []
    for point in points:
        # In points of print, as offsets and letters are.
        x, y = axes.transData.transform((point.x, point.y)) * 72.0 / dpi
        width = 0.6 * size * len(point.label)
        boxes = []
        for right, up in NAME_PLACES:
            left = x + right if right > 0 else x + right - width
            boxes.append((left, y + up, left + width, y + up + size))
        free = [not any(_meet(box, other) for other in taken) for box in boxes]
        chosen = free.index(True) if True in free else 0
        taken.append(boxes[chosen])
        place = NAME_PLACES[chosen]
        axes.annotate(
            point.label,
            (point.x, point.y),
            place,
            textcoords="offset points",
            ha="left" if place[0] > 0 else "right",
            fontsize=size,
            color=TEXT,
        )


def _meet(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> bool:
    """Whether two boxes, given by their left, lower, right and upper ends, cover each other."""
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def bar_plot(bars: Sequence[Bar], ylabel: str, form: str = "{:.3f}") -> str:
    """Bars with their intervals; the axis starts at zero, so that lengths can be compared."""
    with _figure() as (figure, axes):
        for number, bar in enumerate(bars):
            errors = [[bar.value - bar.low], [bar.high - bar.value]]
            colour = COLOURS[bar.colour]
            axes.bar(number, bar.value, yerr=errors, color=colour, width=0.6, capsize=4, ecolor=TEXT)
            place = (number, max(bar.high, 0.0))
            axes.annotate(
                form.format(bar.value), place, (0, 2), textcoords="offset points", ha="center", va="bottom"
            )
        axes.set_xticks(range(len(bars)), [bar.label for bar in bars])
        if len(bars) > 5:
            # Many names would run into each other.
            axes.tick_params(axis="x", labelrotation=40)
        # Room for the numbers above the bars.
        axes.margins(y=0.12)
        return _svg(figure, axes, "", ylabel, [_told(bar, form) for bar in bars])


def sideways_bars(bars: Sequence[Bar], xlabel: str, form: str = "{:.1f}") -> str:
    """Bars for many things with long names, the first at the top."""
    with _figure(height=0.8 + 0.3 * len(bars)) as (figure, axes):
        for number, bar in enumerate(bars):
            errors = [[bar.value - bar.low], [bar.high - bar.value]]
            colour = COLOURS[bar.colour]
            axes.barh(number, bar.value, xerr=errors, color=colour, height=0.6, capsize=3, ecolor=TEXT)
            axes.text(max(bar.high, 0.0), number, f" {form.format(bar.value)}", va="center", fontsize=8)
        axes.set_yticks(range(len(bars)), [bar.label for bar in bars])
        # matplotlib counts upwards; a list is read downwards.
        axes.invert_yaxis()
        axes.axvline(0, color=TEXT, linewidth=0.8)
        axes.grid(axis="x", color=GRID)
        # Room for the numbers behind the bars.
        axes.margins(x=0.14)
        return _svg(figure, axes, xlabel, "", [_told(bar, form) for bar in bars])


def grouped_bars(
    groups: Sequence[str], series: Sequence[Line], xlabel: str, ylabel: str, form: str = "{:.2f}"
) -> str:
    """For each group, one bar of every series; `y` holds the heights."""
    with _figure() as (figure, axes):
        width = 0.84 / len(series)
        for number, entry in enumerate(series):
            # The bars of a group stand side by side, centred on the group, 0.84 wide in all.
            places = [group + (number - (len(series) - 1) / 2) * width for group in range(len(groups))]
            axes.bar(places, entry.y, width=width, color=COLOURS[entry.colour], label=entry.label)
            for place, value in zip(places, entry.y, strict=True):
                # Upright, since the bars are narrower than their numbers.
                axes.text(
                    place, value, f" {form.format(value)}", rotation=90, ha="center", va="bottom", fontsize=8
                )
        axes.set_xticks(range(len(groups)), groups)
        axes.margins(y=0.2)
        _legend(axes)
        told = [
            f"{group}: " + ", ".join(f"{entry.label} {form.format(entry.y[number])}" for entry in series)
            for number, group in enumerate(groups)
        ]
        return _svg(figure, axes, xlabel, ylabel, told)


def _told(bar: Bar, form: str) -> str:
    value, low, high = (form.format(number) for number in (bar.value, bar.low, bar.high))
    return f"{bar.label} {value} ({low} to {high})"


def _series(line: Line) -> str:
    """The points of a curve in words; of many, the first and the last."""
    points = list(zip(line.x, line.y, strict=True))
    shown = points if len(points) <= 12 else [points[0], points[-1]]
    return ", ".join(f"{y:.4g} at {x:g}" for x, y in shown)


@contextmanager
def _figure(height: float = 3.2) -> "Iterator[tuple[Figure, Axes]]":
    """An empty plot; what is drawn within the block has the pages' colours and letters."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("matplotlib", "eval") from None
    with rc_context(SETTINGS):
        # Without pyplot, which would keep every figure in memory.
        figure = Figure(figsize=(4.8, height), layout="constrained")
        yield figure, figure.add_subplot()


def _legend(axes: "Axes") -> None:
    # Above the plot, where it hides no curve.
    axes.legend(frameon=False, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0), columnspacing=1.2)


def _svg(figure: "Figure", axes: "Axes", xlabel: str, ylabel: str, told: Sequence[str]) -> str:
    """The plot as an image with a name, and with its numbers in words for those who cannot see it."""
    from matplotlib import rc_context

    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=GRID)
    axes.set_axisbelow(True)
    title = " by ".join(filter(None, [ylabel, xlabel]))
    output = io.StringIO()
    # Without a date and with ids that depend on the plot alone, the same numbers give the same page.
    with rc_context({"svg.hashsalt": "\n".join([title, *told])}):
        figure.savefig(output, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    return _embedded(output.getvalue(), title, ". ".join(told))


def _embedded(svg: str, title: str, told: str) -> str:
    """A saved plot as a part of a page: its colours follow the page's, and alone it keeps its own."""
    # The XML declaration and the document type do not belong inside a page, nor do ids that every plot has.
    svg = re.sub(r'<g id="[^"]*">', "<g>", svg[svg.index("<svg") :])
    for colour, name in VARIABLES.items():
        svg = svg.replace(colour, f"var(--{name}, {colour})")
    named = f'<svg role="img" aria-label="{escape(title)}"'
    head, rest = svg.replace("<svg", named, 1).split(">", 1)
    return f"{head}><title>{escape(title)}</title><desc>{escape(told)}</desc>{rest}"
