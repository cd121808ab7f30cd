"""Whether retrieval helped, in plain words, and if it did not, what speaks for which reason."""

from dataclasses import dataclass

import numpy as np

from retro.scoring.comparison import Comparison
from retro.scoring.intervals import Interval
from retro.wording import counted

FEW_DOCUMENTS = 30
LITTLE_SHARED = 0.1
"""Below this share of text that stands in a neighbour there is little to copy."""
STILL_FALLING = 0.02
"""A loss that fell by so much over the last quarter of the training had not settled."""


@dataclass(frozen=True)
class Evidence:
    """What a verdict rests on, besides the comparison."""

    num_tokens: int
    """Tokens that each model was trained on."""
    losses: list[float]
    """RETRO's validation losses with retrieval, in order."""
    retrieving: float
    """Share of the test text that comes after a document's first chunk, and so can use neighbours."""


def verdict(comparison: Comparison, evidence: Evidence) -> str:
    """One or a few sentences on what the numbers say."""
    gain = comparison.gain_over_baseline
    amount = f"{_percent(abs(gain.estimate))} {'fewer' if gain.estimate > 0 else 'more'} bits"
    found = (
        f"with neighbours RETRO needs {amount} than the baseline, a model of the same shape that was "
        "trained without retrieval (95 % interval of the saving "
        f"{_percent(gain.low)} to {_percent(gain.high)}, {_documents(comparison)})."
    )
    if gain.low > 0:
        return f"Retrieval helps: {found}"
    head = "Retrieval does not help here" if gain.high < 0 else "Retrieval makes no clear difference"
    return f"{head}: {found} {_why(comparison, evidence)}"


def shared_text(comparison: Comparison) -> float:
    """Share of the test text whose chunks have a run of more than a quarter in common with a neighbour."""
    return sum(bucket.share_of_bytes for bucket in comparison.buckets if bucket.low >= 0.25)


def _why(comparison: Comparison, evidence: Evidence) -> str:
    reasons = _reasons(comparison, evidence)
    if not reasons:
        return "None of the usual reasons shows: text is shared, documents agree, and the training settled."
    return " ".join(reasons)


def _reasons(comparison: Comparison, evidence: Evidence) -> list[str]:
    reasons = []
    shared = shared_text(comparison)
    if shared < LITTLE_SHARED:
        reasons.append(
            f"Too little text is shared between documents: {_percent(shared)} of the test text stands in a "
            "chunk that has more than a quarter in common with a neighbour, and a small model gains by "
            "copying."
        )
    if evidence.retrieving < 0.5:
        reasons.append(
            f"The documents are short: only {_percent(evidence.retrieving)} of the text comes after a first "
            "chunk, and only that can use neighbours."
        )
    if _is_open(comparison.gain_over_baseline):
        reasons.append(_why_open(comparison))
    if falling := _last_fall(evidence.losses):
        reasons.append(
            f"The training was short: {evidence.num_tokens:,} tokens, and the loss still fell by "
            f"{_percent(falling)} over the last quarter; give it more minutes."
        )
    return reasons


def _why_open(comparison: Comparison) -> str:
    num_documents = len(comparison.saved)
    if num_documents < FEW_DOCUMENTS:
        return (
            f"The interval is wide, as there are only {_documents(comparison)}; more and shorter documents "
            "would tell."
        )
    gained = sum(bits > 0 for bits in comparison.saved)
    return (
        f"The interval is wide, as the documents differ: {gained} of {num_documents} need fewer bits with "
        "neighbours, and half of all that is saved or lost is in "
        f"{counted(_weightiest(comparison.saved), 'document')}; more documents would tell."
    )


def _weightiest(saved: list[float]) -> int:
    """How many documents, those with the largest differences first, make half of the sum of all."""
    sums = np.cumsum(sorted((abs(bits) for bits in saved), reverse=True))
    return int(np.searchsorted(sums, sums[-1] / 2)) + 1


def _is_open(gain: Interval) -> bool:
    return gain.low <= 0 <= gain.high


def _last_fall(losses: list[float]) -> float:
    """By which part the loss fell over the last quarter of the training; 0 if it had settled."""
    if len(losses) < 4:
        return 0.0
    before = losses[-1 - len(losses) // 4]
    fall = (before - losses[-1]) / before
    return fall if fall > STILL_FALLING else 0.0


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %".replace("-", "−")


def _documents(comparison: Comparison) -> str:
    return counted(len(comparison.saved), "test document")
