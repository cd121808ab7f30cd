"""What all experiments share: a study that provides models, and curves for what they find."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from retro.pages.plots import Line
from retro.reproduce.claims import PLAIN, Claim, over_seeds
from retro.reproduce.result import Cell, Findings, Table
from retro.reproduce.scales import Scale
from retro.scoring.evaluate import OFF, Evaluation, on
from retro.scoring.intervals import Interval, bootstrap_ratio
from retro.scoring.wording import percent
from retro.study import Study


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper."""

    title: str
    paper: str
    """What the paper reports there."""
    run: Callable[[Study, Scale], Findings]
    seeded: bool = False
    """Whether it is repeated with the scale's other seeds."""


def run_seeds(experiment: Experiment, study: Study, scale: Scale) -> Findings:
    """What an experiment finds with the run's own seed, with the numbers of its claims for the others."""
    findings = experiment.run(study, scale)
    if not (experiment.seeded and scale.more_seeds and findings.claims):
        return findings
    seeds = [study.run.training.seed, *scale.more_seeds]
    others = [experiment.run(study.reseeded(seed), scale).claims for seed in scale.more_seeds]
    # Every training makes the same claims, in the same order.
    rows = [list(claims) for claims in zip(findings.claims, *others, strict=True)]
    headings = ["claim", *(f"seed {seed}" for seed in seeds), "verdicts"]
    cells: list[list[Cell]] = [
        [
            claims[0].statement,
            *(_shown(claim) for claim in claims),
            "; ".join(claim.verdict.value for claim in claims),
        ]
        for claims in rows
    ]
    table = Table("the claims' numbers with every seed", headings, cells)
    return replace(findings, tables=[*findings.tables, table], claims=[over_seeds(row) for row in rows])


def _shown(claim: Claim) -> Cell:
    """A claim's number, in percent if it is a part of something."""
    return claim.number if claim.number is None or claim.key in PLAIN else percent(claim.number)


@dataclass(frozen=True)
class Trio:
    """The baseline and RETRO with retrieval off and on, on the same documents."""

    baseline: Evaluation
    retro: Evaluation
    k: int

    @property
    def num_bytes(self) -> np.ndarray:
        return self.retro.arrays["document_bytes"]

    def bits(self) -> dict[str, np.ndarray]:
        """Bits of every document, for baseline, off and on."""
        return {
            "baseline": self.baseline.document_bits(OFF),
            "off": self.retro.document_bits(OFF),
            "on": self.retro.document_bits(on(self.k)),
        }

    def per_byte(self) -> dict[str, Interval]:
        return {name: bootstrap_ratio(bits, self.num_bytes) for name, bits in self.bits().items()}


# The names that tables and legends show.
NAMES = {"baseline": "baseline", "off": "RETRO[OFF]", "on": "RETRO[ON]"}


def trio(study: Study) -> Trio:
    """The study's baseline and RETRO; what is missing is trained and scored.

    A pretrained base that was fitted is its own baseline: without neighbours it is what it was.
    """
    retro = study.evaluated("retro")
    baseline = retro if study.is_fitted else study.evaluated("baseline")
    return Trio(baseline, retro, study.run.training.num_neighbours)


def band(
    label: str, x: Sequence[float], intervals: Sequence[Interval], colour: str, style: str = "-"
) -> Line:
    """A curve with a band for its intervals."""
    # The bounds as two curves, between which the band is drawn.
    low, high = [interval.low for interval in intervals], [interval.high for interval in intervals]
    return Line(label, x, [interval.estimate for interval in intervals], colour, style, low, high)


def flat(label: str, x: Sequence[float], interval: Interval, colour: str) -> Line:
    """A level line to compare a curve with."""
    return Line(label, x, [interval.estimate] * len(x), colour, "--")
