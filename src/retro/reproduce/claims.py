"""What the paper claims, and how an interval decides whether a claim was reproduced."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from retro.scoring.intervals import Interval
from retro.scoring.wording import SMALL


class Verdict(StrEnum):
    REPRODUCED = "reproduced"
    NOT_REPRODUCED = "not reproduced"
    TOO_SMALL = "too small to tell"


@dataclass(frozen=True)
class Claim:
    """One of the paper's claims, and what we found."""

    key: str
    verdict: Verdict
    found: str
    """The numbers behind the verdict, in a sentence."""
    number: Interval | None = None
    """The first of these numbers, which other seeds are compared by; None if it depends on no training."""
    seeds: tuple[float, ...] = ()
    """The same number for every seed, the first included; empty if there was only one training."""

    @property
    def statement(self) -> str:
        return CLAIMS[self.key]

    @property
    def spread(self) -> str:
        """The number of every seed, in words; empty if there was only one training."""
        if not self.seeds:
            return ""
        plain = self.key in PLAIN
        digits = 2 if max(map(abs, self.seeds)) < SMALL else 1
        numbers = [f"{value:.3f}" if plain else f"{100 * value:.{digits}f}" for value in self.seeds]
        return f"seeds: {', '.join(numbers)}".replace("-", "−") + ("" if plain else " %")


CLAIMS = {
    "on-below-off": "RETRO[ON] needs fewer bits than RETRO[OFF]",
    "off-like-baseline": "RETRO[OFF] is like the baseline (within 1 %)",
    "datastore-size": "a larger datastore at evaluation gives fewer bits",
    "more-neighbours": "more neighbours than in training give fewer bits (10 against 2)",
    "model-size": "RETRO beats the baseline at every model size",
    "retrofit": (
        "a RETROfit gives at least 80 % of the gain of training from scratch, "
        "and with retrieval off it is the baseline to the bit"
    ),
    "unseen-text": (
        "RETRO beats the baseline also on chunks that share at most an eighth with their neighbours"
    ),
    "leakage-slope": "retrieval gains more from leaked text than the baseline does",
    "continuations": "continuations F help more than neighbours N, and both together most",
    "conditioning": "conditioning the encoder on the chunk helps",
    "positions": "relative positions in the cross-attention help",
    "knn-lm": "RETRO is at least as good as kNN-LM with about 64 times fewer keys",
    "sources": "the sources whose text stands in the datastore gain most",
    "link-distance": (
        "neighbours come from articles few links away: nearer than random ones, "
        "and the nearer the better their rank"
    ),
    "new-facts": "added documents help at once, and deleting them takes that back to the bit",
    "questions": "passages carry answers: open book above closed book and above shuffled passages",
}
"""The claims by key, in the order of the checklist."""
PLAIN = ("leakage-slope", "sources", "link-distance")
"""Claims whose number is no part of anything, and is not shown in percent."""
TESTED_BY = {
    "on-below-off": "table-retrieval",
    "off-like-baseline": "table-retrieval",
    "datastore-size": "figure-datastore-size",
    "more-neighbours": "figure-neighbours",
    "model-size": "figure-model-size",
    "retrofit": "figure-retrofit",
    "unseen-text": "figure-leakage",
    "leakage-slope": "figure-leakage",
    "continuations": "table-ablation",
    "conditioning": "table-ablation",
    "positions": "table-ablation",
    "knn-lm": "table-knn-lm",
    "sources": "figure-sources",
    "link-distance": "figure-link-distance",
    "new-facts": "table-new-facts",
    "questions": "table-questions",
}
"""The experiment that decides each claim."""


def above(interval: Interval, threshold: float = 0.0) -> Verdict:
    """Whether a number is above a threshold, which its whole interval must be."""
    if interval.low > threshold:
        return Verdict.REPRODUCED
    return Verdict.NOT_REPRODUCED if interval.high < threshold else Verdict.TOO_SMALL


def within(interval: Interval, margin: float) -> Verdict:
    """Whether a number is zero within a margin: decided if the whole interval is inside, or on one side."""
    if -margin <= interval.low and interval.high <= margin:
        return Verdict.REPRODUCED
    return Verdict.NOT_REPRODUCED if interval.low > margin or interval.high < -margin else Verdict.TOO_SMALL


def exactly(holds: bool) -> Verdict:
    """The verdict on a fact that needs no interval."""
    return Verdict.REPRODUCED if holds else Verdict.NOT_REPRODUCED


def over_seeds(claims: Sequence[Claim]) -> Claim:
    """One claim of several trainings: the first, with the numbers of all; decided if all of them agree."""
    first = claims[0]
    if len(claims) == 1:
        return first
    agreed = len({claim.verdict for claim in claims}) == 1
    return replace(
        first,
        verdict=first.verdict if agreed else Verdict.TOO_SMALL,
        seeds=tuple(claim.number.estimate for claim in claims if claim.number is not None),
    )


def together(*verdicts: Verdict) -> Verdict:
    """The verdict on a claim with several parts, which is the worst of them."""
    # From worst to best: the first verdict that occurs decides.
    for verdict in (Verdict.NOT_REPRODUCED, Verdict.TOO_SMALL):
        if verdict in verdicts:
            return verdict
    return Verdict.REPRODUCED
