"""A document at a glance: a bar for every chunk, up for bits saved and down for bits lost, linked to it."""

from collections.abc import Sequence
from math import ceil, floor, log10

from retro.wording import counted

WIDTH, HEIGHT = 1000, 180
LEFT, RIGHT, TOP, BOTTOM = 46, 14, 26, 24
"""Room for the numbers of the axes and above the tallest bar."""
MOST_VALUES = 40
"""With more bars than this, values beside them would run into each other; their titles still tell them."""
FEWEST = 12
"""Room for at least this many bars, so that those of a short document stay narrow."""


def chunk_map(saved: Sequence[float]) -> str:
    """The bits saved in each chunk, in their order, as SVG."""
    ticks = _ticks(min(0.0, *saved, 0.0), max(0.0, *saved, 0.0))
    # In SVG y grows downwards.
    scale = (HEIGHT - TOP - BOTTOM) / (ticks[-1] - ticks[0])
    zero = TOP + ticks[-1] * scale
    step = (WIDTH - LEFT - RIGHT) / max(len(saved), FEWEST)
    parts = [_text(LEFT - 6, 11, "bits", "end")]
    parts += [_axis(tick, zero - tick * scale) for tick in ticks]
    every = ceil(len(saved) / 20)
    for number, bits in enumerate(saved, start=1):
        x = LEFT + (number - 1) * step
        parts.append(_bar(number, bits, x, step, zero, scale, len(saved) <= MOST_VALUES))
        if number == 1 or number % every == 0:
            parts.append(_text(x + step / 2, HEIGHT - 6, f"C{number}", "middle"))
    gained = sum(bits >= 0 for bits in saved)
    title = "Bits saved in each chunk"
    told = (
        f"{gained} of {counted(len(saved), 'chunk')} cost no more with retrieval; "
        f"{min(saved):.1f} to {max(saved):.1f}"
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{title}">'
        f'<svg class="map" viewBox="0 0 {WIDTH} {HEIGHT}" role="group" aria-label="{title}">'
        f"<title>{title}</title><desc>{told} bits.</desc>{''.join(parts)}</svg></div>"
    )


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers from below the lowest to above the highest, about four of them."""
    span = (high - low) or 1.0
    size = 10 ** floor(log10(span / 2))
    step = next(factor * size for factor in (1, 2, 5, 10) if span / (factor * size) <= 4)
    first, last = floor(low / step), ceil(high / step)
    return [number * step for number in range(first, max(last, first + 1) + 1)]


def _axis(tick: float, y: float) -> str:
    name = ' class="zero"' if tick == 0 else ""
    line = f'<line{name} x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
    return line + _text(LEFT - 6, y + 4, f"{tick:g}".replace("-", "−"), "end")


def _bar(number: int, bits: float, x: float, step: float, zero: float, scale: float, has_value: bool) -> str:
    # A bar without height could be neither seen nor clicked.
    height = max(abs(bits) * scale, 1.5)
    is_gain = bits >= 0
    # Gains end at the zero line, losses begin there.
    y = zero - height if is_gain else zero
    label = f"C{number}: {bits:+.1f} bits saved".replace("-", "−")
    value = ""
    if has_value:
        value = _text(
            x + step / 2, y - 4 if is_gain else y + height + 11, f"{bits:.0f}".replace("-", "−"), "middle"
        )
    return (
        f'<a href="#c{number}" aria-label="{label}"><rect class="{"gain" if is_gain else "loss"}" '
        f'x="{x + step * 0.08:.1f}" y="{y:.1f}" width="{step * 0.84:.1f}" height="{height:.1f}">'
        f"<title>{label}</title></rect>{value}</a>"
    )


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'
