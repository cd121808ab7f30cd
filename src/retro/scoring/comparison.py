"""A baseline and a RETRO on the same documents: how large the gain is, and which chunks it comes from."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from retro.errors import ArtifactError
from retro.scoring.evaluate import COMMAND, OFF, Evaluation
from retro.scoring.intervals import Interval, bootstrap, relative_gain
from retro.scoring.leakage import NEW
from retro.stages.hints import with_paths

BUCKETS = (0.0, 0.125, 0.25, 0.5, 0.75, 1.0)
"""Edges of the overlap ranges. The first one ends at `NEW`: its chunks count as unseen."""


@dataclass(frozen=True)
class Bucket:
    """The chunks whose overlap with the datastore is in (low, high]; the first bucket includes 0."""

    low: float
    high: float
    share_of_bytes: float
    baseline: float
    off: float
    on: float
    share_of_gain: float
    """These chunks' part of all the bits saved against the baseline."""

    @property
    def label(self) -> str:
        return bucket_label(self.low, self.high)


def bucket_label(low: float, high: float) -> str:
    # :g rather than :.0%, because an eighth is 12.5 %.
    end = f"{100 * high:g}%"
    return f"≤ {end}" if low == 0 else f"{100 * low:g}%–{end}"


@dataclass(frozen=True)
class Comparison:
    """The numbers of the report's table."""

    on_mode: str
    gain_over_baseline: Interval
    gain_over_off: Interval
    gain_on_new_chunks: Interval
    """Gain over the baseline on chunks that share at most an eighth with any neighbour.

    NaN if there are no such chunks; so are the slopes."""
    slope_of_baseline: Interval
    slope: Interval
    """bpb(12.5 %) − bpb(100 %) of RETRO[ON]: how many bits per byte text seen before saves."""
    steeper: Interval
    """RETRO[ON]'s slope minus the baseline's. Above zero, retrieval uses leakage more than
    weights do."""
    buckets: list[Bucket]
    saved: list[float]
    """Bits that RETRO[ON] saves over the baseline on each document; negative where it needs more."""


def compare(baseline: Evaluation, retro: Evaluation, on_mode: str) -> Comparison:
    """Compare document by document and chunk by chunk."""
    if baseline.artifact.inputs["tokens"] != retro.artifact.inputs["tokens"]:
        raise ArtifactError(
            f"{baseline.artifact.path} and {retro.artifact.path} were scored on different tokens; "
            f"expected the same; remove one and run: {with_paths(COMMAND, retro.artifact.path)}"
        )
    chunks = {
        "baseline": baseline.chunk_bits(OFF),
        "off": retro.chunk_bits(OFF),
        "on": retro.chunk_bits(on_mode),
    }
    overlaps = retro.arrays["overlaps"]
    num_bytes = retro.arrays["num_bytes"]
    gain_on_new_chunks, slope_of_baseline, slope, steeper = _on_new_chunks(
        chunks["baseline"], chunks["on"], num_bytes, overlaps, retro.arrays["documents"]
    )
    on_bits, baseline_bits = retro.document_bits(on_mode), baseline.document_bits(OFF)
    return Comparison(
        on_mode=on_mode,
        gain_over_baseline=relative_gain(on_bits, baseline_bits),
        gain_over_off=relative_gain(on_bits, retro.document_bits(OFF)),
        gain_on_new_chunks=gain_on_new_chunks,
        slope_of_baseline=slope_of_baseline,
        slope=slope,
        steeper=steeper,
        buckets=_buckets(chunks, overlaps, num_bytes),
        saved=(baseline_bits - on_bits).tolist(),
    )


def _on_new_chunks(
    baseline: np.ndarray, on: np.ndarray, num_bytes: np.ndarray, overlaps: np.ndarray, documents: np.ndarray
) -> list[Interval]:
    """Gain on new chunks, both slopes with leakage, and their difference, all over the same draws."""
    # Six columns, summed by document: bits and bytes of its new chunks, then of all its chunks.
    # New and all are drawn together, so the intervals of the slopes are paired.
    columns = [
        np.bincount(documents, weights=np.where(kept, values, 0))
        for kept in (overlaps <= NEW, True)
        for values in (baseline, on, num_bytes)
    ]

    def statistics(sums: np.ndarray) -> np.ndarray:
        new_baseline, new_on, new_bytes, all_baseline, all_on, all_bytes = sums.T
        gain = (new_baseline - new_on) / new_baseline
        slope_of_baseline = new_baseline / new_bytes - all_baseline / all_bytes
        slope = new_on / new_bytes - all_on / all_bytes
        return np.stack([gain, slope_of_baseline, slope, slope - slope_of_baseline], axis=1)

    return bootstrap(np.stack(columns, axis=1), statistics)


def _buckets(chunks: dict[str, np.ndarray], overlaps: np.ndarray, num_bytes: np.ndarray) -> list[Bucket]:
    """The chunks by overlap, without the ranges that have no text."""
    saved = chunks["baseline"].sum() - chunks["on"].sum()
    buckets = []
    for low, high in pairwise(BUCKETS):
        # Ranges are open below, so the first has to take in overlaps of exactly 0.
        inside = (overlaps <= high) & ((overlaps > low) | (low == 0.0))
        size = num_bytes[inside].sum()
        if not size:
            continue
        saved_here = chunks["baseline"][inside].sum() - chunks["on"][inside].sum()
        per_byte = {name: float(bits[inside].sum() / size) for name, bits in chunks.items()}
        bucket = Bucket(
            low,
            high,
            share_of_bytes=float(size / num_bytes.sum()),
            **per_byte,
            share_of_gain=float(saved_here / saved),
        )
        buckets.append(bucket)
    return buckets
