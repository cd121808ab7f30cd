"""Text can be read on every colour of both schemes, and no two things share a colour."""

import pytest

from retro.pages.colours import BETTER, INK, MODELS, SHARED, VARIABLES, WORSE, Shade

SCHEMES = ("light", "dark")


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2 defines it."""
    channels = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: Shade, other: Shade, scheme: str) -> float:
    low, high = sorted(luminance(getattr(shade, scheme)) for shade in (one, other))
    return (high + 0.05) / (low + 0.05)


def test_the_contrast_is_that_of_the_standard() -> None:
    assert contrast(Shade("#000000", ""), Shade("#ffffff", ""), "light") == pytest.approx(21)
    assert contrast(Shade("#777777", ""), Shade("#ffffff", ""), "light") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_text_can_be_read_on_every_background(scheme: str) -> None:
    marks = [*SHARED, *BETTER, *WORSE]
    for background in (INK["paper"], INK["raised"], *marks):
        assert contrast(INK["text"], background, scheme) >= 4.5
    for ink in ("quiet", "good", "bad"):
        assert contrast(INK[ink], INK["paper"], scheme) >= 4.5
    assert contrast(INK["quiet"], INK["raised"], scheme) >= 4.5


@pytest.mark.parametrize("scheme", SCHEMES)
def test_lines_and_bars_stand_out_from_the_paper(scheme: str) -> None:
    for shade in (*MODELS.values(), INK["good"], INK["bad"]):
        assert contrast(shade, INK["paper"], scheme) >= 3


@pytest.mark.parametrize("scheme", SCHEMES)
def test_one_colour_has_one_meaning(scheme: str) -> None:
    colours = [getattr(shade, scheme) for shade in VARIABLES.values()]
    assert len(set(colours)) == len(colours)
