"""How much of the gain is text that was seen before."""

from retro.pages.plots import line_plot
from retro.reproduce.claims import Claim, above
from retro.reproduce.experiment import NAMES, Findings, band, bounds, fewer, trio
from retro.reproduce.result import Cell, Figure, Table
from retro.reproduce.scales import Scale
from retro.scoring.comparison import compare
from retro.scoring.evaluate import OFF, on
from retro.scoring.intervals import Interval
from retro.scoring.leakage import FilteredScore
from retro.study import Study


def figure(study: Study, scale: Scale) -> Findings:
    """bpb(α) of every model, the histogram of r, and what is left of the gain where little was seen."""
    found = trio(study)
    curves = {
        key: [FilteredScore.read(entry) for entry in evaluation.results["filtered"][mode]]
        for key, evaluation, mode in (
            ("baseline", found.baseline, OFF),
            ("off", found.retro, OFF),
            ("on", found.retro, on(found.k)),
        )
    }
    rows: list[list[Cell]] = [
        [
            f"{entry.alpha:.1%}",
            f"{entry.share_of_bytes:.1%}",
            *(_at(curves[key], entry.alpha) for key in curves),
        ]
        for entry in curves["on"]
        if entry.is_eighth
    ]
    lines = [
        band(
            NAMES[key], [100 * entry.alpha for entry in curve], [entry.bits_per_byte for entry in curve], key
        )
        for key, curve in curves.items()
    ]
    comparison = compare(found.baseline, found.retro, on(found.k))
    new, steeper = comparison.gain_on_new_chunks, comparison.steeper
    claims = [
        Claim("unseen-text", above(new), f"{fewer(new)} than the baseline on chunks with r ≤ 12.5 %"),
        Claim(
            "leakage-slope",
            above(steeper),
            f"from α = 12.5 % to 100 % RETRO[ON] falls {bounds(steeper, 4)} bits per byte further than the baseline",
        ),
    ]
    plot = line_plot(lines, "overlap allowed, α in %", "bpb(α)")
    caption = (
        "bpb(α): only chunks that share at most α of their length with one of their ten nearest neighbours."
    )
    table = Table("bpb(α)", ["α", "share of the text", *NAMES.values()], rows)
    return Findings([table], [Figure("curve", caption, plot)], claims)


def _at(curve: list[FilteredScore], alpha: float) -> Interval | None:
    return next((entry.bits_per_byte for entry in curve if entry.alpha == alpha), None)
