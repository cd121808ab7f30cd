"""The report on a fitted model beside its base: what retrieval saves and writes, what a source is worth."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

from retro.comparators.rows import RowResult
from retro.pages.coloured_text import chunk_record, legend_html
from retro.pages.plots import Bar, Line, bar_plot, line_plot, sideways_bars
from retro.pages.report import without_nan
from retro.pages.samples import Pair, samples_table, shown_neighbours
from retro.pages.shell import Made, facts_list, figure, numbers_table, page
from retro.pages.side_by_side import STYLE, Column, side_by_side
from retro.pages.sources import NOWHERE, SourceFiles, sources_html
from retro.scoring.wording import fewer, percent, saves
from retro.wording import counted

HEADINGS = (
    "on held-out beginnings",
    "bits per byte",
    "95 % interval",
    "saved of the base's",
    "tokens a second",
)
NEW_HEADINGS = ("on new text", "bits per byte", "saved of the base's", "chunks")
TIME_HEADINGS = ("stage", "seconds")


@dataclass(frozen=True)
class ReportRow:
    """One way to predict the same tokens."""

    label: str
    colour: str
    all: RowResult
    """Over the base, on all text."""
    new: RowResult
    """On the chunks that share at most an eighth with all that is read for them."""


@dataclass(frozen=True)
class TakenOutWords:
    """What is said of the document that was taken out."""

    name: str
    saved: float
    copied: Mapping[str, int]
    """New tokens of each sample that stand in long runs of what was read of it."""
    num_tokens: int
    """New tokens of a sample."""


@dataclass(frozen=True)
class FittedReport:
    """Everything that is reported."""

    title: str
    base: str
    num_neighbours: int
    rows: Mapping[str, ReportRow]
    """`base`, `off`, `on` and `prompt`."""
    over_prompt: RowResult
    """The fitted model over the same neighbours in the prompt."""
    off_is_base: bool
    num_tokens: int
    """Tokens that each row has scored."""
    documents: Sequence[tuple[str, float]]
    """Names and gains, the largest first."""
    sampled: str
    """The document whose first chunk is continued."""
    columns: Sequence[Column]
    """Off, on, and without the source, if one was taken out."""
    taken_out: TakenOutWords | None
    curves: Mapping[str, tuple[list[int], list[float]]]
    """Validation losses off and on during the fit; empty where nothing was fitted."""
    facts: Sequence[tuple[str, str]]
    seconds: Mapping[str, float]
    made: Made
    files: SourceFiles = NOWHERE


def findings(report: FittedReport) -> list[str]:
    """What was found, in two sentences that say no more than the intervals do."""
    on, prompt = report.rows["on"].all, report.rows["prompt"].all
    same = "every token costs what it costs the bare base, to the bit"
    off = (
        same if report.off_is_base else f"it differs from the bare base: {fewer(report.rows['off'].all.gain)}"
    )
    where = f"the beginnings of {counted(on.num_documents, 'held-out document')}"
    beside = f"{prompt.tokens_per_second / on.tokens_per_second:.2f} of the speed"
    return [
        f"On {where} retrieval {saves(on.gain, report.base)}; without neighbours {off}.",
        f"The same neighbours in the prompt: {fewer(prompt.gain)} than the base at {beside}; "
        f"the fitted model has {fewer(report.over_prompt.gain, 'than that')}.",
    ]


def row_cells(report: FittedReport) -> list[list[str]]:
    """A row for each way: bits per byte with their interval, the gain over the base with its own, speed."""
    cells = []
    for name, row in report.rows.items():
        bits = row.all.bits_per_byte
        gain = "" if name == "base" else percent(row.all.gain)
        interval = f"{bits.low:.4f} – {bits.high:.4f}"
        speed = f"{row.all.tokens_per_second:,.0f}"
        cells.append([row.label, f"{bits.estimate:.4f}", interval, gain, speed])
    return cells


def fitted_page(report: FittedReport) -> str:
    """The page."""
    leads = "".join(f'<p class="lead">{escape(sentence)}</p>' for sentence in findings(report))
    figures = "".join(figure(svg, caption) for svg, caption in _figures(report))
    times = [[name, f"{seconds:,.0f}"] for name, seconds in report.seconds.items()]
    times.append(["in all", f"{sum(report.seconds.values()):,.0f}"])
    body = f"""{leads}
{numbers_table(HEADINGS, row_cells(report), "the base itself")}
<p class="note">{escape(_note(report))}</p>
{_samples(report)}
<h2>Pictures</h2><div class="plots">{figures}</div>
<h2>Where nothing is copied</h2>{_new_text(report)}
{_read(report)}
<h2>What was run</h2>{facts_list(report.facts)}
<h2>Time</h2>{numbers_table(TIME_HEADINGS, times)}"""
    return page(report.title, body, STYLE, wide=True, made=report.made)


def _note(report: FittedReport) -> str:
    same = "equal, token for token, to the bit" if report.off_is_base else "not equal"
    return (
        f"All rows score the same {report.num_tokens:,} tokens with the same neighbours. The bare base and "
        f"the fitted model without retrieval are {same}. Intervals are over documents; speed is that of "
        "scoring, the rows taking turns."
    )


def _samples(report: FittedReport) -> str:
    """The samples side by side, with what is to be said of them."""
    words = [
        f"The first chunk of {report.sampled}, continued by the most probable tokens. It is the document "
        "whose gain is the median of those that gain, so that nobody has chosen it. The prompt is grey."
    ]
    out = report.taken_out
    if out is not None:
        off, on, without = (out.copied[name] for name in ("off", "on", "without"))
        words.append(
            f"Then the source that was worth most, {out.name}, is left out of the search: measured by "
            f"leaving its neighbours out, it had saved {out.saved:,.1f} bits of the text in the middle. Of "
            f"{counted(out.num_tokens, 'new token')}, {on} stand in runs of five or more of what was read "
            f"there, {without} once it is out, {off} without any retrieval. What is new is underlined."
        )
    notes = "".join(f'<p class="note">{escape(text)}</p>' for text in words)
    heading = "With its sources, and without one of them" if out else "Without retrieval, and with it"
    return f"<h2>{heading}</h2>{notes}{legend_html()}{side_by_side(report.columns)}"


def _read(report: FittedReport) -> str:
    """What the samples were written from, chunk by chunk, and the list of sources."""
    parts, shown = [], []
    for column in report.columns[1:]:
        pair = Pair(column.heading, [], list(column.chunks))
        table = samples_table([], pair.on, pair.num_neighbours, column.prefix, report.files)
        parts.append(f"<h2>What was read: {escape(column.heading)}</h2>{table}")
        shown += list(shown_neighbours(pair.on, column.prefix, f"{column.heading}, "))
    return "".join(parts) + sources_html(shown, report.files)


def _new_text(report: FittedReport) -> str:
    on = report.rows["on"].new
    if not on.num_chunks:
        return '<p class="note">Every chunk shares more than an eighth with what is read for it.</p>'
    rows = []
    for name, row in report.rows.items():
        gain = "" if name == "base" else percent(row.new.gain)
        rows.append([row.label, f"{row.new.bits_per_byte.estimate:.4f}", gain, f"{row.new.num_chunks:,}"])
    words = (
        f"{counted(on.num_chunks, 'chunk')} of {report.rows['on'].all.num_chunks:,} share at most 12.5 % of "
        f"their length with anything that is read for them. There retrieval {saves(on.gain)}."
    )
    table = numbers_table(NEW_HEADINGS, rows, "the base itself")
    return f'<p class="note">{escape(words)}</p>{table}'


def _figures(report: FittedReport) -> list[tuple[str, str]]:
    """The plots with their captions."""
    bars = [
        Bar(name, bits.estimate, bits.low, bits.high, row.colour)
        for name, row in report.rows.items()
        for bits in [row.all.bits_per_byte]
    ]
    gains = [Bar(_short(name), 100 * gain, 100 * gain, 100 * gain, "on") for name, gain in report.documents]
    plots = [
        (bar_plot(bars, "bits per byte"), "Bits per byte; bars show 95 % intervals over documents."),
        (sideways_bars(gains, "saved of the base's bits, %"), "What retrieval saves on each document."),
    ]
    if report.curves:
        lines = [
            Line(label, [count / 1e3 for count in tokens], nats, colour)
            for label, colour in (("off", "off"), ("on", "on"))
            for tokens, nats in [report.curves[label]]
        ]
        caption = "Loss on validation sequences, nats a token; the first point is before the first step."
        plots.append((line_plot(lines, "thousand training tokens", "nats a token"), caption))
    return plots


def _short(name: str) -> str:
    return name if len(name) <= 32 else f"{name[:31].rstrip()}…"


def fitted_record(report: FittedReport) -> dict[str, Any]:
    """Everything the page shows, as plain JSON; gains are fractions, and unknown values are null."""
    record = {
        "title": report.title,
        "findings": findings(report),
        "base": report.base,
        "off_is_base": report.off_is_base,
        "tokens": report.num_tokens,
        "rows": {
            name: {"label": row.label, "all": asdict(row.all), "new": asdict(row.new)}
            for name, row in report.rows.items()
        },
        "over_prompt": asdict(report.over_prompt),
        "documents": [{"name": name, "gain": gain} for name, gain in report.documents],
        "sampled": report.sampled,
        "samples": {column.heading: list(map(chunk_record, column.chunks)) for column in report.columns},
        "taken_out": None if report.taken_out is None else asdict(report.taken_out),
        "fit": {name: {"tokens": tokens, "nats": nats} for name, (tokens, nats) in report.curves.items()},
        "facts": dict(report.facts),
        "seconds": dict(report.seconds),
        "made": report.made.record(),
    }
    found: dict[str, Any] = without_nan(record)
    return found
