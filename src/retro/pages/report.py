"""One self-contained HTML page about a baseline and a RETRO."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from retro.pages.plots import Bar, Line, bar_plot, grouped_bars, line_plot
from retro.scoring.comparison import Comparison
from retro.scoring.evaluate import OFF, Evaluation
from retro.scoring.intervals import Interval
from retro.scoring.leakage import NEW

STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.55 system-ui, sans-serif; max-width: 1180px; margin: 2em auto; padding: 0 1.2em; color: #1d2228; background: #fff; }
h1 { font-size: 1.7em; margin-bottom: .2em; } h2 { margin-top: 2em; font-size: 1.2em; }
.lead { font-size: 1.15em; max-width: 52em; } .note { color: #555; max-width: 60em; font-size: .93em; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(440px, 1fr)); gap: 1.5em; }
figure { margin: 0; } figure svg { width: 100%; height: auto; } figcaption { font-size: .9em; color: #444; }
table.numbers { border-collapse: collapse; } table.numbers td, table.numbers th { padding: .3em .9em; text-align: right; border-bottom: 1px solid #e3e3e3; }
table.numbers td:first-child, table.numbers th:first-child { text-align: left; }
code, pre { font: 13px/1.5 ui-monospace, monospace; background: #f4f5f7; } pre { padding: .8em; overflow-x: auto; } code { padding: .1em .3em; }
"""


@dataclass(frozen=True)
class Curves:
    """What the metrics of a run say: tokens seen and losses in nats."""

    baseline: tuple[list[int], list[float]]
    off: tuple[list[int], list[float]]
    on: tuple[list[int], list[float]]


def percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def with_interval(interval: Interval) -> str:
    return f"{percent(interval.estimate)} ({percent(interval.low)} to {percent(interval.high)})"


def _saves(gain: Interval) -> str:
    """A gain in words that fit its sign."""
    if gain.low <= 0 <= gain.high:
        return f"makes no clear difference ({percent(gain.low)} to {percent(gain.high)} saved)"
    if gain.estimate > 0:
        return f"saves {with_interval(gain)}"
    return f"costs {with_interval(Interval(-gain.estimate, -gain.high, -gain.low))} more"


def numbers_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<table class="numbers"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def summary(comparison: Comparison) -> str:
    """The result in three sentences."""
    new, copied = comparison.buckets[0], [bucket for bucket in comparison.buckets if bucket.low >= 0.25]
    on_new = f"On the {percent(new.share_of_bytes)} that shares at most an eighth it {_saves(comparison.gain_on_new_chunks)}."
    if math.isnan(comparison.gain_on_new_chunks.estimate):
        on_new = "No chunk shares less than an eighth, so that nothing can be told of new text."
    return (
        f"On held-out documents retrieval saves {with_interval(comparison.gain_over_baseline)} of the baseline's bits. "
        f"{percent(sum(b.share_of_gain for b in copied))} of the saving comes from the {percent(sum(b.share_of_bytes for b in copied))} of the "
        f"text that shares a run of more than a quarter of a chunk with a neighbour. {on_new}"
    )


RESULT_HEADINGS = ("model", "bits per byte", "95 % interval", "perplexity per token", "per word")


def result_rows(baseline: Evaluation, retro: Evaluation) -> list[list[str]]:
    """Model, mode, bits per byte with its interval, perplexity per token and per word."""
    entries = [("baseline", baseline, OFF)] + [("RETRO", retro, mode) for mode in retro.modes]
    rows = []
    for name, evaluation, mode in entries:
        found = evaluation.metrics(mode)
        value = found.bits_per_byte
        label = (
            name
            if name == "baseline"
            else ("RETRO[OFF]" if mode == OFF else f"RETRO[ON], k = {mode.removeprefix('on-')}")
        )
        perplexities = (found.perplexity_per_token, found.perplexity_per_word)
        rows.append(
            [
                label,
                f"{value.estimate:.4f}",
                f"{value.low:.4f} – {value.high:.4f}",
                *(f"{p.estimate:.2f}" for p in perplexities),
            ]
        )
    return rows


