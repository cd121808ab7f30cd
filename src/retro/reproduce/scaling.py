"""Curves over the datastore's size, the number of neighbours and the model's size."""

from dataclasses import dataclass, replace

import torch

from retro.config import ModelConfig
from retro.jobs.retrieval import find_thinned
from retro.pages.plots import line_plot
from retro.reproduce.claims import Claim, above, together
from retro.reproduce.experiment import NAMES, Trio, band, flat, trio
from retro.reproduce.result import Cell, Figure, Findings, Table
from retro.reproduce.scales import Scale
from retro.run import make_model
from retro.scoring.intervals import Interval, bootstrap_ratio, relative_gain
from retro.scoring.wording import fewer, percent
from retro.study import Study

NEAREST = 100
"""Neighbours that are always found, so that scoring another k later needs no new search."""
BEYOND = 10
"""The number of neighbours at evaluation that the claim compares with that of training."""


def datastore_size(study: Study, scale: Scale) -> Findings:
    """The same model and documents with growing parts of the datastore, each contained in the next."""
    found, datastore = trio(study), study.work.datastore()
    with study.narrator.progress("Neighbours in parts of the datastore") as progress:
        parts = find_thinned(study.work, "test", scale.fractions, found.k, progress=progress)
    # Kept under a label for each part, so that a stopped experiment resumes between parts.
    bits = {
        part: study.document_bits("retro", f"part-{part:g}", neighbours, found.k)
        for part, neighbours in parts.items()
    }
    levels = found.per_byte()
    per_byte = {fraction: bootstrap_ratio(value, found.num_bytes) for fraction, value in bits.items()}
    # Nominal sizes: documents are drawn, so a part holds about this many tokens.
    tokens = {fraction: fraction * datastore.snapshot().num_tokens() for fraction in bits}
    rows: list[list[Cell]] = [
        [f"{fraction:.0%}", int(tokens[fraction]), per_byte[fraction]] for fraction in bits
    ]
    # The claim compares the ends of the curve; the points between are only shown.
    first, last = min(bits), max(bits)
    gain = relative_gain(bits[last], bits[first])
    sentence = fewer(gain, f"with all of the datastore than with {first:.0%} of it")
    claim = Claim("datastore-size", above(gain), sentence, gain)
    x = list(tokens.values())
    lines = [
        band("RETRO[ON]", x, list(per_byte.values()), "on"),
        flat("RETRO[OFF]", x, levels["off"], "off"),
        flat("baseline", x, levels["baseline"], "baseline"),
    ]
    plot = line_plot(lines, "tokens in the datastore", "bits per byte", log_x=True)
    figure = Figure("curve", "Bits per byte by the size of the datastore.", plot)
    return Findings([Table("bits per byte", ["part", "tokens", "RETRO[ON]"], rows)], [figure], [claim])


def num_neighbours(study: Study, scale: Scale) -> Findings:
    """The same model with more and more neighbours than in training."""
    found, ks = trio(study), sorted({*scale.neighbours, study.run.training.num_neighbours})
    # One search serves every k: the first k of the nearest are the k nearest.
    found_at_once = max(*ks, NEAREST)
    with study.narrator.progress(f"The {found_at_once} nearest neighbours") as progress:
        neighbours = find_thinned(study.work, "test", (1.0,), found_at_once, progress=progress)[1.0]
    bits = {k: study.document_bits("retro", f"k-{k}", neighbours, k) for k in ks}
    levels = found.per_byte()
    per_byte = {k: bootstrap_ratio(value, found.num_bytes) for k, value in bits.items()}
    # Only for the sentence: the k with the fewest bits is not itself a claim.
    best = min(per_byte, key=lambda k: per_byte[k].estimate)
    # A scale may leave this k out; then there is nothing to claim.
    claims = []
    if BEYOND in bits:
        gain = relative_gain(bits[BEYOND], bits[found.k])
        sentence = f"{fewer(gain, f'with {BEYOND} than with the {found.k} of training')}; fewest with {best}"
        claims = [Claim("more-neighbours", above(gain), sentence, gain)]
    lines = [
        band("RETRO[ON]", ks, list(per_byte.values()), "on"),
        flat("RETRO[OFF]", ks, levels["off"], "off"),
        flat("baseline", ks, levels["baseline"], "baseline"),
    ]
    plot = line_plot(lines, "neighbours k", "bits per byte", xticks=ks, log_x=True)
    figure = Figure("curve", "Bits per byte by the number of neighbours at evaluation.", plot)
    table = Table("bits per byte", ["k", "RETRO[ON]"], [[k, per_byte[k]] for k in ks])
    return Findings([table], [figure], claims)


@dataclass(frozen=True)
class Sized:
    """A baseline and a RETRO of one size."""

    name: str
    parameters: int
    """Of the baseline, without embeddings."""
    levels: dict[str, Interval]
    gain: Interval


def model_size(study: Study, scale: Scale) -> Findings:
    """Baseline and RETRO of several sizes, trained on the same batches."""
    models = [_sized(study, name, config) for name, config in scale.sizes]
    lines = [
        band(label, [m.parameters for m in models], [m.levels[key] for m in models], key)
        for key, label in NAMES.items()
    ]
    plot = line_plot(lines, "parameters of the baseline, without embeddings", "bits per byte", log_x=True)
    rows: list[list[Cell]] = [[m.name, m.parameters, *m.levels.values(), percent(m.gain)] for m in models]
    headings = ["model", "parameters of the baseline", *NAMES.values(), "gain over the baseline"]
    table = Table("bits per byte", headings, rows)
    found = "gain over the baseline: " + "; ".join(f"{m.name} {percent(m.gain)}" for m in models)
    claim = Claim("model-size", together(*(above(m.gain) for m in models)), found)
    return Findings([table], [Figure("curve", "Bits per byte by the size of the model.", plot)], [claim])


def _sized(study: Study, name: str, config: ModelConfig) -> Sized:
    # The study's own size reuses its runs, which other experiments share.
    own = config == study.run.model
    k = study.run.training.num_neighbours
    names = ("baseline", "retro") if own else (f"baseline-{name}", f"retro-{name}")
    study.train(names[0], config.baseline())
    study.train(names[1], config)
    scoring = study.run.evaluation if own else replace(study.run.evaluation, num_neighbours=(k,))
    found = Trio(study.evaluate(names[0], scoring), study.evaluate(names[1], scoring), k)
    bits = found.bits()
    with torch.device("meta"):  # counts the parameters without allocating them
        parameters = make_model(config.baseline()).num_parameters()
    return Sized(name, parameters, found.per_byte(), relative_gain(bits["on"], bits["baseline"]))
