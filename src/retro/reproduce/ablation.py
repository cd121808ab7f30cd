"""Every row of the paper's ablation table. All variants are trained on the same batches."""

from dataclasses import replace

import numpy as np

from retro.config import RunConfig
from retro.pages.plots import Bar, sideways_bars
from retro.reproduce.claims import Claim, above, together
from retro.reproduce.result import Cell, Figure, Findings, Table
from retro.reproduce.scales import Scale
from retro.reproduce.variants import ABLATIONS, CLAIMED, ablation
from retro.scoring.evaluate import OFF, Evaluation, on
from retro.scoring.intervals import Interval, bootstrap_ratio, relative_gain
from retro.scoring.wording import fewer, percent
from retro.study import Study

DEFAULT = "retro"
"""The variant that the others are compared with."""
PAPER = {
    "retro": 0.822,
    "no-query-conditioning": 0.829,
    "no-cross-attention-positions": 0.826,
    "shared-embeddings": 0.823,
    "deep-encoder": 0.821,
    "neighbours-only": 0.950,
    "continuations-only": 0.895,
    "no-retrieval": 0.987,
    "one-neighbour": 0.858,
    "four-neighbours": 0.847,
    "first-layer": 0.827,
    "middle-layer": 0.823,
    "last-layer": 0.831,
    "all-layers": 0.860,
    "every-third-from-1": 0.823,
}
"""The paper's bits per byte on C4."""


def table(study: Study, scale: Scale) -> Findings:
    """Train and score every variant; finished ones are reused.

    With another seed than the study's own, only those that a claim compares.
    """
    names = CLAIMED if study.suffix else scale.variants or tuple(ABLATIONS)
    variants = {name: ablation(scale.ablation, name) for name in names}
    # In a small model some rows of the table have the same config, which is trained only once.
    same = {name: _twin(name, variants) for name in variants}
    evaluations = {name: _evaluated(study, same[name], variants[same[name]]) for name in variants}
    bits = {name: evaluation.document_bits(_mode(variants[name])) for name, evaluation in evaluations.items()}
    num_bytes = evaluations[DEFAULT].arrays["document_bytes"]
    # The part of each variant's bits that the default saves; negative if the variant is better.
    costs = {name: relative_gain(bits[DEFAULT], value) for name, value in bits.items()}
    # The median, because an interruption or another busy process hardly changes it.
    speeds = {
        name: float(np.median(study.curve(_run_name(same[name]), "tokens_per_second")[1]))
        for name in variants
    }
    rows: list[list[Cell]] = [
        [
            name if same[name] == name else f"{name} (here the same as {same[name]})",
            bootstrap_ratio(bits[name], num_bytes),
            "" if name == DEFAULT else percent(costs[name]),
            f"{speeds[DEFAULT] / speeds[name]:.2f}",
            PAPER[name],
        ]
        for name in variants
    ]
    paper = "the paper's bits per byte on C4"
    headings = ["variant", "bits per byte", "default saves", "training time", paper]
    bars = [
        Bar(name, 100 * cost.estimate, 100 * cost.low, 100 * cost.high, "on")
        for name, cost in costs.items()
        if name != DEFAULT
    ]
    caption = (
        "Bits that the default saves of each variant's, 95 % intervals over documents. "
        "Below zero the variant is better."
    )
    figure = Figure("variants", caption, sideways_bars(bars, "% of the bits that the default saves"))
    return Findings([Table("variants", headings, rows)], [figure], _claims(bits, costs))


def _claims(bits: dict[str, np.ndarray], costs: dict[str, Interval]) -> list[Claim]:
    # The claim has three parts: F beats N, and both together beat either alone.
    f_over_n = relative_gain(bits["continuations-only"], bits["neighbours-only"])
    both = costs["neighbours-only"], costs["continuations-only"]
    found = (
        f"F needs {fewer(f_over_n, 'than N')}; "
        f"both together need {fewer(both[0], 'than N')} and {fewer(both[1], 'than F')}"
    )
    conditioning, positions = costs["no-query-conditioning"], costs["no-cross-attention-positions"]
    return [
        Claim("continuations", together(above(f_over_n), *map(above, both)), found, f_over_n),
        Claim("conditioning", above(conditioning), f"with it {fewer(conditioning)}", conditioning),
        Claim("positions", above(positions), f"with them {fewer(positions)}", positions),
    ]


def _twin(name: str, variants: dict[str, RunConfig]) -> str:
    """The first variant with the same model and training."""
    own = variants[name]
    return next(
        other for other, run in variants.items() if (run.model, run.training) == (own.model, own.training)
    )


def _run_name(name: str) -> str:
    return f"ablation-{name}"


def _mode(run: RunConfig) -> str:
    return on(run.training.num_neighbours) if run.model.uses_retrieval else OFF


def _evaluated(study: Study, name: str, run: RunConfig) -> Evaluation:
    run_name = _run_name(name)
    study.train(run_name, run.model, run.training)
    # Each variant is scored with as many neighbours as it was trained with.
    scoring = replace(run.evaluation, num_neighbours=(run.training.num_neighbours,))
    return study.evaluate(run_name, scoring)