def render(
    title: str,
    baseline: Evaluation,
    retro: Evaluation,
    comparison: Comparison,
    curves: Curves,
    facts: Sequence[tuple[str, str]],
    sample_html: str,
    sample_style: str,
    commands: str,
) -> str:
    """The page. `facts` are pairs of a name and a value; `sample_html` is put in as it is."""
    figures = [
        (_training(curves), "Loss on validation sequences during training, nats a token."),
        (
            _modes(baseline, retro, comparison),
            "Bits per byte on the test documents; bars show 95 % intervals over documents. Lower is better.",
        ),
        (
            _by_k(baseline, retro),
            "Bits per byte by the number of neighbours at evaluation; training used two.",
        ),
        (
            _filtered(baseline, retro, comparison.on_mode),
            "bpb(α): only chunks that share at most α of their length with a neighbour, as in the paper.",
        ),
        (
            _by_bucket(comparison),
            "Bits per byte by how much of a chunk stands in one of its ten nearest neighbours.",
        ),
    ]
    plots = "".join(
        f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>" for svg, caption in figures
    )
    buckets = numbers_table(
        [
            "overlap with the datastore",
            "share of text",
            "baseline",
            "RETRO[OFF]",
            "RETRO[ON]",
            "share of the saving",
        ],
        [
            [
                b.label,
                percent(b.share_of_bytes),
                f"{b.baseline:.3f}",
                f"{b.off:.3f}",
                f"{b.on:.3f}",
                percent(b.share_of_gain),
            ]
            for b in comparison.buckets
        ],
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(title)}</title>
<style>{STYLE}{sample_style}</style></head><body>
<h1>{escape(title)}</h1>
<p class="lead">{escape(summary(comparison))}</p>
{numbers_table(RESULT_HEADINGS, result_rows(baseline, retro))}
<p class="note">RETRO[ON] against RETRO[OFF], the same weights without neighbours: {with_interval(comparison.gain_over_off)} fewer bits.
Test documents were held out by document; training documents with a 13-gram Jaccard similarity of 0.8 or more to any of them were removed from
the training set and the datastore alike. Intervals are over documents.</p>
<h2>Pictures</h2><div class="plots">{plots}</div>
<h2>Where the gain comes from</h2>{buckets}
<h2>The same prompt with retrieval off and on</h2>{sample_html}
<h2>What was run</h2>{numbers_table(["", ""], [list(fact) for fact in facts])}
<pre>{escape(commands)}</pre>
</body></html>
"""


def _training(curves: Curves) -> str:
    lines = [
        Line("baseline", [t / 1e6 for t in curves.baseline[0]], curves.baseline[1], "baseline"),
        Line("RETRO[OFF]", [t / 1e6 for t in curves.off[0]], curves.off[1], "off"),
        Line("RETRO[ON]", [t / 1e6 for t in curves.on[0]], curves.on[1], "on"),
    ]
    return line_plot(lines, "million training tokens", "nats a token")


def _modes(baseline: Evaluation, retro: Evaluation, comparison: Comparison) -> str:
    entries = [
        ("baseline", baseline, OFF, "baseline"),
        ("RETRO[OFF]", retro, OFF, "off"),
        ("RETRO[ON]", retro, comparison.on_mode, "on"),
    ]
    values = [
        (label, evaluation.metrics(mode).bits_per_byte, colour) for label, evaluation, mode, colour in entries
    ]
    return bar_plot(
        [Bar(label, v.estimate, v.low, v.high, colour) for label, v, colour in values], "bits per byte"
    )


def _by_k(baseline: Evaluation, retro: Evaluation) -> str:
    ks = [int(mode.removeprefix("on-")) for mode in retro.modes if mode != OFF]
    lines = [
        Line("baseline", ks, [baseline.bits_per_byte(OFF)] * len(ks), "baseline", "--"),
        Line("RETRO[OFF]", ks, [retro.bits_per_byte(OFF)] * len(ks), "off", "--"),
        Line("RETRO[ON]", ks, [retro.bits_per_byte(f"on-{k}") for k in ks], "on"),
    ]
    return line_plot(lines, "neighbours k", "bits per byte", xticks=ks, log_x=True)


def _filtered(baseline: Evaluation, retro: Evaluation, on_mode: str) -> str:
    entries = [
        ("baseline", baseline, OFF, "baseline"),
        ("RETRO[OFF]", retro, OFF, "off"),
        ("RETRO[ON]", retro, on_mode, "on"),
    ]
    lines = []
    for label, evaluation, mode, colour in entries:
        points = [point for point in evaluation.filtered(mode) if point.alpha >= NEW]
        lines.append(
            Line(
                label,
                [100 * point.alpha for point in points],
                [point.bits_per_byte.estimate for point in points],
                colour,
            )
        )
    return line_plot(lines, "overlap allowed, α in %", "bpb(α)")


def _by_bucket(comparison: Comparison) -> str:
    buckets = comparison.buckets
    series = [
        Line("baseline", [], [b.baseline for b in buckets], "baseline"),
        Line("RETRO[OFF]", [], [b.off for b in buckets], "off"),
        Line("RETRO[ON]", [], [b.on for b in buckets], "on"),
    ]
    return grouped_bars(
        [b.label for b in buckets], series, "overlap of the chunk with its neighbours", "bits per byte"
    )
