"""Every colour of the pages, for light and for dark paper: one colour means one thing, on all of them.

Yellow is text shared with neighbours, green and pink are bits saved and lost, and the models of the plots
have a colour each. Everything else is ink and paper. The tests hold the contrast of text on each of them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from retro.retrieval.shared_runs import LONGEST, SHORTEST


@dataclass(frozen=True)
class Shade:
    """A colour for each scheme. The browser takes the one that its user prefers."""

    light: str
    dark: str

    @property
    def css(self) -> str:
        return f"light-dark({self.light}, {self.dark})"


SHARED = (
    Shade("#fff6c4", "#2f2a10"),
    Shade("#ffec94", "#453c0e"),
    Shade("#ffe162", "#5a4e0a"),
    Shade("#ffd52e", "#6e5f00"),
)
"""Runs shared with a neighbour, from the shortest that has a colour to the longest."""
BETTER = (
    Shade("#e2f3df", "#1a2e1e"),
    Shade("#c2e6bd", "#1e4428"),
    Shade("#9ed797", "#225a31"),
    Shade("#78c672", "#266f3a"),
)
WORSE = (
    Shade("#fce6ef", "#351a28"),
    Shade("#f6c5da", "#4f2239"),
    Shade("#efa2c4", "#6a2a4c"),
    Shade("#e77fae", "#863260"),
)
"""Tokens that cost fewer or more bits with retrieval, from a little to a lot."""
MODELS = {
    "baseline": Shade("#7a7f87", "#9aa1ab"),
    "off": Shade("#c27a18", "#e0a04a"),
    "on": Shade("#2a6f97", "#5fb0e0"),
    "fit": Shade("#7b5ea7", "#b79ae0"),
    "other": Shade("#1f8a7d", "#4fc0b0"),
}
"""Lines and bars of the plots."""
INK = {
    "text": Shade("#1d2228", "#e4e7eb"),
    "quiet": Shade("#555c66", "#a9b1bb"),
    "paper": Shade("#ffffff", "#14171b"),
    "raised": Shade("#f2f4f6", "#20252b"),
    "line": Shade("#d9dde2", "#3a424c"),
    "good": Shade("#1d6f33", "#7fd08c"),
    "bad": Shade("#a81f61", "#f08fbb"),
}
"""What is no scale, named for its use: `good` and `bad` are for gains, losses and verdicts."""

VARIABLES = {
    **INK,
    **MODELS,
    **{f"shared-{level}": shade for level, shade in enumerate(SHARED, start=SHORTEST)},
    **{f"better-{level}": shade for level, shade in enumerate(BETTER, start=1)},
    **{f"worse-{level}": shade for level, shade in enumerate(WORSE, start=1)},
}
"""The colours by the names that style sheets use."""
SHARED_WORDS = "Tokens in a row that also stand in a neighbour"
GAIN_WORDS = "Bits that retrieval saves on a token"


def shared_shade(level: int | None) -> Shade | None:
    """The colour of a run; none for what shares nothing, or a single token."""
    return None if level is None or level < SHORTEST else SHARED[level - SHORTEST]


def shared_labels() -> list[str]:
    """What the levels of shared runs stand for."""
    return [*map(str, range(LONGEST)), f"≥ {LONGEST}"]


def legend(words: str, boxes: Iterable[tuple[str, str]], note: str = "") -> str:
    """What colours mean: words, and a box for each class with its label."""
    marks = "".join(f"<mark{name and f' class={name}'}>{escape(label)}</mark>" for name, label in boxes)
    return f'<p class="legend"><span>{words}:</span> {marks}{note and f" <span>{note}</span>"}</p>'


def gain_legend(limits: Sequence[float]) -> str:
    """`limits` are the gains in bits at which each level begins, from a little to a lot."""
    levels = list(enumerate(limits, start=1))
    last = len(levels)
    worse = [(f"w{n}", f"{'≤ ' if n == last else ''}−{size:.2f}") for n, size in reversed(levels)]
    better = [(f"b{n}", f"{'≥ ' if n == last else ''}{size:.2f}") for n, size in levels]
    return legend(GAIN_WORDS, [*worse, ("", "0"), *better])
