"""A baseline and a RETRO on the same documents: how large the gain is, and on which chunks it comes."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from retro.errors import ArtifactError
from retro.scoring.evaluate import OFF, Evaluation
from retro.scoring.intervals import Interval, bootstrap, relative_gain
from retro.scoring.leakage import NEW

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
        return (
            f"{'≤ ' if self.low == 0 else f'{self.low:.0%}–'.replace('12%', '12.5%')}{self.high:.0%}".replace(
                "12%", "12.5%"
            )
        )


@dataclass(frozen=True)
class Comparison:
    """The numbers of the report's table."""

    on_mode: str
    gain_over_baseline: Interval
    gain_over_off: Interval
    gain_on_new_chunks: Interval
    """Gain over the baseline on chunks that share at most an eighth with any neighbour; NaN, as the slopes are, if there are none."""
    slope_of_baseline: Interval
    slope: Interval
    """bpb(12.5 %) − bpb(100 %) of RETRO[ON]: how many bits a byte are saved by what was seen before."""
    steeper: Interval
    """RETRO[ON]'s slope less the baseline's: above zero where retrieval exploits leakage more than weights do."""
    buckets: list[Bucket]


def compare(baseline: Evaluation, retro: Evaluation, on_mode: str) -> Comparison:
    """Compare document by document and chunk by chunk."""
    if baseline.artifact.inputs["tokens"] != retro.artifact.inputs["tokens"]:
        raise ArtifactError(
            f"{baseline.artifact.path} and {retro.artifact.path} were scored on different tokens; expected the same; run: retro evaluate"
        )
    chunks = {
        "baseline": baseline.chunk_bits(OFF),
        "off": retro.chunk_bits(OFF),
        "on": retro.chunk_bits(on_mode),
    }
    overlaps, num_bytes = retro.arrays["overlaps"], retro.arrays["num_bytes"]
    gain_on_new_chunks, slope_of_baseline, slope, steeper = _on_new_chunks(
        chunks["baseline"], chunks["on"], num_bytes, overlaps, retro.arrays["documents"]
    )
    return Comparison(
        on_mode,
        relative_gain(retro.document_bits(on_mode), baseline.document_bits(OFF)),
        relative_gain(retro.document_bits(on_mode), retro.document_bits(OFF)),
        gain_on_new_chunks,
        slope_of_baseline,
        slope,
        steeper,
        _buckets(chunks, overlaps, num_bytes),
    )


def _on_new_chunks(
    baseline: np.ndarray, on: np.ndarray, num_bytes: np.ndarray, overlaps: np.ndarray, documents: np.ndarray
) -> list[Interval]:
    """The gain on new chunks, the slope of either with leakage, and the difference of the slopes, over the same draws of documents."""
    columns = [
        np.bincount(documents, weights=np.where(kept, values, 0))
        for kept in (overlaps <= NEW, True)
        for values in (baseline, on, num_bytes)
    ]

    def statistics(sums: np.ndarray) -> np.ndarray:
        new_baseline, new_on, new_bytes, all_baseline, all_on, all_bytes = sums.T
        slope_of_baseline, slope = (
            new_baseline / new_bytes - all_baseline / all_bytes,
            new_on / new_bytes - all_on / all_bytes,
        )
        return np.stack(
            [(new_baseline - new_on) / new_baseline, slope_of_baseline, slope, slope - slope_of_baseline],
            axis=1,
        )

    return bootstrap(np.stack(columns, axis=1), statistics)


def _buckets(chunks: dict[str, np.ndarray], overlaps: np.ndarray, num_bytes: np.ndarray) -> list[Bucket]:
    saved = chunks["baseline"].sum() - chunks["on"].sum()
    buckets = []
    for low, high in pairwise(BUCKETS):
        inside = (overlaps <= high) & ((overlaps > low) | (low == 0.0))
        size = num_bytes[inside].sum()
        if size:
            per_byte = {name: float(bits[inside].sum() / size) for name, bits in chunks.items()}
            share = float((chunks["baseline"][inside].sum() - chunks["on"][inside].sum()) / saved)
            buckets.append(
                Bucket(
                    low,
                    high,
                    float(size / num_bytes.sum()),
                    per_byte["baseline"],
                    per_byte["off"],
                    per_byte["on"],
                    share,
                )
            )
    return buckets
