"""What the paper claims, and how an interval decides whether a claim was found again."""

from dataclasses import dataclass
from enum import StrEnum

from retro.scoring.intervals import Interval


class Verdict(StrEnum):
    REPRODUCED = "reproduced"
    NOT_REPRODUCED = "not reproduced"
    TOO_SMALL = "too small to tell"


@dataclass(frozen=True)
class Claim:
    """One of the paper's claims with what was found of it."""

    key: str
    verdict: Verdict
    found: str
    """The numbers behind the verdict, in a sentence."""

    @property
    def statement(self) -> str:
        return CLAIMS[self.key]


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
"""In the order of the checklist."""


def above(interval: Interval, threshold: float = 0.0) -> Verdict:
    """Whether a number is above a threshold: only if its whole interval is."""
    if interval.low > threshold:
        return Verdict.REPRODUCED
    return Verdict.NOT_REPRODUCED if interval.high < threshold else Verdict.TOO_SMALL


def within(interval: Interval, margin: float) -> Verdict:
    """Whether a number is zero but for a margin: its whole interval lies inside, or outside on one side."""
    if -margin <= interval.low and interval.high <= margin:
        return Verdict.REPRODUCED
    return Verdict.NOT_REPRODUCED if interval.low > margin or interval.high < -margin else Verdict.TOO_SMALL


def exactly(holds: bool) -> Verdict:
    """For what needs no interval."""
    return Verdict.REPRODUCED if holds else Verdict.NOT_REPRODUCED


def together(*verdicts: Verdict) -> Verdict:
    """Of a claim with several parts: one that fails decides, then one that is too small to tell."""
    for verdict in (Verdict.NOT_REPRODUCED, Verdict.TOO_SMALL):
        if verdict in verdicts:
            return verdict
    return Verdict.REPRODUCED
