"""The report on a baseline and a RETRO on the same documents, as a page and as plain JSON."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape
from itertools import pairwise
from typing import Any

from retro.pages.coloured_text import chunk_record, legend_html
from retro.pages.plots import Bar, Line, bar_plot, grouped_bars, line_plot
from retro.pages.samples import Pair, samples_table, shown_neighbours
from retro.pages.shell import Made, facts_list, figure, numbers_table, page
from retro.pages.sources import NOWHERE, SourceFiles, sources_html
from retro.scoring.comparison import BUCKETS, Comparison, bucket_label
from retro.scoring.evaluate import OFF, Evaluation
from retro.scoring.leakage import NEW, FilteredScore
from retro.scoring.wording import fewer, part, saves

RESULT_HEADINGS = ("model", "bits per byte", "95 % interval", "perplexity per token", "per word")
BUCKET_HEADINGS = (
    "overlap with the datastore",
    "share of text",
    "baseline",
    "RETRO[OFF]",
    "RETRO[ON]",
    "share of the saving",
)
NO_TEXT = "no chunk of the test documents falls into this range"
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
    files: SourceFiles = NOWHERE
    """Where the neighbours' documents are on this machine."""
    verdict: str = ""
    """Whether retrieval helps, in plain words, and if not why; empty where nobody judged."""
    choices: Sequence[tuple[str, str]] = ()
    """What was chosen for the text and why: pairs of a name and a sentence."""

    @property
    def made(self) -> Made:
        """What the page says below its title; the corpus is the fact of that name."""
        return Made(self.commands, dict(self.facts).get("corpus", self.title))

    def modes(self) -> list[tuple[str, Evaluation, str, str]]:
        """The three models compared: name, evaluation, its mode, and colour key."""
        return [
            ("baseline", self.baseline, OFF, "baseline"),
            ("RETRO[OFF]", self.retro, OFF, "off"),
            ("RETRO[ON]", self.retro, self.comparison.on_mode, "on"),
        ]


def summary(comparison: Comparison) -> str:
    """The result in at most three sentences."""
    gain = comparison.gain_over_baseline
    sentences = [f"On held-out documents retrieval {saves(gain, 'the baseline')}."]
    if gain.estimate > 0:
        # By the bucket's lower end: every chunk in it shares more than a quarter.
        copied = [bucket for bucket in comparison.buckets if bucket.low >= 0.25]
        saving, text = (sum(b.share_of_gain for b in copied), sum(b.share_of_bytes for b in copied))
        sentences.append(
            f"{part(saving)} of the saving comes from the {part(text)} of the text that shares a run of more "
            "than a quarter of a chunk with a neighbour."
        )
    new = comparison.gain_on_new_chunks
    if math.isnan(new.estimate):
        sentences.append("No chunk shares less than an eighth, so that nothing can be told about new text.")
    else:
        share = part(comparison.buckets[0].share_of_bytes)
        sentences.append(f"On the {share} that shares at most an eighth it {saves(new)}.")
    return " ".join(sentences)


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
    sample = samples_table(
        report.sample.off, report.sample.on, report.sample.num_neighbours, files=report.files
    )
    # The corpus stands below the title already.
    facts = [fact for fact in report.facts if fact[0] != "corpus"]
    body = f"""{_lead(report)}
{numbers_table(RESULT_HEADINGS, result_rows(report.baseline, report.retro))}
<p class="note">RETRO[ON] against RETRO[OFF], the same weights without neighbours:
{fewer(comparison.gain_over_off)}. {HELD_OUT}</p>
<h2>Pictures</h2><div class="plots">{figures}</div>
<h2>Where the gain comes from</h2>
{numbers_table(BUCKET_HEADINGS, _bucket_rows(comparison), NO_TEXT)}
<h2>{escape(report.sample.heading)}</h2>{legend_html()}{sample}
{sources_html(shown_neighbours(report.sample.on), report.files)}
{_choices(report.choices)}<h2>What was run</h2>{facts_list(facts)}"""
    return page(report.title, body, made=report.made)


def _lead(report: Report) -> str:
    """The result in words: the verdict, if there is one, and where a saving comes from."""
    saves = report.comparison.gain_over_baseline.low > 0
    # What a saving is made of says nothing where there is none.
    texts = [report.verdict] if report.verdict and not saves else [report.verdict, summary(report.comparison)]
    return "\n".join(f'<p class="lead">{escape(text)}</p>' for text in texts if text)


def _choices(choices: Sequence[tuple[str, str]]) -> str:
    """What was chosen and why, where something was."""
    return f"<h2>What was chosen, and why</h2>{facts_list(choices)}\n" if choices else ""


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
        "verdict": report.verdict,
        "choices": dict(report.choices),
        "commands": report.commands,
        "made": report.made.record(),
    }
    found: dict[str, Any] = without_nan(record)
    return found


def without_nan(value: Any) -> Any:
    """The same value with None for NaN and infinities, which JSON does not have."""
    if isinstance(value, dict):
        return {name: without_nan(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _bucket_rows(comparison: Comparison) -> list[list[str]]:
    """A row for every range of overlap; one that no chunk falls into has empty cells."""
    found = {bucket.high: bucket for bucket in comparison.buckets}
    rows = []
    for low, high in pairwise(BUCKETS):
        bucket = found.get(high)
        if bucket is None:
            rows.append([bucket_label(low, high), part(0.0), "", "", "", ""])
            continue
        bits = [f"{value:.3f}" for value in (bucket.baseline, bucket.off, bucket.on)]
        rows.append([bucket.label, part(bucket.share_of_bytes), *bits, _share(bucket.share_of_gain)])
    return rows


def _share(value: float) -> str:
    """A part of the saving, which is not known if nothing was saved or lost in all."""
    return part(value) if math.isfinite(value) else ""


def _figures(report: Report) -> list[tuple[str, str]]:
    """The plots with their captions."""
    plots = [
        (_training(report.curves), "Loss on validation sequences during training, nats a token."),
        (
            _by_mode(report),
            "Bits per byte on the test documents; bars show 95 % intervals over documents. Lower is better.",
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
    # One number of neighbours would be three dots that the bars above them show already.
    if len(report.retro.modes) > 2:
        used = report.comparison.on_mode.removeprefix("on-")
        caption = f"Bits per byte by the number of neighbours at evaluation; training used {used}."
        plots.insert(2, (_by_k(report.baseline, report.retro), caption))
    return plots


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
