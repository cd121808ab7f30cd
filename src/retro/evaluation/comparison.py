"""A baseline and a RETRO on the same documents: how large the gain is, and on which chunks it comes."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from retro.errors import ArtifactError
from retro.evaluation.evaluate import OFF, Evaluation
from retro.evaluation.intervals import Interval, relative_gain

BUCKETS = (0.0, 0.125, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class Bucket:
    """The chunks whose overlap with the datastore lies in (low, high], the first from 0 on."""

    low: float
    high: float
    share_of_bytes: float
    baseline: float
    off: float
    on: float
    share_of_gain: float
    """Part of all bits saved against the baseline that these chunks save."""

    @property
    def label(self) -> str:
        return f"{'≤ ' if self.low == 0 else f'{self.low:.0%}–'.replace('12%', '12.5%')}{self.high:.0%}".replace("12%", "12.5%")


@dataclass(frozen=True)
class Comparison:
    """The numbers of the report's table."""

    on_mode: str
    gain_over_baseline: Interval
    gain_over_off: Interval
    gain_on_new_chunks: Interval
    """Gain over the baseline on chunks that share at most an eighth with any neighbour, documents resampled."""
    buckets: list[Bucket]


def compare(baseline: Evaluation, retro: Evaluation, on_mode: str) -> Comparison:
    """Compare document by document and chunk by chunk."""
    if baseline.artifact.inputs["tokens"] != retro.artifact.inputs["tokens"]:
        raise ArtifactError(
            f"{baseline.artifact.path} and {retro.artifact.path} were scored on different tokens; expected the same; run: retro evaluate"
        )
    chunks = {"baseline": baseline.chunk_bits(OFF), "off": retro.chunk_bits(OFF), "on": retro.chunk_bits(on_mode)}
    overlaps, num_bytes = retro.arrays["overlaps"], retro.arrays["num_bytes"]
    new = overlaps <= 0.125
    return Comparison(
        on_mode,
        relative_gain(retro.document_bits(on_mode), baseline.document_bits(OFF)),
        relative_gain(retro.document_bits(on_mode), retro.document_bits(OFF)),
        relative_gain(chunks["on"][new], chunks["baseline"][new]) if new.any() else Interval(0.0, 0.0, 0.0),
        _buckets(chunks, overlaps, num_bytes),
    )


def _buckets(chunks: dict[str, np.ndarray], overlaps: np.ndarray, num_bytes: np.ndarray) -> list[Bucket]:
    saved = chunks["baseline"].sum() - chunks["on"].sum()
    buckets = []
    for low, high in pairwise(BUCKETS):
        inside = (overlaps <= high) & ((overlaps > low) | (low == 0.0))
        size = num_bytes[inside].sum()
        if size:
            per_byte = {name: float(bits[inside].sum() / size) for name, bits in chunks.items()}
            share = float((chunks["baseline"][inside].sum() - chunks["on"][inside].sum()) / saved)
            buckets.append(Bucket(low, high, float(size / num_bytes.sum()), per_byte["baseline"], per_byte["off"], per_byte["on"], share))
    return buckets
