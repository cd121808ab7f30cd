"""Plots carry their numbers: on the bars, in words, and in the page's own colours."""

import re

import pytest

from retro.pages.plots import Bar, Line, Point, bar_plot, grouped_bars, line_plot, point_plot, sideways_bars
from retro.pages.shell import STYLE

BARS = [Bar("baseline", 1.624, 1.5, 1.7, "baseline"), Bar("RETRO <on>", 1.314, 1.2, 1.4, "on")]
POINTS = [Point("off", 1.5, 1.25, 1.0, 1.5, "off"), Point("on <2>", 20, 0.75, 0.5, 1.0, "on")]
LINES = [Line("baseline", [1, 2], [1.5, 1.25], "baseline"), Line("on", [1, 2], [1.0, 0.75], "on")]


def plots() -> dict[str, str]:
    return {
        "bars": bar_plot(BARS, "bits per byte"),
        "sideways": sideways_bars(BARS, "% saved"),
        "grouped": grouped_bars(["few", "many"], LINES, "overlap", "bits per byte"),
        "lines": line_plot(LINES, "neighbours k", "bits per byte", xticks=[1, 2], log_x=True),
        "points": point_plot(POINTS, "MB", "bits per byte"),
    }


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("bars", ["1.624", "1.314"]),
        ("sideways", ["1.6", "1.3"]),
        ("grouped", ["1.50", "1.25", "1.00", "0.75"]),
    ],
)
def test_values_stand_at_the_bars(name: str, values: list[str]) -> None:
    written = re.findall(r">\s*([\d.]+)</text>", plots()[name])
    assert all(value in written for value in values)


@pytest.mark.parametrize(
    ("name", "title", "told"),
    [
        ("bars", "bits per byte", "baseline 1.624 (1.500 to 1.700). RETRO &lt;on&gt; 1.314 (1.200 to 1.400)"),
        ("sideways", "% saved", "RETRO &lt;on&gt; 1.3 (1.2 to 1.4)"),
        ("grouped", "bits per byte by overlap", "many: baseline 1.25, on 0.75"),
        ("lines", "bits per byte by neighbours k", "on: 1 at 1, 0.75 at 2"),
        ("points", "bits per byte by MB", "off: 1.25 at 1.5. on &lt;2&gt;: 0.75 at 20"),
    ],
)
def test_a_plot_has_a_name_axes_and_its_numbers_in_words(name: str, title: str, told: str) -> None:
    svg = plots()[name]
    assert svg.startswith(f'<svg role="img" aria-label="{title}"')
    assert f"<title>{title}</title>" in svg
    assert told in svg
    for label in title.split(" by "):
        assert f">{label}</text>" in svg


def test_names_of_near_points_do_not_cover_each_other() -> None:
    points = [Point(f"prompt-{n}", 1.0 + n / 1000, 2.0, 1.5, 2.5, "on") for n in range(4)]
    svg = point_plot([*points, Point("off", 9.0, 1.0, 0.9, 1.1, "off")], "MB", "bits per byte")
    written = re.findall(r'text-anchor: (\w+)[^>]*? y="([\d.]+)"[^>]*>prompt-', svg)
    # To the right and to the left, above and below.
    assert len(set(written)) == len(written) == 4


def test_colours_follow_the_page_and_alone_are_their_own() -> None:
    for svg in plots().values():
        # No colour stands by itself, so each follows the scheme.
        assert not re.findall(r"(?<!, )#[0-9a-f]{6}\b", svg)
        used = set(re.findall(r"var\(--([a-z]+), #[0-9a-f]{6}\)", svg))
        assert {"text", "line"} <= used
        assert all(f"--{name}:" in STYLE for name in used)


def test_equal_numbers_give_equal_plots_and_ids_of_their_own() -> None:
    first, again = plots(), plots()
    assert first == again
    ids = [name for svg in first.values() for name in set(re.findall(r'\bid="([^"]+)"', svg))]
    assert len(ids) == len(set(ids))
