"""Bits per byte of baseline, RETRO[OFF], RETRO[ON] and RETROfit: overall, by source and by leakage."""

import numpy as np

from retro.pages.plots import Bar, Line, bar_plot, line_plot
from retro.reproduce.claims import Claim, above, exactly, together, within
from retro.reproduce.experiment import NAMES, Trio, band, trio
from retro.reproduce.result import Cell, Figure, Findings, Table
from retro.reproduce.scales import Scale
from retro.scoring.comparison import compare
from retro.scoring.evaluate import OFF, on
from retro.scoring.intervals import Interval, bootstrap, bootstrap_ratio, relative_gain
from retro.scoring.leakage import FilteredScore
from retro.scoring.wording import bounds, fewer, percent
from retro.study import Study
from retro.wording import counted

SAME = 0.01
"""Relative difference up to which two models count as alike."""
CLOSE = 0.8
"""Part of the gain from scratch at which a RETROfit counts as close."""


def retrieval(study: Study, scale: Scale) -> Findings:
    """Retrieval off and on."""
    found = trio(study)
    bits, per_byte = found.bits(), found.per_byte()
    gains = {name: relative_gain(bits[name], bits["baseline"]) for name in ("off", "on")}
    over_off = relative_gain(bits["on"], bits["off"])
    rows: list[list[Cell]] = [
        [NAMES[name], per_byte[name], percent(gains[name]) if name in gains else ""] for name in bits
    ]
    claims = [
        Claim("on-below-off", above(over_off), fewer(over_off), over_off),
        Claim(
            "off-like-baseline",
            within(gains["off"], SAME),
            fewer(gains["off"], "than the baseline"),
            gains["off"],
        ),
    ]
    bars = [Bar(NAMES[name], value.estimate, value.low, value.high, name) for name, value in per_byte.items()]
    caption = "Bits per byte on the test documents, 95 % intervals over documents."
    figure = Figure("bars", caption, bar_plot(bars, "bits per byte"))
    table = Table("bits per byte", ["model", "bits per byte", "gain over the baseline"], rows)
    return Findings([table], [figure], claims)


def sources(study: Study, scale: Scale) -> Findings:
    """The gain on each source, beside its mean overlap with the datastore."""
    found = trio(study)
    names = study.work.store("test").documents.column("source")
    bits, overlap = found.bits(), _document_overlaps(study, found)
    rows: list[list[Cell]] = []
    gains: dict[str, Interval] = {}
    for source in sorted(set(names.tolist())):
        own = names == source
        gains[source] = relative_gain(bits["on"][own], bits["baseline"][own])
        levels = [bootstrap_ratio(bits[name][own], found.num_bytes[own]) for name in bits]
        rows.append([source, int(own.sum()), *levels, percent(gains[source]), float(overlap[own].mean())])
    # Largest gain first, in the table and in the figure.
    rows.sort(key=lambda row: -gains[str(row[0])].estimate)
    bars = []
    for row in rows:
        gain = gains[str(row[0])]
        bars.append(Bar(str(row[0]), 100 * gain.estimate, 100 * gain.low, 100 * gain.high, "on"))
    headings = ["source", "documents", *NAMES.values(), "gain over the baseline", "mean overlap r"]
    caption = "Bits that RETRO[ON] saves of the baseline's, by source."
    figure = Figure("gains", caption, bar_plot(bars, "% saved", "{:.1f}"))
    return Findings([Table("by source", headings, rows)], [figure], _order_claim(names, bits, overlap))


def _document_overlaps(study: Study, found: Trio) -> np.ndarray:
    """The mean r of each test document's chunks."""
    table = study.work.neighbours("test").table
    # r is measured per chunk, so it is summed by document and divided by the number of chunks.
    sums = np.bincount(
        table.documents, weights=found.retro.arrays["overlaps"], minlength=len(found.num_bytes)
    )
    counts: np.ndarray = np.bincount(table.documents, minlength=len(found.num_bytes))
    return sums / np.maximum(counts, 1)


