"""Neighbours that a training step leaves out, so that a model learns more than to copy from all of them."""

from dataclasses import dataclass

import numpy as np

from retro.config import TrainingConfig
from retro.retrieval.overlap import longest_common_substring

DRAWS = 7
"""Sets the draws of neighbours apart from those of sequences, which come from the same seed."""


@dataclass(frozen=True, kw_only=True)
class Omission:
    """What is left out of the neighbours of a sequence: a pure function of the seed and its number."""

    seed: int
    leave_out: float = 0.0
    """Part of the chunks that read nothing."""
    vary: bool = False
    """Whether the number of neighbours differs from chunk to chunk."""
    longest_run: int = 0
    """The longest run that a neighbour may share with the text that reads it; 0: any."""

    @staticmethod
    def of(config: TrainingConfig) -> "Omission | None":
        """What a config leaves out; None if that is nothing."""
        if not (config.leave_out or config.vary_neighbours or config.longest_run):
            return None
        return Omission(
            seed=config.seed,
            leave_out=config.leave_out,
            vary=config.vary_neighbours,
            longest_run=config.longest_run,
        )

    def drawn(self, sequence: int, num_chunks: int, k: int) -> np.ndarray:
        """Which neighbours (chunk, neighbour) of this sequence chance lets a step read, nearest first."""
        rng = np.random.default_rng([self.seed, sequence, DRAWS])
        # Both are always drawn, so that one setting does not change what the other draws.
        reads = rng.random(num_chunks) >= self.leave_out
        numbers = rng.integers(1, k + 1, num_chunks)
        numbers = numbers if self.vary else np.full(num_chunks, k)
        kept: np.ndarray = reads[:, None] & (np.arange(k) < numbers[:, None])
        return kept

    def unlike(self, texts: np.ndarray, retrieved: np.ndarray, pad_id: int) -> np.ndarray:
        """Which neighbours (…, k, r) share no longer run with the texts (…, m) that read them."""
        if not self.longest_run:
            return np.ones(retrieved.shape[:-1], dtype=bool)
        # Each neighbour by itself: a text beside a list of one.
        each = np.broadcast_to(texts[..., None, :], (*retrieved.shape[:-1], texts.shape[-1]))
        kept: np.ndarray = longest_common_substring(each, retrieved[..., None, :], pad_id) <= self.longest_run
        return kept
