"""The report on a baseline and a RETRO on the same documents, as a page and as plain JSON."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

from retro.pages.coloured_text import chunk_record
from retro.pages.plots import Bar, Line, bar_plot, grouped_bars, line_plot
from retro.pages.samples import Pair, samples_table
from retro.pages.shell import figure, numbers_table, page
from retro.scoring.comparison import Comparison
from retro.scoring.evaluate import OFF, Evaluation
from retro.scoring.intervals import Interval
from retro.scoring.leakage import NEW, FilteredScore

RESULT_HEADINGS = ("model", "bits per byte", "95 % interval", "perplexity per token", "per word")
BUCKET_HEADINGS = (
    "overlap with the datastore",
    "share of text",
    "baseline",
    "RETRO[OFF]",
    "RETRO[ON]",
    "share of the saving",
)
HELD_OUT = """\
Test documents were held out by document; training documents with a 13-gram Jaccard similarity of 0.8 or more
to any of them were removed from the training set and the datastore alike. Intervals are over documents."""


@dataclass(frozen=True)
class Curves:
    """Validation losses during training: tokens seen, and nats a token."""

    baseline: tuple[list[int], list[float]]
    off: tuple[list[int], list[float]]
    on: tuple[list[int], list[float]]


@dataclass(frozen=True)
class Report:
    """Everything that is reported."""

    title: str
    baseline: Evaluation
    retro: Evaluation
    comparison: Comparison
    curves: Curves
    sample: Pair
    """One prompt continued with retrieval off and on."""
    facts: Sequence[tuple[str, str]]
    """What was run: pairs of a name and a value."""
    commands: str

    def modes(self) -> list[tuple[str, Evaluation, str, str]]:
        """The three models compared: name, evaluation, its mode, and colour key."""
        return [
            ("baseline", self.baseline, OFF, "baseline"),
            ("RETRO[OFF]", self.retro, OFF, "off"),
            ("RETRO[ON]", self.retro, self.comparison.on_mode, "on"),
        ]


def percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def with_interval(interval: Interval) -> str:
    return f"{percent(interval.estimate)} ({percent(interval.low)} to {percent(interval.high)})"


def _saves(gain: Interval) -> str:
    """A gain in words that suit its sign."""
    # An interval that contains zero supports neither a gain nor a loss.
    if gain.low <= 0 <= gain.high:
        return f"makes no clear difference ({percent(gain.low)} to {percent(gain.high)} saved)"
    if gain.estimate > 0:
        return f"saves {with_interval(gain)}"
    # With the sign turned, the bounds change places.
    return f"costs {with_interval(Interval(-gain.estimate, -gain.high, -gain.low))} more"


def summary(comparison: Comparison) -> str:
    """The result in three sentences."""
    new = comparison.buckets[0]
    # By the bucket's lower end: every chunk in it shares more than a quarter.
    copied = [bucket for bucket in comparison.buckets if bucket.low >= 0.25]
    saving, text = (sum(b.share_of_gain for b in copied), sum(b.share_of_bytes for b in copied))
    on_new = (
        f"On the {percent(new.share_of_bytes)} that shares at most an eighth it "
        f"{_saves(comparison.gain_on_new_chunks)}."
    )
    if math.isnan(comparison.gain_on_new_chunks.estimate):
        on_new = "No chunk shares less than an eighth, so that nothing can be told about new text."
    return (
        f"On held-out documents retrieval saves {with_interval(comparison.gain_over_baseline)} of the "
        f"baseline's bits. {percent(saving)} of the saving comes from the {percent(text)} of the text that "
        f"shares a run of more than a quarter of a chunk with a neighbour. {on_new}"
    )


def result_rows(baseline: Evaluation, retro: Evaluation) -> list[list[str]]:
    """Model, bits per byte with its interval, perplexity per token and per word."""
    # The baseline has a single mode; a RETRO has one for each k besides off.
    entries = [("baseline", baseline, OFF)] + [(_name(mode), retro, mode) for mode in retro.modes]
    rows = []
    for name, evaluation, mode in entries:
        found = evaluation.metrics(mode)
        bits = found.bits_per_byte
        row = [name, f"{bits.estimate:.4f}", f"{bits.low:.4f} – {bits.high:.4f}"]
        row.append(f"{found.perplexity_per_token.estimate:.2f}")
        row.append(f"{found.perplexity_per_word.estimate:.2f}")
        rows.append(row)
    return rows


def _name(mode: str) -> str:
    """The name of a RETRO in a mode of its evaluation."""
    return "RETRO[OFF]" if mode == OFF else f"RETRO[ON], k = {mode.removeprefix('on-')}"


def report_page(report: Report) -> str:
    """The page."""
    comparison = report.comparison
    figures = "".join(figure(svg, caption) for svg, caption in _figures(report))
    sample = samples_table(report.sample.off, report.sample.on, report.sample.num_neighbours)
    body = f"""<p class="lead">{escape(summary(comparison))}</p>
{numbers_table(RESULT_HEADINGS, result_rows(report.baseline, report.retro))}
<p class="note">RETRO[ON] against RETRO[OFF], the same weights without neighbours:
{with_interval(comparison.gain_over_off)} fewer bits. {HELD_OUT}</p>
<h2>Pictures</h2><div class="plots">{figures}</div>
<h2>Where the gain comes from</h2>{numbers_table(BUCKET_HEADINGS, _bucket_rows(comparison))}
<h2>{escape(report.sample.heading)}</h2>{sample}
<h2>What was run</h2>{numbers_table(["", ""], report.facts)}
<pre>{escape(report.commands)}</pre>"""
    return page(report.title, body)


def report_record(report: Report) -> dict[str, Any]:
    """Everything the page shows, as plain JSON; gains are fractions, and unknown
    values are null."""
    comparison, curves = asdict(report.comparison), report.curves
    # `asdict` takes fields only, and the label is a property.
    for entry, bucket in zip(comparison["buckets"], report.comparison.buckets, strict=True):
        entry["label"] = bucket.label
    runs = {"baseline": report.baseline, "retro": report.retro}
    training = {"baseline": curves.baseline, "retro_off": curves.off, "retro_on": curves.on}
    record = {
        "title": report.title,
        "summary": summary(report.comparison),
        "results": {
            name: {mode: asdict(run.metrics(mode)) for mode in run.modes} for name, run in runs.items()
        },
        "comparison": comparison,
        "training": {name: {"tokens": tokens, "nats": nats} for name, (tokens, nats) in training.items()},
        "filtered": {
            name: [asdict(point) for point in _filtered_points(evaluation, mode)]
            for name, evaluation, mode, _ in report.modes()
        },
        "sample": {
            "off": [chunk_record(chunk) for chunk in report.sample.off],
            "on": [chunk_record(chunk) for chunk in report.sample.on],
        },
        "facts": dict(report.facts),
        "commands": report.commands,
    }
    found: dict[str, Any] = _without_nan(record)
    return found


def _without_nan(value: Any) -> Any:
    """The same value with None for NaN and infinities, which JSON does not have."""
    if isinstance(value, dict):
        return {name: _without_nan(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _bucket_rows(comparison: Comparison) -> list[list[str]]:
    rows = []
    for bucket in comparison.buckets:
        bits = [f"{value:.3f}" for value in (bucket.baseline, bucket.off, bucket.on)]
        rows.append(
            [bucket.label, percent(bucket.share_of_bytes), *bits, percent(bucket.share_of_gain)],
        )
    return rows


def _figures(report: Report) -> list[tuple[str, str]]:
    """The plots with their captions."""
    return [
        (_training(report.curves), "Loss on validation sequences during training, nats a token."),
        (
            _by_mode(report),
            "Bits per byte on the test documents; bars show 95 % intervals over documents. Lower is better.",
        ),
        (
            _by_k(report.baseline, report.retro),
            "Bits per byte by the number of neighbours at evaluation; training used two.",
        ),
        (
            _by_alpha(report),
            "bpb(α): only chunks that share at most α of their length with a neighbour, as in the paper.",
        ),
        (
            _by_bucket(report.comparison),
            "Bits per byte by how much of a chunk stands in one of its ten nearest neighbours.",
        ),
    ]


def _training(curves: Curves) -> str:
    entries = (
        ("baseline", curves.baseline, "baseline"),
        ("RETRO[OFF]", curves.off, "off"),
        ("RETRO[ON]", curves.on, "on"),
    )
    lines = [
        Line(label, [count / 1e6 for count in tokens], nats, colour)
        for label, (tokens, nats), colour in entries
    ]
    return line_plot(lines, "million training tokens", "nats a token")


def _by_mode(report: Report) -> str:
    bars = []
    for label, evaluation, mode, colour in report.modes():
        bits = evaluation.metrics(mode).bits_per_byte
        bars.append(Bar(label, bits.estimate, bits.low, bits.high, colour))
    return bar_plot(bars, "bits per byte")


def _by_k(baseline: Evaluation, retro: Evaluation) -> str:
    # What does not depend on k is a level line.
    ks = [int(mode.removeprefix("on-")) for mode in retro.modes if mode != OFF]
    lines = [
        Line("baseline", ks, [baseline.bits_per_byte(OFF)] * len(ks), "baseline", "--"),
        Line("RETRO[OFF]", ks, [retro.bits_per_byte(OFF)] * len(ks), "off", "--"),
        Line("RETRO[ON]", ks, [retro.bits_per_byte(f"on-{k}") for k in ks], "on"),
    ]
    return line_plot(lines, "neighbours k", "bits per byte", xticks=ks, log_x=True)


def _by_alpha(report: Report) -> str:
    lines = []
    for label, evaluation, mode, colour in report.modes():
        # The same points as in the JSON twin.
        points = _filtered_points(evaluation, mode)
        alphas = [100 * point.alpha for point in points]
        lines.append(Line(label, alphas, [point.bits_per_byte.estimate for point in points], colour))
    return line_plot(lines, "overlap allowed, α in %", "bpb(α)")


def _filtered_points(evaluation: Evaluation, mode: str) -> list[FilteredScore]:
    """bpb(α) for α from an eighth on; below that, too few chunks are left to say anything."""
    return [point for point in evaluation.filtered(mode) if point.alpha >= NEW]


def _by_bucket(comparison: Comparison) -> str:
    buckets = comparison.buckets
    series = [
        Line("baseline", [], [bucket.baseline for bucket in buckets], "baseline"),
        Line("RETRO[OFF]", [], [bucket.off for bucket in buckets], "off"),
        Line("RETRO[ON]", [], [bucket.on for bucket in buckets], "on"),
    ]
    labels = [bucket.label for bucket in buckets]
    return grouped_bars(labels, series, "overlap of the chunk with its neighbours", "bits per byte")