def _order_claim(names: np.ndarray, bits: dict[str, np.ndarray], overlap: np.ndarray) -> list[Claim]:
    """Rank correlation of gain and overlap over the sources; no claim with fewer than four sources."""
    kinds, own = np.unique(names, return_inverse=True)
    if len(kinds) < 4:
        return []
    saved_bits = bits["baseline"] - bits["on"]
    values = np.stack([saved_bits, bits["baseline"], overlap, np.ones(len(names))], axis=1)
    # (document, source, value): a document's values stand at its own source and are zero
    # elsewhere, so that summing any draw of documents gives the sums of every source at once.
    columns = np.zeros((len(names), len(kinds), values.shape[1]))
    columns[np.arange(len(names)), own] = values

    def correlation(sums: np.ndarray) -> np.ndarray:
        # Bootstrap works on flat columns; here they get their two axes back.
        saved, base, shared, count = np.moveaxis(sums.reshape(len(sums), *columns.shape[1:]), -1, 0)
        return _rank_correlation(saved / base, shared / count)[:, None]

    (interval,) = bootstrap(columns.reshape(len(names), -1), correlation)
    sentence = (
        f"rank correlation of gain and overlap over {counted(len(kinds), 'source')}: {bounds(interval, 2)}"
    )
    return [Claim("sources", above(interval), sentence, interval)]


def _rank_correlation(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Spearman's rank correlation along the last axis, for values that are all different."""
    # `argsort` of `argsort` gives the rank of each value; the correlation of the ranks is
    # Spearman's.
    ranks = [np.argsort(np.argsort(values, axis=-1), axis=-1).astype(float) for values in (first, second)]
    x, y = (values - values.mean(axis=-1, keepdims=True) for values in ranks)
    norms = np.sqrt((x**2).sum(axis=-1) * (y**2).sum(axis=-1))
    correlation: np.ndarray = (x * y).sum(axis=-1) / norms
    return correlation


def retrofit(study: Study, scale: Scale) -> Findings:
    """A frozen baseline with retrieval added, beside RETRO from scratch."""
    found = trio(study)
    study.fit("retrofit", scale.fit_steps)
    fitted = study.evaluate("retrofit")
    bits = {**found.bits(), "fit": fitted.document_bits(on(found.k))}
    saved, from_scratch = bits["baseline"] - bits["fit"], bits["baseline"] - bits["on"]
    # A ratio of sums over the same draws of documents, not a mean of the documents' ratios.
    share = bootstrap_ratio(saved, from_scratch)
    # Equal to the bit, not nearly: the frozen weights are the baseline's.
    same = bool(np.array_equal(fitted.document_bits(OFF), bits["baseline"]))
    labels = {**NAMES, "fit": "RETROfit[ON]"}
    rows: list[list[Cell]] = [
        [
            labels[name],
            bootstrap_ratio(value, found.num_bytes),
            "" if name == "baseline" else percent(relative_gain(value, bits["baseline"])),
        ]
        for name, value in bits.items()
    ]
    rows.append(
        [
            "RETROfit[OFF]",
            fitted.bits_per_byte(OFF),
            "the baseline's, to the bit" if same else "not the baseline's",
        ]
    )
    sentence = (
        f"{percent(share)} of the gain from scratch after {scale.fit_steps} of "
        f"{counted(study.run.training.num_steps, 'step')}; "
        f"with retrieval off {'equal to the bit' if same else 'different'}"
    )
    claim = Claim("retrofit", together(above(share, CLOSE), exactly(same)), sentence, share)
    lines = [
        _curve(study, "baseline", "valid_off", "baseline", "baseline"),
        _curve(study, "retro", "valid_on", "RETRO[ON]", "on"),
        _curve(study, "retro", "valid_off", "RETRO[OFF]", "off"),
        _curve(study, "retrofit", "valid_on", "RETROfit[ON]", "fit"),
    ]
    plot = line_plot(lines, "million training tokens", "nats a token")
    figure = Figure("curves", "Validation loss during training.", plot)
    table = Table("bits per byte", ["model", "bits per byte", "gain over the baseline"], rows)
    return Findings([table], [figure], [claim])


def _curve(study: Study, name: str, metric: str, label: str, colour: str) -> Line:
    tokens, values = study.curve(name, metric)
    return Line(label, [count / 1e6 for count in tokens], values, colour)


def leakage(study: Study, scale: Scale) -> Findings:
    """bpb(α) of every model, and what is left of the gain where little was seen before."""
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
        Claim("unseen-text", above(new), fewer(new, "than the baseline on chunks with r ≤ 12.5 %"), new),
        Claim(
            "leakage-slope",
            above(steeper),
            f"from α = 12.5 % to 100 % RETRO[ON] falls {bounds(steeper, 4)} bits per byte further "
            "than the baseline",
            steeper,
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
